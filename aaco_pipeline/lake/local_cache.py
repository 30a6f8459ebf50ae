"""Per-user, per-host SQLite cache of a lake's parsed files, so that 10,000 files need no parsing.

The files remain authoritative: a file with an unchanged token is not opened, a deleted one is forgotten, and every
other is read and parsed. The cache may be deleted at any time; if it cannot be stored, it is kept in memory.
`aaco_pipeline.lake.catalogue` defines the cached files and the queries.
"""

import hashlib
import os
import platform
import secrets
import shutil
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Final, Generic, Self, TypeVar

from aaco_pipeline.cache_folder import own_folder
from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.files import lake_errors
from aaco_pipeline.lake.layout import LakeFolder

#: Increase this whenever the schema or the meaning of a column changes: older caches are then deleted.
FORM: Final = 6
#: `name` is a file's path in the lake; `token` changes with the file. `remembered` holds results derived from tables.
SCHEMA: Final = """
CREATE TABLE documents (
    number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, token TEXT NOT NULL, is_settled INTEGER NOT NULL,
    sha256 BLOB NOT NULL);
CREATE TABLE manifests (
    document INTEGER PRIMARY KEY, scope TEXT NOT NULL, id TEXT NOT NULL, bytes INTEGER NOT NULL,
    expected TEXT NOT NULL, stages TEXT NOT NULL, artifacts TEXT NOT NULL, stated TEXT NOT NULL);
CREATE TABLE entries (
    document INTEGER NOT NULL, place INTEGER NOT NULL, table_name TEXT NOT NULL, stage TEXT NOT NULL,
    file TEXT NOT NULL, rows INTEGER NOT NULL, bytes INTEGER NOT NULL, sha256 TEXT NOT NULL,
    contract_version INTEGER NOT NULL, PRIMARY KEY (table_name, document, place)) WITHOUT ROWID;
CREATE INDEX entries_of_document ON entries (document);
CREATE TABLE segments (
    document INTEGER PRIMARY KEY, table_name TEXT NOT NULL, name TEXT NOT NULL, made TEXT NOT NULL,
    table_version INTEGER NOT NULL, parts INTEGER NOT NULL, row_groups TEXT NOT NULL, footer TEXT NOT NULL);
CREATE TABLE parts (
    document INTEGER NOT NULL, place INTEGER NOT NULL, owner TEXT NOT NULL, stage TEXT NOT NULL, sha256 TEXT NOT NULL,
    first_row INTEGER NOT NULL, rows INTEGER NOT NULL, checksum INTEGER NOT NULL,
    PRIMARY KEY (document, owner, place)) WITHOUT ROWID;
CREATE TABLE remembered (
    id TEXT NOT NULL, kind TEXT NOT NULL, made_of TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (id, kind)
    ) WITHOUT ROWID;
"""
#: Maximum wait for another process that is writing.
BUSY_SECONDS: Final = 2.0
#: A file modified so shortly before it was read may change again with the same token; it is reread next time.
_SETTLED_SECONDS: Final = 2.0
#: Files read and stored per transaction; limits what a kill loses and how long other processes wait.
_BATCH: Final = 256
#: If other processes keep writing during the comparison, continue in memory after this many rounds.
_ROUNDS: Final = 3
#: A link in the cache's folder to its lake.
_LINK: Final = "lake"

_Parsed = TypeVar("_Parsed")
_Decoded = TypeVar("_Decoded")


