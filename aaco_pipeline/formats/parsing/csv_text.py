"""Read profilers' CSV files as frames of text columns, with limits and without loss of precision.

Every field is first read as text, because a parser would misinterpret some numbers: 64-bit masks, times beyond 2^53,
quoted numbers. The functions below build expressions that convert such a column exactly, with null for anything that is
not such a number.
"""

import csv
import io
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import Limits
from aaco_pipeline.formats.parsing.compression import DAMAGED, open_decompressed, read_decompressed
from aaco_pipeline.lake.validation import to_contract

#: No profiler writes a longer header; the widest seen, with 2,718 counters, takes 61 kB.
_LONGEST_HEADER: Final = 1 << 20
_PROBED_BYTES: Final = 4096
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_NUL: Final = b"\0"


def plain_name(name: str) -> str:
    """Normalize a column's name: lower case, with `_` for blanks and `-`."""
    return name.strip().lower().replace("-", "_").replace(" ", "_")


def header_of(path: Path) -> tuple[str, ...] | None:
    """Return the plain names in a CSV file's first record, or None if it cannot be a header.

    Reads a few KB, and more only for a wide header.
    """
    try:
        with open_decompressed(path) as stream:
            head = stream.read(_PROBED_BYTES)
            while b"\n" not in head and len(head) < _LONGEST_HEADER and (more := stream.read(len(head))):
                head += more
    except (CaptureError, *DAMAGED):
        return None
    names = first_record(decoded(head).split(b"\n", 1)[0])
    return None if names is None else tuple(plain_name(name) for name in names)


def decoded(content: bytes) -> bytes:
    """Return the content as UTF-8 without a byte-order mark, even if a spreadsheet saved it as UTF-16."""
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return content.decode("utf-16", errors="replace").encode()
    return content.removeprefix(_BYTE_ORDER_MARK)


def first_record(line: bytes) -> list[str] | None:
    """Return the names in a header line; None if it is not one: a single name, binary data, broken quoting."""
    if _NUL in line or len(line) > _LONGEST_HEADER:
        return None
    try:
        names = next(csv.reader([line.decode()], strict=True), [])
    except (csv.Error, UnicodeDecodeError):
        return None
    return names if len(names) > 1 and all(name.strip() for name in names) else None


#: Later times leave no room for arithmetic in int64; no capture's clock reaches them.
LATEST_NS: Final = 2**62


@dataclass(frozen=True)
class TextTable:
    """One CSV file: its column names as written, and its records as text, columns named by `plain_name`.

    `cut` is True if the file ends within a record, which is dropped.
    """

    path: Path
    header: tuple[str, ...]
    frame: pl.DataFrame
    cut: bool

    def text(self, *names: str) -> pl.Expr:
        """Read the first of `names` that the file has, stripped; null if the field is empty or no name is found."""
        found = next((name for name in names if name in self.frame.columns), None)
        if found is None:
            return pl.lit(None, pl.String)
        stripped = pl.col(found).str.strip_chars()
        return pl.when(stripped != "").then(stripped)

    def whole(self, *names: str) -> pl.Expr:
        """Read the first of `names` as int64; see `whole_number`."""
        return whole_number(self.text(*names))

    def unsigned(self, *names: str) -> pl.Expr:
        """Read the first of `names` as uint64, decimal or hexadecimal with 0x; null for anything else."""
        text = self.text(*names)
        hexadecimal = text.str.to_lowercase().str.extract(r"^0x([0-9a-f]{1,16})$", 1)
        return pl.coalesce(
            _integral(text).cast(pl.UInt64, strict=False),
            hexadecimal.str.to_integer(base=16, dtype=pl.UInt64, strict=False),
        )

    def time(self, *names: str) -> pl.Expr:
        """Read the first of `names` as whole nanoseconds; null if it is invalid or outside any clock's range."""
        value = self.whole(*names)
        return pl.when(value.is_between(0, LATEST_NS, closed="left")).then(value)

    def surplus(self, known: frozenset[str]) -> tuple[str, ...]:
        """List the columns, as written, whose plain names are not among `known`."""
        return tuple(name for name in self.header if plain_name(name) not in known)

    def require(self, kind: str, *columns: str) -> None:
        """Raise CaptureError for the first of `columns` that the file lacks; alternatives are separated by `|`."""
        for column in columns:
            if not any(name in self.frame.columns for name in column.split("|")):
                written = column.split("|")[0]
                raise CaptureError(f"{self.path}: {kind} without the column {written}; export the table again, whole")


def whole_number(text: pl.Expr) -> pl.Expr:
    """Convert text to int64; a zero fraction is accepted, and any other text becomes null."""
    return _integral(text).cast(pl.Int64, strict=False)


def number(text: pl.Expr) -> pl.Expr:
    """Convert text to float64; null for anything but a finite number."""
    value = text.str.strip_chars().cast(pl.Float64, strict=False)
    return pl.when(value.is_finite()).then(value)


