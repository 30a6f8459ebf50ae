"""Validated files of a decoded thread trace, and the folder that contains them.

`reading` builds the tables.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import Findings, Limits
from aaco_pipeline.formats.parsing.json_document import json_document
from aaco_pipeline.formats.parsing.regular_files import is_regular, readable_entries

#: Categories of a traced instruction by the decoder's number; 6 includes matrix instructions.
CATEGORIES: Final = (
    *("none", "smem", "salu", "vmem", "flat", "lds", "valu", "jump", "next", "immediate", "context", "message", "bvh"),
)
#: States of a wavefront by the decoder's number.
WAVE_STATES: Final = ("empty", "idle", "exec", "wait", "stall")
#: Reasons why a sampled wavefront issued nothing, by position in a row's list.
STALL_REASONS: Final = (
    *("none", "no_instruction_available", "alu_dependency", "waitcnt", "internal_instruction", "barrier_wait"),
    *("arbiter_not_win", "arbiter_win_ex_stall", "other_wait", "sleep_wait"),
)
#: Magnitude limit of cycles, counts and lines, so that sums of a few fit in 64 bits.
_LOWEST: Final = -(1 << 61)
_TRACED_WIDTH: Final = 10
_SAMPLED_WIDTH: Final = 13

CODE_SCHEMA: Final = pl.Schema(
    {
        **{"instruction": pl.String(), "line": pl.Int64(), "source": pl.String()},
        **dict.fromkeys(("code_object_id", "address"), pl.UInt64()),
        **dict.fromkeys(("hits", "latency_cycles", "stall_cycles", "idle_cycles", "issued", "stalled"), pl.Int64()),
        "stall_reasons": pl.List(pl.Int64()),
    }
)
TRACED_DISPATCH_SCHEMA: Final = pl.Schema(
    {
        **{"agent_handle": pl.String(), "source_dispatch_id": pl.UInt64(), "gfxv": pl.String(), "gfxip": pl.Int32()},
        **dict.fromkeys(("counter_names", "kernel_names", "kernel_display_names"), pl.List(pl.String())),
        "code_object_ids": pl.List(pl.UInt64()),
    }
)
OCCUPANCY_SCHEMA: Final = pl.Schema(
    {
        **dict.fromkeys(("shader_engine", "time", "cu", "simd", "slot"), pl.Int64()),
        "started": pl.Boolean(),
        "source_kernel_id": pl.Int64(),
        "kernel": pl.String(),
    }
)
REALTIME_SCHEMA: Final = pl.Schema(
    dict.fromkeys(("shader_engine", "gfx_clock", "realtime_clock", "frequency"), pl.Int64())
)
_PERF_COUNTERS: Final = ("time", *(f"counter_{number}" for number in range(4)), "cu", "bank")
PERF_COUNTERS_SCHEMA: Final = pl.Schema(dict.fromkeys(("shader_engine", *_PERF_COUNTERS), pl.Int64()))
WAVE_STATES_SCHEMA: Final = pl.Schema({"time": pl.Int64(), "state": pl.String(), "waves": pl.Int64()})
#: Positions of `CODE_SCHEMA`'s columns in a row; the decoder does not use position 1.
_POSITIONS: Final = (0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)


@dataclass(frozen=True)
class WaveFile:
    """One wavefront's file as listed in `filenames.json`; `begin` and `end` in cycles, null if not stated."""

    shader_engine: int
    simd: int
    slot: int
    wave: int
    name: str
    begin: int | None = None
    end: int | None = None


@dataclass(frozen=True)
class Wave:
    """One wavefront: its facts, and the file's rows of integers; `missing` names those that are null."""

    facts: Mapping[str, int | None]
    instructions: npt.NDArray[np.int64]
    timeline: npt.NDArray[np.int64]
    waits: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]
    missing: tuple[str, ...]


def inside(folder: Path, name: object) -> Path | None:
    """Return the file `name` directly in `folder`; None if it is missing or would lie outside the folder."""
    if not isinstance(name, str) or not name or "\0" in name or name in (".", "..") or "/" in name or "\\" in name:
        return None
    path = folder / name
    return path if is_regular(path) else None


def document(path: Path, limits: Limits) -> Any:
    """Read the JSON in a file. CaptureError if it is damaged, too large, or nested too deep for these files."""
    return json_document(path, limits, "decode the trace again")


