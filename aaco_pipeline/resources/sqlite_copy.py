"""Rewrite a capture's SQLite database: every row of its tables, without secrets and without anything executable.

Kept are the tables with their column names and types, all numbers, times, identifiers and names, and the row order,
even in tables that no reader knows yet. Names are searched for known secrets; free text, command lines and environments
pass through all of `aaco_pipeline.formats.parsing.redaction`. Dropped are triggers, views, generated columns, indexes,
checks, defaults, tables of extensions, binary values, and free pages. `aaco_pipeline.formats.rocpd` reads the copy.
"""

import errno
import re
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import Limits
from aaco_pipeline.formats.parsing.redaction import (
    COMMANDS,
    ENVIRONMENTS,
    NAMES,
    may_hold_secrets,
    redacted_text,
    redacted_whole,
    safe_command,
    safe_environment_block,
    safe_environment_text,
    safe_prose,
    safe_setting,
    safe_words,
)
from aaco_pipeline.formats.parsing.sqlite_database import damaged, opened

#: Columns with identifiers and names: a kernel's name may look unusual, and is redacted only if it contains a known
#: token.
_NAMED_COLUMNS: Final = frozenset({"guid", "uuid", "string", "symbol", "category", "type", "level", "kind", "hash"})
_NAMED_ENDINGS: Final = ("name", "_id", "_type", "uri", "units", "arch")
_LONGEST_TEXT: Final = 1 << 20
_MOST_TABLES: Final = 10_000
_MOST_COLUMNS: Final = 2_000
_BATCH: Final = 2_000
#: The progress handler runs after this many virtual-machine instructions of SQLite.
_STEPS: Final = 50_000
_SECONDS: Final = 60.0
_SECONDS_PER_BYTE: Final = 60.0 / (1 << 30)
#: A copy this much larger than its source must have read the same pages twice.
_GROWTH: Final = 4
_LEAST_GROWTH_BYTES: Final = 64 << 20
_MESSAGE_BYTES: Final = 200
_ENCODINGS: Final = {b"\0\0\0\2": "UTF-16le", b"\0\0\0\3": "UTF-16be"}
_FAILURES: Final = (sqlite3.Error, OverflowError, MemoryError, ValueError)
_FUNCTIONS: Final = frozenset({"typeof", "length", "substr", "min", "max", "count", "coalesce"})
_WRITES: Final = frozenset(
    {
        *(sqlite3.SQLITE_SELECT, sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_READ, sqlite3.SQLITE_INSERT),
        *(sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE, sqlite3.SQLITE_CREATE_TABLE),
    }
)


def copy_database(source: Path, target: Path, limits: Limits) -> int:
    """Rewrite the database `source` as `target`; return the number of redacted or cut texts and of dropped blobs.

    `source` may be gzip-compressed; `target` must not exist yet and is uncompressed. Raises CaptureError in one line if
    the source is not a database, is damaged, unfinished or over the limits, and OSError if the target cannot be
    written.
    """
    try:
        with opened(source, limits) as database:
            return _Copy(source, database.plain, target, limits).made()
    except BaseException:
        target.unlink(missing_ok=True)
        raise


@dataclass
class _Column:
    """A column to copy, and how its values are treated."""

    name: str
    kind: str
    is_key: bool = False
    has_text: bool = False
    has_blobs: bool = False
    is_long: bool = False
    #: True if all its strings are equal.
    is_constant: bool = False
    changes: bool = False

    @property
    def quoted(self) -> str:
        return _quoted(self.name)

    @property
    def text(self) -> str:
        """Return the SQL expression of the value to inspect, cut to the maximum text length."""
        quoted = self.quoted
        return (
            f"CASE WHEN length({quoted}) > {_LONGEST_TEXT} THEN substr({quoted}, 1, {_LONGEST_TEXT}) ELSE {quoted} END"
        )

    def copied(self, number: int) -> str:
        """Return the SQL expression of the value to store."""
        value = self.text if self.is_long else self.quoted
        if self.changes:
            value = f"coalesce((SELECT clean FROM temp.changed WHERE place = {number} AND dirty = {value}), {value})"
        return f"CASE WHEN typeof({self.quoted}) <> 'blob' THEN {value} END" if self.has_blobs else value