def kernel_name(text: pl.Expr) -> pl.Expr:
    """Strip the suffixes that profilers append to a kernel's name for its descriptor: `.kd`, `[clone .kd]`."""
    return text.str.replace(r"(?:\s*\[clone \.kd\]|\s*\(\.kd\)|\.kd)+$", "")


def read_text(path: Path, limits: Limits) -> TextTable:
    """Read a file completely; CaptureError if it is not a CSV table or exceeds `limits`.

    A truncated last record is dropped and reported in `cut`; blank lines are ignored.
    """
    content = decoded(read_decompressed(path, limits)).replace(b"\r\n", b"\n")
    if len(content) > limits.line_bytes:
        _require_lines(path, content, limits)
    if not content.strip():
        raise CaptureError(f"{path}: the file is empty; copy it again")
    content, cut = _balanced(content)
    header = first_record(content.split(b"\n", 1)[0])
    if header is None:
        raise CaptureError(f"{path}: not a CSV table; expected a line of column names")
    if len(header) > limits.columns:
        raise CaptureError(f"{path}: more than {limits.columns} columns; not a profiler's table")
    names = [plain_name(name) for name in header]
    repeated = next((name for name, times in Counter(names).items() if times > 1), None)
    if repeated is not None:
        raise CaptureError(f"{path}: more than one column {repeated}; export the table again")
    try:
        frame = pl.read_csv(
            io.BytesIO(content), has_header=True, new_columns=names, infer_schema=False, encoding="utf8-lossy"
        )
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, ValueError, OverflowError) as error:
        reason = (str(error).splitlines() or ["unknown"])[0]
        raise CaptureError(f"{path}: a damaged CSV table: {reason}; copy or export it again") from error
    if frame.columns != names:
        raise CaptureError(f"{path}: a damaged CSV table: its first line is not one of column names; export it again")
    if frame.height and frame.to_series(0).null_count():
        frame = frame.filter(~pl.all_horizontal(pl.all().is_null()))  # blank lines
    if frame.height > limits.events:
        raise CaptureError(f"{path}: more than {limits.events} rows; raise the limit or capture less")
    if not content.endswith(b"\n") and frame.height and not cut:
        cut = _ends_within_record(frame)
        frame = frame.head(-1) if cut else frame
    return TextTable(path, tuple(name.strip() for name in header), frame, cut)


def _integral(text: pl.Expr) -> pl.Expr:
    return text.str.strip_chars().str.replace(r"\.0*$", "")


def _require_lines(path: Path, content: bytes, limits: Limits) -> None:
    ends = np.flatnonzero(np.frombuffer(content, np.uint8) == ord("\n"))
    longest = int(np.diff(ends, prepend=-1, append=len(content)).max())
    if longest > limits.line_bytes:
        raise CaptureError(f"{path}: a line of more than {limits.line_bytes} bytes; not a profiler's table")


def _balanced(content: bytes) -> tuple[bytes, bool]:
    """Return the content up to the last record with closed quotes, and whether anything was cut off.

    In an intact file the number of quotes is even, because a quote within a field is doubled.
    """
    quotes = content.count(b'"')
    end = len(content)
    while quotes % 2:
        start = content.rfind(b"\n", 0, content.rfind(b'"', 0, end)) + 1
        quotes -= content.count(b'"', start, end)
        end = start
    return content[:end], end < len(content)


def _ends_within_record(frame: pl.DataFrame) -> bool:
    """Return whether the last record, without a line end, lacks fields or the end of its last number.

    A truncated number still parses; a time below the previous row's reveals it.
    """
    last = frame.to_series(-1)
    if last[-1] is None:
        return True
    timed = re.search(r"timestamp|ns$", frame.columns[-1]) is not None
    return timed and frame.height > 1 and len(last[-1]) < len(last[-2] or "")


def statistics_rows(table: TextTable, domain: str) -> pl.DataFrame:
    """Build the table `reported_statistics` of one file, without rows that lack a name or a number of calls."""

    def rounded(name: str) -> pl.Expr:
        text = table.text(name)
        return pl.coalesce(whole_number(text), number(text).round().cast(pl.Int64, strict=False))

    name = table.text("name")
    rows = table.frame.select(
        source=pl.lit(table.path.name),
        domain=pl.lit(domain),
        name=kernel_name(name) if domain == "kernel" else name,
        call_count=table.whole("calls"),
        total_ns=rounded("totaldurationns"),
        mean_ns=rounded("averagens"),
        min_ns=rounded("minns"),
        max_ns=rounded("maxns"),
        standard_deviation_ns=rounded("stddev"),
        share_ratio=number(table.text("percentage")) / 100,
    )
    return to_contract("reported_statistics", rows.drop_nulls(("name", "call_count")))
