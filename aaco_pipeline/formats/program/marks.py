"""Read a file of marks as arrays; its layout is defined in `aaco_pipeline/recording/mark.py`.

The file of a killed process may end anywhere: its complete records are read, and a begin without an end is not an
iteration.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import Limits
from aaco_pipeline.formats.parsing.redaction import REDACTED, safe_text
from aaco_pipeline.formats.parsing.regular_files import open_regular

MAGIC: Final = b"AACOMARK"
VERSION: Final = 1
ITERATION, PHASE, INSTANT = 1, 3, 5
_NAME: Final = 6
_SLOT: Final = 32
_HEADER_SLOTS: Final = 2
_HEADER: Final = np.dtype(
    [("magic", "S8"), ("version", "<u4"), ("process", "<u4"), ("start", "<i8"), ("real", "<i8"), ("error", "<u4")]
)
_RECORD: Final = np.dtype([("time", "<i8"), ("thread", "<u4"), ("kind", "<u2"), ("name", "<u2"), ("zero", "V16")])
#: A name's length has 32 bits, and no helper writes a longer one.
_LONGEST_NAME: Final = 255
_MOST_NAMES: Final = 1 << 16
#: A host's clock cannot reach a later time.
_MOST_NS: Final = 2**60
_RANGES: Final = pl.Schema(
    {"thread": pl.Int64, "kind": pl.UInt16, "name": pl.String, "start": pl.Int64, "end": pl.Int64}
)


@dataclass(frozen=True)
class Marks:
    """One process's marks.

    `ranges` (thread, kind, name, start, end; ns of CLOCK_MONOTONIC), in order of start, are iterations, phases and
    instants, whose end is null. `unpaired` counts begins without an end and ends without a begin, `impossible` records
    that no helper writes; `error` is the system error number that stopped marking, 0 for none.
    """

    process: int
    ranges: pl.DataFrame
    unpaired: int
    impossible: int
    error: int


def read_marks(path: Path, limits: Limits) -> Marks:
    """Read the marks in a file. CaptureError for another file, a later version, or one beyond the limits."""
    try:
        with open_regular(path) as stream:
            size = os.fstat(stream.fileno()).st_size
            if size > limits.whole_bytes:
                raise CaptureError(
                    f"{path}: {size} bytes of marks, and {limits.whole_bytes} are read at most; mark less"
                )
            content = stream.read(size)
    except OSError as error:
        raise CaptureError(f"{path}: cannot be read: {error.strerror or error}; check its permissions") from error
    return marks_of(content, str(path))


def marks_of(content: bytes, place: str) -> Marks:
    """Return the marks in the bytes of a file; see `read_marks`."""
    header = _header(content, place)
    records = _records(content)
    names, taken = _names(content, records)
    kinds = records["kind"]
    known = (kinds >= ITERATION) & (kinds <= INSTANT)
    plausible = (records["time"] >= 0) & (records["time"] < _MOST_NS)
    kept = ~taken & known & plausible
    impossible = int((~taken & (kinds != 0) & ~(known & plausible)).sum())
    numbers = np.unique(records["name"][kept])
    frame = pl.DataFrame(
        {
            "thread": records["thread"][kept].astype(np.int64),
            "kind": kinds[kept],
            "number": records["name"][kept],
            "time": records["time"][kept],
        }
    )
    texts = pl.DataFrame(
        {"number": numbers, "name": [names.get(number) for number in numbers.tolist()]},
        schema={"number": pl.UInt16, "name": pl.String},
    )
    named = frame.join(texts, on="number", how="left", maintain_order="left")
    paired, unpaired = _paired(named.filter(pl.col("kind") != INSTANT))
    instants = named.filter(pl.col("kind") == INSTANT).select(
        "thread", "kind", "name", start="time", end=pl.lit(None, pl.Int64)
    )
    ranges = pl.concat([paired, instants]).sort("start", maintain_order=True)
    return Marks(int(header["process"]), ranges, unpaired, impossible, int(header["error"]))


def without_secrets(content: bytes) -> tuple[bytes, int]:
    """Replace names that contain a secret in a file of marks; return the bytes and the number of secrets.

    Other files are returned unchanged, because their reader rejects them.
    """
    if content[: len(MAGIC)] != MAGIC:
        return content, 0
    clean, hits = bytearray(content), 0
    records = _records(content)
    for slot, length, text in _definitions(content, records):
        said = text.decode("utf-8", "replace")
        if safe_text(said) == said:
            continue
        at = (slot + _HEADER_SLOTS) * _SLOT
        cover = REDACTED.encode()[:length]
        clean[at + 8 : at + 12] = len(cover).to_bytes(4, "little")
        clean[at + _SLOT : at + _SLOT + len(text)] = cover.ljust(len(text), b"\0")[: len(text)]
        hits += 1
    return bytes(clean), hits


def _header(content: bytes, place: str) -> np.void:
    if content[: len(MAGIC)] != MAGIC or len(content) < _HEADER_SLOTS * _SLOT:
        raise CaptureError(f"{place}: not a file of marks, or cut within its header; record the program again")
    header = np.frombuffer(content, _HEADER, 1)[0]
    if header["version"] != VERSION:
        raise CaptureError(
            f"{place}: marks of version {header['version']}, and this aaco_pipeline reads {VERSION}; upgrade it"
        )
    return header  # type: ignore[no-any-return]


def _records(content: bytes) -> "np.ndarray[tuple[int], np.dtype[np.void]]":
    """Return all complete slots after the header as records, whatever they contain."""
    count = max(0, len(content) // _SLOT - _HEADER_SLOTS)
    if not count:
        return np.empty(0, _RECORD)
    return np.frombuffer(content, _RECORD, count, _HEADER_SLOTS * _SLOT)


def _definitions(
    content: bytes, records: "np.ndarray[tuple[int], np.dtype[np.void]]"
) -> "list[tuple[int, int, bytes]]":
    """Yield slot, length and text of each name, in order. Text that looks like a definition is not one."""
    found = []
    behind = 0
    for slot in np.flatnonzero(records["kind"] == _NAME)[: 2 * _MOST_NAMES].tolist():
        length = int(records["thread"][slot])
        if slot < behind or length > _LONGEST_NAME:
            continue
        behind = slot + 1 + -(-length // _SLOT)
        at = (slot + 1 + _HEADER_SLOTS) * _SLOT
        found.append((slot, length, content[at : at + length]))
    return found


def _names(
    content: bytes, records: "np.ndarray[tuple[int], np.dtype[np.void]]"
) -> "tuple[dict[int, str | None], np.ndarray[tuple[int], np.dtype[np.bool_]]]":
    """Return the text of each name by number, None if it was not written at all, and the slots of names."""
    names: dict[int, str | None] = {}
    taken = np.zeros(len(records), np.bool_)
    for slot, length, text in _definitions(content, records):
        taken[slot : slot + 1 + -(-length // _SLOT)] = True
        said = text.rstrip(b"\0").decode("utf-8", "replace")
        names[int(records["name"][slot])] = safe_text(said) or None
    return names, taken


def _paired(marks: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Return begins with their ends, and how many have no counterpart.

    On one thread, ranges of one kind nest, so an end belongs to the newest open begin: at equal depth, begins and ends
    alternate.
    """
    is_begin = (pl.col("kind") % 2 == 1).alias("is_begin")
    of_thread = ("thread", "sort")
    steps = marks.with_columns(is_begin, sort=(pl.col("kind") + 1) // 2)
    steps = steps.with_columns(step=pl.when("is_begin").then(1).otherwise(-1))
    sums = steps.with_columns(sum=pl.col("step").cum_sum().over(of_thread))
    # An end without a begin lowers everything after it; depth counts from the lowest level so far.
    depths = sums.with_columns(
        lowest=pl.min_horizontal(pl.lit(0), pl.col("sum").cum_min()).over(of_thread)
    ).with_columns(depth=pl.col("sum") - pl.col("lowest") + pl.when("is_begin").then(0).otherwise(1))
    group = (*of_thread, "depth")
    matched = depths.with_columns(
        next_is_begin=pl.col("is_begin").shift(-1).over(group), until=pl.col("time").shift(-1).over(group)
    )
    whole = matched.filter(
        pl.col("is_begin") & pl.col("next_is_begin").not_().fill_null(False) & (pl.col("until") >= pl.col("time"))
    )
    # Nested iterations are parts of the outer one. An iteration that never ended contains none.
    before = pl.col("until").cum_max().shift(1).over(of_thread)
    outer = whole.sort("time", maintain_order=True).with_columns(before=before)
    outer = outer.filter(
        (pl.col("kind") != ITERATION) | pl.col("before").is_null() | (pl.col("time") >= pl.col("before"))
    )
    ranges = outer.select("thread", "kind", "name", start="time", end="until").cast(_RANGES)
    return ranges, marks.height - 2 * whole.height