@dataclass
class _Copy:
    source: Path
    plain: Path
    target: Path
    limits: Limits
    hits: int = 0
    stopped: str | None = None
    rows: int = 0
    _connection: sqlite3.Connection = field(init=False)

    def made(self) -> int:
        """Make the copy; return the number of changes."""
        try:
            with closing(sqlite3.connect(_uri(self.target), isolation_level=None, uri=True)) as self._connection:
                self._prepare()
                tables = {name: columns for name in self._tables() if (columns := self._columns(name))}
                # All tables are declared before the first row: readers recognize a database by the names at its
                # beginning.
                for name, columns in tables.items():
                    declared = (f"{one.quoted} {'INTEGER PRIMARY KEY' if one.is_key else one.kind}" for one in columns)
                    self._ask(f"CREATE TABLE main.{_quoted(name)} ({', '.join(declared)})")
                for name, columns in tables.items():
                    self._copy_rows(_quoted(name), columns)
                self._ask("COMMIT")
        except _FAILURES as error:
            raise self._told(error) from error
        return self.hits

    def _prepare(self) -> None:
        with self.plain.open("rb") as stream:
            encoding = _ENCODINGS.get(stream.read(60)[56:])
        connection = self._connection
        connection.text_factory = lambda raw: str(raw, "utf-8", "surrogateescape")
        if encoding is not None:
            connection.execute(f"PRAGMA encoding = '{encoding}'")
        # SQLite chose its folder for temporary files before this process was confined; it is not writable now.
        for setting in (
            *("journal_mode = OFF", "synchronous = OFF", "temp_store = MEMORY"),
            *("trusted_schema = OFF", "cell_size_check = ON"),
        ):
            connection.execute(f"PRAGMA {setting}").fetchall()
        connection.execute("CREATE TEMP TABLE changed (place, dirty, clean, PRIMARY KEY (place, dirty)) WITHOUT ROWID")
        connection.execute("ATTACH ? AS capture", (f"{_uri(self.plain)}?mode=ro&immutable=1",))
        for limit, value in (
            (sqlite3.SQLITE_LIMIT_LENGTH, self.limits.line_bytes),
            (sqlite3.SQLITE_LIMIT_ATTACHED, 1),
            (sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH, 1),
            (sqlite3.SQLITE_LIMIT_WORKER_THREADS, 0),
        ):
            connection.setlimit(limit, value)
        connection.set_authorizer(_is_allowed)
        connection.set_progress_handler(self._watch(), _STEPS)
        self._ask("BEGIN")

    def _watch(self) -> Callable[[], int]:
        size = self.plain.stat().st_size
        seconds = _SECONDS + size * _SECONDS_PER_BYTE
        # CPU time of this thread, in which SQLite runs: a busy machine is not the database's fault.
        end = time.thread_time() + seconds
        most = _GROWTH * size + _LEAST_GROWTH_BYTES

        def watch() -> int:
            if time.thread_time() > end:
                self.stopped = f"copying its tables takes longer than {seconds:.0f} s of CPU time"
            elif self.target.stat().st_size > most:
                self.stopped = f"its {size} bytes become more than {most}"
            return int(self.stopped is not None)

        return watch

    def _tables(self) -> list[str]:
        """Return the names of its plain tables, excluding views and extensions' tables without pages of their own."""
        listed = self._ask("SELECT type, name, rootpage, sql FROM capture.sqlite_master ORDER BY rowid")
        names = [
            str(name)
            for kind, name, page, sql in listed
            if kind == "table" and isinstance(page, int) and page > 0 and str(sql).startswith("CREATE TABLE ")
            if not str(name).lower().startswith("sqlite_") and not redacted_text(str(name))[1]
        ]
        if len(names) > _MOST_TABLES:
            raise CaptureError(f"{self.source}: more than {_MOST_TABLES} tables; not a profiler's database")
        return names

    def _copy_rows(self, table: str, columns: Sequence[_Column]) -> None:
        if not self._look(table, columns):
            return
        for number, column in enumerate(columns):
            if column.has_text:
                self._clean_column(table, number, column, columns)
        named = ", ".join(one.quoted for one in columns)
        copied = ", ".join(one.copied(number) for number, one in enumerate(columns))
        self._ask(f"INSERT INTO main.{table} ({named}) SELECT {copied} FROM capture.{table} NOT INDEXED")
        if any(one.changes for one in columns):
            self._ask("DELETE FROM temp.changed")

    def _columns(self, table: str) -> list[_Column]:
        listed = self._ask(f"PRAGMA capture.table_xinfo({_quoted(table)})")
        if len(listed) > _MOST_COLUMNS:
            raise CaptureError(f"{self.source}: a table of {len(listed)} columns; not a profiler's database")
        keys = [row for row in listed if row[5]]
        return [
            _Column(name, _affinity(kind), is_key=[name] == [row[1] for row in keys] and kind.upper() == "INTEGER")
            for _, name, kind, _, _, _, hidden in listed
            if not hidden and not redacted_text(name)[1]
        ]

    def _look(self, table: str, columns: Sequence[_Column]) -> int:
        """Count the table's rows, and note which columns hold text, long text and binary values."""
        asked = ["count(*)"]
        for one in columns:
            # The largest value reveals the type: SQLite sorts numbers before text before blobs.
            asked.append(f"typeof(max({one.quoted}))")
            # Most text columns contain the same text in every row, which need not be searched row by row.
            same = f"min({one.quoted} COLLATE BINARY) = max({one.quoted} COLLATE BINARY)"
            asked.append("0" if one.kind in _NUMBERS else same)
        known = self._figures(table, asked)
        count = int(known[0])
        self.rows += count
        if self.rows > self.limits.events:
            raise CaptureError(f"{self.source}: more than {self.limits.events} rows; not read")
        for one, kind, constant in zip(columns, known[1::2], known[2::2], strict=True):
            one.has_text, one.has_blobs, one.is_constant = kind in ("text", "blob"), kind == "blob", bool(constant)
            if one.has_blobs:
                of_blobs = f"FROM capture.{table} NOT INDEXED WHERE typeof({one.quoted}) = 'blob'"
                self.hits += int(self._ask(f"SELECT count(*) {of_blobs}")[0][0])
        texts = [one for one in columns if one.has_text and one.kind not in _NUMBERS]
        for one in texts:
            if one.is_constant:
                first = f"FROM capture.{table} NOT INDEXED WHERE {one.quoted} IS NOT NULL LIMIT 1"
                one.is_long = self._ask(f"SELECT length({one.quoted}) {first}")[0][0] > _LONGEST_TEXT
        varied = [one for one in texts if not one.is_constant]
        lengths = self._figures(table, [f"max(length({one.quoted}))" for one in varied]) if varied else []
        for one, length in zip(varied, lengths, strict=True):
            one.is_long = length > _LONGEST_TEXT
        self.hits += sum(one.is_long for one in columns)
        return count

    def _figures(self, table: str, asked: Sequence[str]) -> list[Any]:
        """Compute aggregates over all rows of a table."""
        known: list[Any] = []
        for at in range(0, len(asked), _MOST_ASKED):  # SQLite limits the number of result columns
            known += self._ask(f"SELECT {', '.join(asked[at : at + _MOST_ASKED])} FROM capture.{table} NOT INDEXED")[0]
        return known

    def _clean_column(self, table: str, number: int, column: _Column, columns: Sequence[_Column]) -> None:
        """Note the redacted form of each text in the column that contains a secret."""
        clean = _cleaner(column.name)
        value = column.text if column.is_long else column.quoted
        # Compared bytewise, whatever the column's collation: secrets may differ only in case.
        listed = f"SELECT DISTINCT {value} COLLATE BINARY FROM capture.{table} NOT INDEXED"
        texts = f"{listed} WHERE typeof({column.quoted}) = 'text'"
        # If all texts of a column are equal, the first is sufficient.
        texts += " LIMIT 1" if column.is_constant else ""
        for batch in _batches(self._connection.execute(texts)):
            if clean in (redacted_whole, _clean_prose) and not any("\0" in text for (text,) in batch):
                together = "\n".join(text for (text,) in batch)
                if redacted_whole(together) == together and (clean is redacted_whole or not may_hold_secrets(together)):
                    continue
            self._note(number, column, ((text, clean(text)) for (text,) in batch))
        names = next((one for one in columns if one.name.lower() in NAMES and one.has_text), None)
        if column.name.lower() == "value" and names is not None:
            self._clean_named(table, number, column, names)

    def _clean_named(self, table: str, number: int, column: _Column, names: _Column) -> None:
        """Note values that follow a name, in the adjacent column, that announces a secret, wherever they occur."""
        listed = (
            f"SELECT DISTINCT {names.quoted} COLLATE BINARY FROM capture.{table} NOT INDEXED "
            f"WHERE typeof({names.quoted}) = 'text'"
        )
        value = column.text if column.is_long else column.quoted
        texts = f"SELECT DISTINCT {value} COLLATE BINARY FROM capture.{table} NOT INDEXED WHERE {names.quoted} = ?"
        commands: dict[str, list[tuple[int, str]]] = {}
        for (name,) in self._ask(listed):
            if safe_setting(name, _SAMPLE) != _SAMPLE:
                found = [text for (text,) in self._ask(texts, (name,)) if isinstance(text, str)]
                self._note(number, column, ((text, safe_setting(name, text)) for text in found))
            elif word := _WORD_OF_COMMAND.fullmatch(name):
                place = int(word[2]) + 1 if word[2] else 0
                found = [text for (text,) in self._ask(texts, (name,)) if isinstance(text, str)]
                commands.setdefault(word[1], []).extend((place, text) for text in found)
        for words in commands.values():
            # The preceding words determine a word's treatment.
            ordered = [text for _, text in sorted(words)]
            self._note(number, column, zip(ordered, safe_words(ordered), strict=True))

    def _note(self, number: int, column: _Column, cleaned: Iterator[tuple[str, str]]) -> None:
        changed = [(number, _bound(dirty), _bound(clean)) for dirty, clean in cleaned if clean != dirty]
        if changed:
            column.changes = True
            self.hits += len(changed)
            self._connection.executemany(
                "INSERT OR REPLACE INTO temp.changed VALUES (?, CAST(? AS TEXT), CAST(? AS TEXT))", changed
            )

    def _ask(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql, parameters).fetchall()

    def _told(self, error: BaseException) -> CaptureError | OSError:
        if self.stopped is not None:
            return CaptureError(f"{self.source}: {self.stopped}; not taken: capture again")
        name = getattr(error, "sqlite_errorname", "") or ""
        if name == "SQLITE_FULL" or name.startswith("SQLITE_IOERR") or name.startswith("SQLITE_CANTOPEN"):
            number = errno.ENOSPC if name == "SQLITE_FULL" else errno.EIO
            return OSError(number, f"SQLite cannot write the copy: {error}", str(self.target))
        return damaged(self.source, sqlite3.DatabaseError(" ".join(str(error).split())[:_MESSAGE_BYTES]))