class KeptDocuments(ABC, Generic[_Parsed]):
    """Content of the JSON files in one lake folder at one instant, for use in a `with`.

    Creation checks the token of each file and, with `whole`, reads all of its bytes. `errors` maps the name of an
    unreadable file, without its suffix, to its error; such a file is never cached.
    """

    #: The tables that hold a document's rows.
    TABLES: ClassVar[tuple[str, ...]]
    #: Reason for rejecting a document whose numbers or texts SQLite cannot store; `{}` is replaced by the error.
    REFUSED: ClassVar[str]

    def __init__(self, lake: LakeFolder, folder: str, *, whole: bool = False) -> None:
        self.errors: dict[str, LakeError] = {}
        self._lake, self._folder, self._whole = lake, folder, whole
        #: All names in the folder sort between these two: "0" follows "/".
        self._names: Final = (f"{folder}/", f"{folder}0")
        #: The files that the answers depend on, by their names in the lake.
        self._present = set[str]()
        self._is_replaced = self._is_in_memory = False
        self._connection = self._opened()
        self._settle()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._connection.close()

    @abstractmethod
    def _parse(self, content: bytes, path: Path) -> _Parsed:
        """Parse a file. LakeError on failure."""

    @abstractmethod
    def _rows(self, parsed: _Parsed) -> Iterable[tuple[str, Iterable[Sequence[object]]]]:
        """Return the rows to store for a parsed file, by table, without the document's number."""

    def _ask(self, statement: str, *values: object, decode: Callable[[Any], Any] = lambda row: row) -> list[Any]:
        """Run a statement and decode its rows; retry if the cache turns out to be damaged."""
        while True:
            try:
                return [decode(row) for row in _whole_rows(self._connection.execute(statement, values))]
            except sqlite3.Error as error:
                self._fall_back(error)
            except (ValueError, TypeError, AttributeError) as error:
                self._fall_back(sqlite3.DatabaseError(str(error)))
            self._settle()

    def _write(self, work: Callable[[sqlite3.Connection], object]) -> None:
        """Let `work` change the cache in one transaction."""
        self._connection.rollback()
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            work(self._connection)
            self._connection.execute("COMMIT")
        except BaseException:
            self._connection.rollback()
            raise

    def _settle(self) -> None:
        """Bring the cache up to date with the files, and keep that state."""
        while True:
            try:
                if any(self._compare() for _ in range(_ROUNDS)):
                    return
                self._fall_back(None)
            except sqlite3.Error as error:
                self._fall_back(error)

    def _opened(self) -> sqlite3.Connection:
        if self._lake.storage.state(self._lake.path) is None:
            return _in_memory()
        for _ in range(2):
            try:
                return _open_cache(self._lake.path)
            except sqlite3.Error as error:
                if not _is_damaged(error):
                    break
                _drop_cache(self._lake.path)
        return _in_memory()

    def _fall_back(self, error: sqlite3.Error | None) -> None:
        """Continue with a new file if the cache is damaged, otherwise in memory."""
        if self._is_in_memory and error is not None:
            raise error
        self._connection.close()
        if error is not None and _is_damaged(error) and not self._is_replaced:
            self._is_replaced = True
            _drop_cache(self._lake.path)
            self._connection = self._opened()
        else:
            self._is_in_memory, self._connection = True, _in_memory()

    def _compare(self) -> bool:
        """Read every file that differs from the cache. True if none does; later queries see that state."""
        listed = self._listed()
        read: dict[str, str | None] = {}
        for _ in range(_ROUNDS):
            gone, due = self._differing(listed, read)
            if not gone and not due:
                return True
            if gone:
                self._write(lambda at, gone=gone: self._forget(at, gone))  # type: ignore[misc]
            for names in portions(due):
                self._take(names, listed, read)
        return False

    def _listed(self) -> dict[str, tuple[str, float]]:
        """Return the token and modification time of every file, by its name in the lake."""
        with lake_errors(folder := self._lake.path / self._folder):
            found = self._lake.storage.listed(folder)
        whole = (one for one in found if one.name.endswith(".json") and not one.name.startswith("."))
        return {f"{self._folder}/{one.name}": (one.version, one.changed_at) for one in whole}

    def _differing(
        self, listed: Mapping[str, tuple[str, float]], read: Mapping[str, str | None]
    ) -> tuple[list[str], list[str]]:
        """Return cached names that no longer exist, and names to read. `read` has the tokens of files read just now."""
        self._connection.rollback()
        self._connection.execute("BEGIN")
        statement = "SELECT name, token, is_settled FROM documents WHERE name > ? AND name < ?"
        known = {name: one for name, *one in _whole_rows(self._connection.execute(statement, self._names))}
        now = {name: read.get(name, token) for name, (token, _) in listed.items()}
        self._present = {name for name, token in now.items() if token is not None}
        due = [
            name
            for name in now
            if name in self._present
            and (known.get(name, [""])[0] != now[name] or (name not in read and (self._whole or not known[name][1])))
        ]
        return [name for name in known if name not in self._present], due

    def _take(self, names: Sequence[str], listed: Mapping[str, tuple[str, float]], read: dict[str, str | None]) -> None:
        """Read these files and store their content."""
        marks = ", ".join("?" * len(names))
        statement = f"SELECT name, token, is_settled, sha256 FROM documents WHERE name IN ({marks})"
        known = {name: one for name, *one in self._connection.execute(statement, names)}
        taken: list[tuple[str, tuple[str, bool, bytes], _Parsed | None]] = []
        for name in names:
            path, (token, changed_at), began = self._lake.path / name, listed[name], time.time()
            self.errors.pop(path.stem, None)
            read[name] = None
            try:
                with lake_errors(path), suppress(FileNotFoundError):  # removed meanwhile
                    content = self._lake.storage.read(path)
                    facts = (token, changed_at + _SETTLED_SECONDS < began, hashlib.sha256(content).digest())
                    before = known.get(name)
                    if before is None or before[2] != facts[2]:
                        taken.append((name, facts, self._parse(content, path)))
                    elif before != [*facts]:
                        taken.append((name, facts, None))
                    read[name] = token
            except LakeError as error:
                self.errors[path.stem] = error

        def put(at: sqlite3.Connection) -> None:
            for name, facts, parsed in taken:
                if parsed is None:
                    at.execute(
                        "UPDATE documents SET token = ?, is_settled = ? WHERE name = ? AND sha256 = ?",
                        (*facts[:2], name, facts[2]),
                    )
                    continue
                self._forget(at, [name])
                try:
                    self._keep(at, name, facts, parsed)
                except (OverflowError, UnicodeEncodeError) as error:
                    self._forget(at, [name])
                    read[name] = None
                    path = self._lake.path / name
                    self.errors[path.stem] = LakeError(f"{path}: {self.REFUSED.format(error)}")

        if taken:
            self._write(put)

    def _keep(self, at: sqlite3.Connection, name: str, facts: tuple[str, bool, bytes], parsed: _Parsed) -> None:
        insert = "INSERT INTO documents (name, token, is_settled, sha256) VALUES (?, ?, ?, ?)"
        document = at.execute(insert, (name, *facts)).lastrowid
        for table, rows in self._rows(parsed):
            numbered = [(document, *row) for row in rows]
            if numbered:
                at.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(numbered[0]))})", numbered)

    def _forget(self, at: sqlite3.Connection, names: Iterable[str]) -> None:
        """Delete everything stored for these files."""
        for name in names:
            found = at.execute("SELECT number FROM documents WHERE name = ?", (name,)).fetchone()
            if found is not None:
                for table in self.TABLES:
                    at.execute(f"DELETE FROM {table} WHERE document = ?", found)
                at.execute("DELETE FROM documents WHERE number = ?", found)