def mapping(path: Path, limits: Limits) -> dict[str, Any]:
    """Read a file that must contain one JSON object; see `document`."""
    found = document(path, limits)
    if not isinstance(found, dict):
        raise CaptureError(f"{path}: holds no JSON object; not a file of a thread trace")
    return found


def integers(path: Path, rows: Any, width: int, what: str) -> npt.NDArray[np.int64]:
    """Convert `rows` of `width` integers each to an array of that shape; null gives no rows."""
    if rows is None or rows == []:
        return np.empty((0, width), np.int64)
    try:
        table = np.asarray(rows)
    except (ValueError, OverflowError, TypeError) as error:
        raise CaptureError(f"{path}: {what} are not rows of {width} numbers; the file is damaged") from error
    if (
        table.dtype.kind != "i"
        or table.ndim != 2
        or table.shape[1] != width
        or not _LOWEST < table.min() <= table.max() < -_LOWEST
    ):
        raise CaptureError(f"{path}: {what} are not rows of {width} whole numbers; the file is damaged")
    return table.astype(np.int64, copy=False)


def code(path: Path, limits: Limits) -> tuple[pl.DataFrame | None, bool]:
    """Read the rows of `code.json` as `CODE_SCHEMA`, and return whether they come from program-counter sampling.

    Rows are distinguished by length, not by the header, which the viewer writes differently. None if the file states
    that there is no code. CaptureError if a row has another form.
    """
    rows = mapping(path, limits).get("code")
    if rows is None:
        return None, False
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise CaptureError(f"{path}: its code is not a list of rows; decode the trace again")
    _within(path, len(rows), limits)
    widths = set(map(len, rows))
    if strange := widths - {_TRACED_WIDTH, _SAMPLED_WIDTH}:
        reason = f"has rows of {max(strange)} columns, expected {_TRACED_WIDTH} or {_SAMPLED_WIDTH}"
        raise CaptureError(f"{path}: {reason}; upgrade aaco_pipeline or decode the trace again")
    sampled = _SAMPLED_WIDTH in widths
    if len(widths) > 1:
        rows = [row if len(row) == _SAMPLED_WIDTH else [*row, None, None, None] for row in rows]
    columns = list(zip(*rows, strict=True)) if rows else [()] * _SAMPLED_WIDTH
    columns += [(None,) * len(rows)] * (_SAMPLED_WIDTH - len(columns))
    try:
        frame = pl.DataFrame(
            [
                pl.Series(name, columns[at], dtype=dtype, strict=True)
                for at, (name, dtype) in zip(_POSITIONS, CODE_SCHEMA.items(), strict=True)
            ]
        )
    except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError) as error:
        raise CaptureError(f"{path}: a column holds something else than expected: {_first_line(error)}") from error
    return frame, sampled


def listed_waves(path: Path, listing: Any) -> list[WaveFile]:
    """List the wavefronts in `wave_filenames`: nested by shader engine, SIMD, slot and number; null gives none."""
    if listing is None:
        return []
    found = []
    try:
        for engine, simds in listing.items():
            for simd, slots in simds.items():
                for slot, waves in slots.items():
                    for wave, (name, begin, end) in waves.items():
                        at = int(engine), int(simd), int(slot), int(wave)
                        one = WaveFile(*at, str(name), int(begin), int(end))
                        if max(map(abs, (*at, int(begin), int(end)))) >= -_LOWEST:
                            raise ValueError("a number is out of range")
                        found.append(one)
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        reason = "its list of wavefronts is not in the expected form; the file is damaged"
        raise CaptureError(f"{path}: {reason}") from error
    return found


def wave(path: Path, limits: Limits) -> Wave:
    """Read one wavefront's file. CaptureError if it is damaged."""
    found = mapping(path, limits)
    inner = found.get("wave")
    if not isinstance(inner, dict):
        raise CaptureError(f"{path}: describes no wavefront; the file is damaged")
    facts = {
        **{name: _whole(path, inner, name) for name in ("cu", "begin", "end")},
        **{name: _whole(path, found, name) for name in ("duration", "num_insts", "num_stitched")},
    }
    if facts["begin"] is None or facts["end"] is None:
        raise CaptureError(f"{path}: does not say when the wavefront began and ended; the file is damaged")
    return Wave(
        facts,
        integers(path, inner.get("instructions"), 5, "instructions"),
        integers(path, inner.get("timeline"), 2, "states"),
        _waits(path, inner.get("waitcnt")),
        tuple(name for name in ("instructions", "timeline", "waitcnt") if inner.get(name) is None),
    )