def _is_allowed(action: int, first: str | None, second: str | None, database: str | None, inside: str | None) -> int:
    """Allow reading the capture's tables, writing the copy's tables, and a few built-in functions; deny the rest."""
    if inside is not None:
        return sqlite3.SQLITE_DENY
    if action == sqlite3.SQLITE_FUNCTION:
        return sqlite3.SQLITE_OK if second in _FUNCTIONS else sqlite3.SQLITE_DENY
    if action == sqlite3.SQLITE_PRAGMA:
        return sqlite3.SQLITE_OK if first == "table_xinfo" else sqlite3.SQLITE_DENY
    if database == "capture":
        return sqlite3.SQLITE_OK if action == sqlite3.SQLITE_READ else sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK if action in _WRITES else sqlite3.SQLITE_DENY


def _cleaner(column: str) -> Callable[[str], str]:
    """Choose the function that redacts a column's texts, by the column's name."""
    name = column.lower()
    if name in ENVIRONMENTS:
        return safe_environment_text
    if name in COMMANDS:
        return safe_command
    return redacted_whole if name in _NAMED_COLUMNS or name.endswith(_NAMED_ENDINGS) else _clean_prose


def _clean_prose(text: str) -> str:
    """Redact free text, which may be a JSON document, or a process's environment in the system's format."""
    return safe_prose(redacted_whole(safe_environment_block(text)))