def portions(rows: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Split rows into batches."""
    return (rows[first : first + _BATCH] for first in range(0, len(rows), _BATCH))


def _whole_rows(rows: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return the rows. sqlite3.DatabaseError for a null: no column has one, and a page of zeros reads as null."""
    found = list(rows)
    if any(None in row for row in found):
        raise sqlite3.DatabaseError("a value is null")
    return found


def _open_cache(lake: Path) -> sqlite3.Connection:
    """Open the newest cache of `lake`, or a new one, in memory if it cannot be stored.

    Every cache file gets a unique name, because SQLite finds a database's auxiliary files by name, and those of a
    deleted cache must never be used for a new one. sqlite3.Error if the cache is damaged, or locked for long.
    """
    try:
        if (folder := _folder(lake)) is None:
            return _in_memory()
        found = sorted(folder.glob(f"{FORM}-*.sqlite"))
        for older in found[:-1]:  # two processes had each created one
            _drop(older)
        if not found:
            _clear_away(folder)
        file = found[-1] if found else folder / f"{FORM}-{secrets.token_hex(8)}.sqlite"
        connection = sqlite3.connect(file, timeout=BUSY_SECONDS, isolation_level=None)
    except (OSError, sqlite3.OperationalError):
        return _in_memory()
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA cell_size_check = ON")  # detect damage on access
        _make_tables(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _in_memory() -> sqlite3.Connection:
    made = sqlite3.connect(":memory:", isolation_level=None)
    _make_tables(made)
    return made


def _make_tables(connection: sqlite3.Connection) -> None:
    """Create the tables of a new database in one transaction."""
    if connection.execute("PRAGMA user_version").fetchone() == (0,):
        connection.execute("BEGIN IMMEDIATE")  # another process may have just created them
        if connection.execute("PRAGMA user_version").fetchone() == (0,):
            for statement in SCHEMA.split(";"):
                connection.execute(statement)
            connection.execute("PRAGMA user_version = 1")
        connection.execute("COMMIT")


def _is_damaged(error: sqlite3.Error) -> bool:
    """Distinguish an error of a damaged file from one of a file that is locked, full or inaccessible."""
    damage = (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_SCHEMA)
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF in damage


def _folder(lake: Path) -> Path | None:
    """Return the cache folder, private to this user and host: hosts share home directories, but not SQLite files."""
    whole = os.path.realpath(lake)
    folder = own_folder(f"lakes/{_host()}-{hashlib.sha256(os.fsencode(whole)).hexdigest()[:32]}")
    if folder is None or any(map(_is_of_another_user, folder.iterdir())):
        return None
    if not (folder / _LINK).is_symlink():
        with suppress(FileExistsError):
            (folder / _LINK).symlink_to(whole)
    return folder


def _is_of_another_user(file: Path) -> bool:
    try:
        return file.lstat().st_uid != os.geteuid()
    except FileNotFoundError:  # SQLite deletes a database's auxiliary files once it is closed
        return False


def _drop_cache(lake: Path) -> None:
    """Delete the cache of `lake`; processes that have it open continue to use it."""
    with suppress(OSError):
        if (folder := _folder(lake)) is not None:
            for file in sorted(folder.glob(f"{FORM}-*.sqlite")):
                _drop(file)


def _drop(file: Path) -> None:
    for name in (file, *(file.with_name(f"{file.name}-{end}") for end in ("wal", "shm", "journal"))):
        name.unlink(missing_ok=True)


def _clear_away(folder: Path) -> None:
    """Delete caches with an earlier schema from a folder, and this host's caches of deleted lakes."""
    for file in folder.glob("*-*.sqlite"):
        if int(file.name.partition("-")[0]) < FORM:
            _drop(file)
    for other in folder.parent.glob(f"{_host()}-*"):
        if (other / _LINK).is_symlink() and not (other / _LINK).exists():
            shutil.rmtree(other, ignore_errors=True)


def _host() -> str:
    facts = [platform.node()]
    with suppress(OSError):
        facts.append(Path("/etc/machine-id").read_text("ascii"))
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:8]
