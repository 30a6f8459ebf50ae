"""Open a profiler's SQLite database safely, and fetch its integer columns quickly.

Integers leave SQLite as JSON text, thousands of rows at a time, and Polars parses them: about half the cost of one
Python object per cell. That text is exact only for integers, so real numbers are fetched individually. Columns are
looked up by name, so a database with another schema provides the columns it has. Views are never read: in rocprofv3's
databases they drop rows and are missing in several releases.
"""

import os
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import polars as pl

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import Limits
from aaco_pipeline.formats.parsing.compression import DAMAGED, Unpacked, open_decompressed
from aaco_pipeline.formats.parsing.regular_files import open_regular

MAGIC: Final = b"SQLite format 3\0"
_HEADER_BYTES: Final = 100
_COPY_BYTES: Final = 4 << 20
_CHUNK_ROWS: Final = 16_384
#: Upper bound on a chunk of rows as text, 64 columns of 20 digits; SQLite's string limit must allow it.
_CHUNK_BYTES: Final = _CHUNK_ROWS * 64 * 21
#: Raised by SQLite's module for damaged databases; ValueError for messages and names that are not text.
_FAILURES: Final = (sqlite3.Error, OverflowError, MemoryError, ValueError)
#: Magic numbers of the rollback journal, and of the write-ahead log in either byte order.
_JOURNAL_MAGIC: Final = (b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7",)
_LOG_MAGIC: Final = (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")


@dataclass(frozen=True)
class TableSet:
    """The tables of one process by kind (`kernel_dispatch`, …), each with its column names.

    A rocpd table is `rocpd_<kind><suffix>`, one suffix per process; a merged database has several. `metadata` are the
    tags of the set, `guid` the process's identifier in the capture. For other programs' databases the kinds are the
    table names, without `prefix` and suffix.
    """

    suffix: str
    guid: str | None
    metadata: Mapping[str, str]
    tables: Mapping[str, frozenset[str]]
    prefix: str = "rocpd_"

    def table(self, kind: str) -> str:
        """Return the quoted name of the table of a kind."""
        return quoted(f"{self.prefix}{kind}{self.suffix}")

    def has(self, kind: str, *columns: str) -> bool:
        """Return whether the set has the table of a kind with these columns."""
        return kind in self.tables and set(columns) <= self.tables[kind]


class Database:
    """A database open for reading; every method raises CaptureError if the file is damaged.

    `plain` is the open file: `path` itself, or an unpacked copy.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path, plain: Path, limits: Limits) -> None:
        self._connection = connection
        self.path, self.plain, self.limits = path, plain, limits
        self._counts: dict[str, int] = {}

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Return all rows of a query; for small tables."""
        try:
            return self._connection.execute(sql).fetchall()
        except _FAILURES as error:
            raise damaged(self.path, error) from error

    def records(self, tables: TableSet, kind: str, *columns: str, where: str = "1") -> list[dict[str, Any]]:
        """Read a small table as dictionaries with every requested column; a missing column is always None."""
        present = [name for name in columns if tables.has(kind, name)]
        if not present:
            return []
        listed = ", ".join(map(quoted, present))
        rows = self.rows(f"SELECT {listed} FROM {tables.table(kind)} WHERE {where} ORDER BY rowid")
        absent = dict.fromkeys(columns)
        return [{**absent, **dict(zip(present, row, strict=True))} for row in rows]

    def count(self, table_set: TableSet, kind: str) -> int:
        """Count rows of the table of a kind, 0 if it is missing."""
        if kind not in table_set.tables:
            return 0
        table = table_set.table(kind)
        if table not in self._counts:  # counting scans the entire table
            self._counts[table] = int(self.rows(f"SELECT count(*) FROM {table}")[0][0])
        return self._counts[table]

    def columns(self, table: str) -> frozenset[str]:
        """Return the names of a table's columns, empty if the table does not exist."""
        return frozenset(str(row[1]) for row in self.rows(f"PRAGMA table_info({quoted(table)})"))

    def integers(self, table_set: TableSet, kind: str, columns: Mapping[str, str]) -> pl.DataFrame:
        """Read integer columns of a kind's table in its own order, all int64.

        `columns` maps the wanted name to a column of the table, or to `event.<column>` of its event. A column missing
        from the table is taken from its track (schema 4), or is null throughout.
        """
        schema = pl.Schema(dict.fromkeys(columns, pl.Int64()))
        if kind not in table_set.tables:
            return schema.to_frame()
        source, found = _joined(table_set, kind, columns)
        if not found:
            return pl.DataFrame(
                {name: pl.Series(name, [None] * self.count(table_set, kind), pl.Int64) for name in columns}
            )
        table = table_set.table(kind)
        following = (
            f"SELECT max(r) FROM (SELECT rowid AS r FROM {table} WHERE rowid > ? ORDER BY rowid LIMIT {_CHUNK_ROWS})"
        )
        query = (
            f"SELECT json_group_array(json_array({', '.join(found.values())})) FROM {source} "
            "WHERE t.rowid > ? AND t.rowid <= ?"
        )
        frames: list[pl.DataFrame] = [pl.Schema(dict.fromkeys(found, pl.Int64())).to_frame()]
        after = -(2**63)
        while (last := self._one(following, (after,))) is not None:
            frames.append(self._parsed(self._one(query, (after, last)), list(found), kind))
            after = last
        frame = pl.concat(frames)
        if frame.height != (expected := self.count(table_set, kind)):
            raise CaptureError(
                f"{self.path}: {kind} has {expected} rows and {frame.height} with their events: ids are not unique, "
                "the file is damaged"
            )
        return frame.select(pl.col(name) if name in found else pl.lit(None, pl.Int64).alias(name) for name in columns)

    def reals(self, table_set: TableSet, kind: str, column: str) -> pl.Series:
        """Read one column of real numbers in the table's own order; null throughout if the column is missing."""
        if not table_set.has(kind, column):
            return pl.Series(column, [None], pl.Float64).new_from_index(0, self.count(table_set, kind))
        listed = self.rows(f"SELECT {quoted(column)} FROM {table_set.table(kind)} ORDER BY rowid")
        try:
            return pl.Series(column, [value for (value,) in listed], dtype=pl.Float64)
        except (TypeError, OverflowError, pl.exceptions.PolarsError) as error:
            raise CaptureError(f"{self.path}: a value of {kind} is not a number; the file is damaged") from error

    def _one(self, sql: str, parameters: Sequence[int]) -> Any:
        try:
            return self._connection.execute(sql, parameters).fetchone()[0]
        except _FAILURES as error:
            raise damaged(self.path, error) from error

    def _parsed(self, text: str, names: list[str], kind: str) -> pl.DataFrame:
        if '"' in text:  # text instead of integers; nothing else in such JSON is quoted
            raise CaptureError(f"{self.path}: a column of {kind} that holds integers holds text; the file is damaged")
        lines = text[2:-2].replace("],[", "\n").encode()
        try:
            return pl.read_csv(
                lines, has_header=False, schema=dict.fromkeys(names, pl.Int64), null_values="null", quote_char=None
            )
        except pl.exceptions.PolarsError as error:
            reason = str(error).splitlines()[0]
            raise CaptureError(f"{self.path}: a value of {kind} is not an integer: {reason}") from error


def damaged(path: Path, error: BaseException) -> CaptureError:
    """Build the error for a database that SQLite cannot read."""
    return CaptureError(f"{path}: SQLite cannot read it: {error}; copy the file again or capture again")


def connected(path: Path) -> sqlite3.Connection:
    """Open the database at `path` read-only, executing nothing named in its schema. sqlite3.Error propagates.

    The caller has checked that the path is a regular file and that no link leads to it.
    """
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
    try:
        # No function named in a hostile schema runs, and content that does not fit into its page is an error.
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
        # A confined reader may not write to the folder of SQLite's temporary files.
        connection.execute("PRAGMA temp_store = MEMORY")
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def opened(path: Path, limits: Limits) -> Iterator[Database]:
    """Open the database at `path`, unpacking gzip to a temporary file. Never writes to the capture.

    CaptureError if it is not an SQLite database, is truncated, still being written, or over the limits.
    """
    _refuse_unfinished(path)
    with ExitStack() as stack:
        plain = _decompressed(path, limits, stack)
        before = _identity(path)
        _check_header(path, plain, limits)
        try:
            connection = connected(plain)
        except sqlite3.Error as error:
            raise damaged(path, error) from error
        with closing(connection):
            # Text from other programs is not always UTF-8.
            connection.text_factory = lambda raw: str(raw, "utf-8", "replace")
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, max(limits.line_bytes, _CHUNK_BYTES))
            yield Database(connection, path, plain, limits)
        if _identity(path) != before:
            raise CaptureError(f"{path}: changed while it was read; copy it after the profiled process has ended")


def _identity(path: Path) -> tuple[int, ...]:
    try:
        with open_regular(path) as stream:
            status = os.fstat(stream.fileno())
    except OSError as error:
        raise CaptureError(f"{path}: cannot be read: {error.strerror or error}") from error
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _refuse_unfinished(path: Path) -> None:
    """Raise CaptureError if a journal next to the database contains changes not yet written to it."""
    for ending, magics in (("-journal", _JOURNAL_MAGIC), ("-wal", _LOG_MAGIC)):
        beside = path.with_name(path.name + ending)
        try:
            with open_regular(beside) as stream:
                start = stream.read(8)
        except (OSError, CaptureError):
            continue
        if start.startswith(magics):
            raise CaptureError(
                f"{path}: {beside.name} beside it shows that it was not finished; copy both after the profiled process "
                "has ended, or capture again"
            )


def _decompressed(path: Path, limits: Limits, stack: ExitStack) -> Path:
    """Return a path that SQLite can read: the file itself, or an unpacked copy that lives as long as `stack`."""
    taken = 0
    try:
        with open_decompressed(path, limits) as stream:
            if not isinstance(stream, Unpacked):
                return path
            target = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aaco_rocpd_")), "decompressed.db")
            with target.open("wb") as copy:
                while piece := stream.read(_COPY_BYTES):
                    taken += len(piece)
                    if taken > limits.file_bytes:
                        raise CaptureError(f"{path}: more than {limits.file_bytes} bytes when unpacked; not read")
                    copy.write(piece)
    except DAMAGED as error:
        raise CaptureError(f"{path}: cannot be unpacked: {error}; copy the file again") from error
    return target


def _check_header(path: Path, plain: Path, limits: Limits) -> None:
    try:
        with open_regular(plain) as stream:
            header = stream.read(_HEADER_BYTES)
            size = os.fstat(stream.fileno()).st_size
    except OSError as error:
        raise CaptureError(f"{path}: cannot be read: {error.strerror or error}") from error
    if not header.startswith(MAGIC):
        raise CaptureError(f"{path}: not an SQLite database, or an encrypted one")
    if size > limits.file_bytes:
        raise CaptureError(f"{path}: more than {limits.file_bytes} bytes; not read")
    page_bytes = int.from_bytes(header[16:18], "big")
    page_bytes = 65536 if page_bytes == 1 else page_bytes
    stated = page_bytes * int.from_bytes(header[28:32], "big")
    # The count is only valid if the last program to change the file maintains it.
    if (header[24:28] == header[92:96] and size < stated) or len(header) < _HEADER_BYTES:
        raise CaptureError(f"{path}: cut off: {size} bytes of {stated}; copy the file again")


def _joined(table_set: TableSet, kind: str, columns: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Return the tables to read from (`t`, its event `e` and its track `k`) and the SQL of each column found."""
    source = f"{table_set.table(kind)} AS t"
    own = table_set.tables[kind]
    found: dict[str, str] = {}
    needed: set[str] = set()
    for name, wanted in columns.items():
        column = wanted.removeprefix("event.")
        if column != wanted:
            if "event_id" in own and table_set.has("event", "id", column):
                found[name] = f"e.{quoted(column)}"
                needed.add("e")
        elif column in own:
            found[name] = f"t.{quoted(column)}"
        elif "track_id" in own and table_set.has("track", "id", column):
            found[name] = f"k.{quoted(column)}"
            needed.add("k")
    if "e" in needed:
        source += f" LEFT JOIN {table_set.table('event')} AS e ON e.id = t.event_id"
    if "k" in needed:
        source += f" LEFT JOIN {table_set.table('track')} AS k ON k.id = t.track_id"
    return source, found


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