def _waits(path: Path, rows: Any) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return lines that waited, the number of lines each waited for, and the concatenation of those lines."""
    none = np.empty(0, np.int64)
    if rows is None or rows == []:
        return none, none, none
    try:
        lines, dependencies = zip(*rows, strict=True)
        counts = list(map(len, dependencies))
        flat = list(itertools.chain.from_iterable(dependencies))
    except (TypeError, ValueError) as error:
        raise CaptureError(f"{path}: what its wavefront waited for is not in the expected form") from error
    waiting = integers(path, [[line] for line in lines], 1, "waits")[:, 0]
    return waiting, np.asarray(counts, np.int64), integers(path, flat, 2, "awaited lines")[:, 0]


def occupancy(path: Path, limits: Limits) -> pl.DataFrame:
    """Read starts and ends of every wavefront on the traced shader engines.

    Columns: shader_engine, time, cu, simd, slot (int64), started (bool), source_kernel_id (int64, the decoder's own
    number, which differs between folders) and kernel (its name; null if the decoder could not name it).
    """
    found = mapping(path, limits)
    names = found.get("dispatches") or {}
    if not isinstance(names, dict):
        raise CaptureError(f"{path}: its kernels are not in the expected form")
    frames = []
    for key, rows in found.items():
        if key in ("dispatches", "version"):
            continue
        table = integers(path, rows, 6, "occupancy events")
        _within(path, len(table), limits)
        frames.append(_engine_frame(path, key, table, _OCCUPANCY))
    frame = pl.concat(frames) if frames else _engine_frame(path, "0", np.empty((0, 6), np.int64), _OCCUPANCY)
    named = {
        int(number): name
        for number, name in names.items()
        # The decoder's placeholder for code without a symbol: "1 / 0x4900".
        if number.isdecimal() and len(number) < 19 and isinstance(name, str) and " / 0x" not in name
    }
    schema = {"source_kernel_id": pl.Int64(), "kernel": pl.String()}
    kernels = pl.DataFrame(list(named.items()), schema=schema, orient="row")
    frame = frame.with_columns(pl.col("started") == 1)
    return frame.join(kernels, on="source_kernel_id", how="left", maintain_order="left")


_OCCUPANCY: Final = ("time", "cu", "simd", "slot", "started", "source_kernel_id")


def wave_states(path: Path, limits: Limits, *, state: int) -> pl.DataFrame:
    """Count the traced wavefronts in each state over time: time (cycles), state (its name), waves."""
    found = mapping(path, limits)
    times, counts = found.get("time"), found.get("state")
    if not isinstance(times, list) or not isinstance(counts, list) or len(times) != len(counts):
        raise CaptureError(f"{path}: times and counts differ in number; the file is damaged")
    table = integers(path, [times, counts] if times else None, len(times), "times and counts")
    time_row, count_row = table if times else (np.empty(0, np.int64), np.empty(0, np.int64))
    return pl.DataFrame({"time": time_row, "state": [WAVE_STATES[state]] * len(times), "waves": count_row})


def realtime(path: Path, limits: Limits) -> pl.DataFrame:
    """Read pairs of readings of the shader clock and the constant reference clock.

    Columns: shader_engine, gfx_clock (cycles), realtime_clock (ticks with a separate epoch), frequency (ticks per
    second; null if not stated).
    """
    found = mapping(path, limits)
    metadata = found.get("metadata")
    frequency = metadata.get("frequency") if isinstance(metadata, dict) else None
    frames = [
        _engine_frame(path, key.removeprefix("SE"), integers(path, rows, 2, "clock readings"), _REALTIME)
        for key, rows in found.items()
        if key.startswith("SE")
    ]
    frame = pl.concat(frames) if frames else _engine_frame(path, "0", np.empty((0, 2), np.int64), _REALTIME)
    stated = frequency if type(frequency) is int and 0 < frequency < 1 << 62 else None
    return frame.with_columns(pl.lit(stated, pl.Int64).alias("frequency"))


_REALTIME: Final = ("gfx_clock", "realtime_clock")


def perf_counters(path: Path, limits: Limits, *, engine: str) -> pl.DataFrame:
    """Read streamed counters of one shader engine: shader_engine, time, counter_0 … counter_3, cu, bank (int64)."""
    table = integers(path, mapping(path, limits).get("data"), 7, "counter readings")
    _within(path, len(table), limits)
    return _engine_frame(path, engine, table, _PERF_COUNTERS)


def source_files(path: Path, limits: Limits) -> pl.DataFrame:
    """List the source files in `snapshots.json`: source (path at build time), file (name of its copy)."""
    rows: list[tuple[str, str]] = []
    pending: list[tuple[str, Any, int]] = [("", mapping(path, limits), 0)]
    while pending:
        at, node, depth = pending.pop()
        if isinstance(node, str):
            rows.append((at, node))
        elif not isinstance(node, dict) or depth > limits.depth:
            raise CaptureError(f"{path}: its tree of source files is not in the expected form")
        else:
            pending += [(f"{at.rstrip('/')}/{name}" if at else name, child, depth + 1) for name, child in node.items()]
    return pl.DataFrame(sorted(rows), schema={"source": pl.String(), "file": pl.String()}, orient="row")


def _engine_frame(path: Path, engine: str, table: npt.NDArray[np.int64], names: Sequence[str]) -> pl.DataFrame:
    if not engine.isdecimal() or len(engine) > 9:
        raise CaptureError(f"{path}: {engine[:40]!r} is no shader engine's number; the file is damaged")
    columns = {name: table[:, at] for at, name in enumerate(names)}
    return pl.DataFrame({"shader_engine": np.full(len(table), int(engine), np.int64), **columns})


def _whole(path: Path, found: Mapping[str, Any], name: str) -> int | None:
    value = found.get(name)
    if value is not None and (type(value) is not int or not -(1 << 62) < value < 1 << 62):
        raise CaptureError(f"{path}: its {name} is not a whole number of cycles or counts; the file is damaged")
    return value


def _within(path: Path, count: int, limits: Limits) -> None:
    if count > limits.events:
        raise CaptureError(f"{path}: more than {limits.events} records; raise the limit on events")


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0][:200]


_NAMED: Final = 5


class Folder(Findings):
    """Evidence about one folder, with the details read from it."""

    def __init__(self, path: Path, limits: Limits) -> None:
        super().__init__(path.name)
        self.path, self.limits = path, limits
        self.details: dict[str, pl.DataFrame] = {}

    def names(self) -> list[str]:
        """List the names of all files, in order."""
        return [entry.path.name for entry in readable_entries(self.path)]

    def optional(
        self, name: str, parse: Callable[[Path, Limits], Any], item: str, *, required: bool = False
    ) -> Any | None:
        """Return the result of `parse` for the file; None, reported absent or invalid, if it is unusable."""
        path = inside(self.path, name)
        if path is None:
            self.say(item, "absent", f"the folder has no {name}")
            return None
        try:
            return parse(path, self.limits)
        except CaptureError as error:
            if required:
                raise
            self.say(item, "invalid", str(error).removeprefix(f"{path}: "))
            return None

    def take(self, name: str, parse: Callable[[Path, Limits], pl.DataFrame], item: str) -> pl.DataFrame | None:
        """Parse a file whose rows are all used; see `optional`."""
        frame: pl.DataFrame | None = self.optional(name, parse, item)
        if frame is not None:
            self.took(name, frame.height)
        return frame

    def detail(
        self, name: str, item: str, parse: Callable[[Path, Limits], pl.DataFrame], schema: pl.Schema
    ) -> pl.DataFrame:
        """Read the detail `item` from one file, without rows if there is no file."""
        frame = self.take(name, parse, item)
        if frame is not None:
            self.say(item, "present", rows=frame.height)
        self.details[item] = schema.to_frame() if frame is None else frame
        return self.details[item]

    def gather(self, detail: str, item: str, frames: Sequence[pl.DataFrame], schema: pl.Schema, lacking: str) -> None:
        """Combine a detail from several files, and report its number of rows or the reason if there are none."""
        self.details[detail] = pl.concat([schema.to_frame(), *frames])
        self.have(item, self.details[detail].height, lacking)


def some(names: Sequence[str]) -> str:
    """List the first of many names, and the number of remaining ones."""
    more = len(names) - _NAMED
    return "; ".join(names[:_NAMED]) + (f"; and {more} more" if more > 0 else "")