def _affinity(kind: str) -> str:
    """Return a column's type affinity by SQLite's five rules."""
    upper = kind.upper()
    if "INT" in upper:
        return "INTEGER"
    if any(part in upper for part in ("CHAR", "CLOB", "TEXT")):
        return "TEXT"
    if not upper or "BLOB" in upper:
        return "BLOB"
    return "REAL" if any(part in upper for part in ("REAL", "FLOA", "DOUB")) else "NUMERIC"


def _batches(cursor: sqlite3.Cursor) -> Iterator[list[tuple[str]]]:
    while batch := cursor.fetchmany(_BATCH):
        yield batch


def _bound(text: str) -> str | bytes:
    """Return the text in the form that SQLite accepts: as bytes if it is not valid UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogateescape")
    return text


def _uri(path: Path) -> str:
    return path.resolve().as_uri()


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


_NUMBERS: Final = ("INTEGER", "REAL")
_MOST_ASKED: Final = 1_000
#: A row of a settings table that is a program or one of its arguments by number, as Nsight Systems exports them.
_WORD_OF_COMMAND: Final = re.compile(r"(PROCESS_\d{1,6}):(?:COMMAND|ARGUMENT_(\d{1,6}))")
#: A value that is redacted after every name that announces a secret, and after no other name.
_SAMPLE: Final = "hunter2x"
