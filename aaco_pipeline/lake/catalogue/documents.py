"""What files of a lake say, kept by this host so that asking about ten thousand of them parses none.

The files stay the truth. A listing of their folder is compared with what is kept: what is unchanged by its token is not
opened, what has vanished is forgotten, the rest is read and parsed. One that cannot be read is never kept: whoever
needs it gets its error, and nobody else does. Where this is kept is `local_cache`; which files, and what is asked of
them, is `manifests` and `segments`.
"""

import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar

from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.catalogue import manifest_rows, segment_rows
from aaco_pipeline.lake.catalogue.local_cache import cache_in_memory, drop_cache, is_damaged, open_cache
from aaco_pipeline.lake.files import lake_errors
from aaco_pipeline.lake.layout import LakeFolder

#: Another number wherever the tables below, or what is kept in them, become other.
FORM: Final = 5
#: A document is a file that is kept by its content: `name` is its path in the lake, `token` what tells that it changed.
SCHEMA: Final = f"""
CREATE TABLE IF NOT EXISTS documents (
    number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, token TEXT NOT NULL, is_settled INTEGER NOT NULL,
    sha256 BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS names (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
{manifest_rows.SCHEMA}{segment_rows.SCHEMA}"""
#: A file changed so shortly before it was read may change again and keep its token: it is read again next time.
_SETTLED_SECONDS: Final = 2.0
#: So many files are read and kept at a time: a kill loses no more, and another process waits no longer.
_AT_A_TIME: Final = 256
#: Another process that writes while we compare makes us compare again; after so often in a copy of our own.
_ROUNDS: Final = 3

_Parsed = TypeVar("_Parsed")
_Decoded = TypeVar("_Decoded")


class KeptDocuments(ABC, Generic[_Parsed]):
    """What the files in one folder of a lake say at one instant, to be asked within a `with`.

    Making it looks at the token of each, and reads with `whole` all bytes of each. `errors` holds why one cannot be
    read, by its name without the ending.
    """

    def __init__(self, lake: LakeFolder, folder: str, *, whole: bool = False) -> None:
        self.errors: dict[str, LakeError] = {}
        self._lake, self._folder, self._whole = lake, folder, whole
        self._connection: sqlite3.Connection | None = None
        #: The files, by their names in the lake, that what is asked rests on.
        self._present = set[str]()
        #: What to try when what we have fails: first the file, then a new file, then memory.
        self._is_anew = self._is_own = False
        self._settle()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._close()

    @abstractmethod
    def _parse(self, content: bytes, path: Path) -> _Parsed:
        """What a file says. LakeError when it cannot be read."""

    @abstractmethod
    def _keep(self, at: sqlite3.Connection, document: int, parsed: _Parsed) -> None:
        """Put what a file says into the cache. OverflowError or UnicodeEncodeError for what SQLite does not have."""

    @abstractmethod
    def _forget(self, at: sqlite3.Connection, document: int) -> None:
        """Drop what a file said."""

    @abstractmethod
    def _forget_unused(self, at: sqlite3.Connection) -> None:
        """Drop what is of no use once files are no more."""

    @abstractmethod
    def _unkeepable(self, path: Path, reason: Exception) -> LakeError:
        """The error of a file that says what the cache does not have."""

    def _settle(self) -> None:
        """Make what is kept what the files say, and hold that state."""
        while True:
            try:
                if self._connection is None:
                    self._connection = self._opened()
                if any(self._compare() for _ in range(_ROUNDS)):
                    return
                self._fall_back(None)
            except sqlite3.Error as error:
                self._fall_back(error)

    def _opened(self) -> sqlite3.Connection:
        if self._is_own or self._lake.storage.state(self._lake.path) is None:
            return cache_in_memory(SCHEMA)
        return open_cache(self._lake.path, SCHEMA, FORM)

    def _fall_back(self, error: sqlite3.Error | None) -> None:
        """Go on with the next best after `error`, or after others wrote what we compared: a new file, else memory."""
        if self._is_own and error is not None:
            raise error
        damaged = error is not None and is_damaged(error)
        if damaged and not self._is_anew:
            self._close()
            drop_cache(self._lake.path, FORM)
            self._is_anew = True
            return
        before, self._is_own = self._connection, True
        self._connection = cache_in_memory(SCHEMA, None if damaged else before)
        if before is not None:
            before.close()

    def _compare(self) -> bool:
        """Read what is not as it is kept. True when all is, in the state of the cache that is looked at from now on."""
        listed = self._listed()
        read: dict[str, str | None] = {}
        for _ in range(_ROUNDS):
            gone, due = self._differing(listed, read)
            if not gone and not due:
                return True
            if gone:
                self._write(partial(self._drop_gone, names=gone))
            for names in portions(due):
                self._take(names, listed, read)
        return False

    @property
    def _names(self) -> tuple[str, str]:
        """Between these two are the names of all that lies in the folder: "0" comes after "/"."""
        return f"{self._folder}/", f"{self._folder}0"

    def _listed(self) -> dict[str, tuple[str, float]]:
        """Every file by its name in the lake: its token, another once it was replaced, and when it was changed."""
        folder = self._lake.path / self._folder
        with lake_errors(folder):
            found = self._lake.storage.listed(folder)
        whole = (one for one in found if one.name.endswith(".json") and not one.name.startswith("."))
        return {f"{self._folder}/{one.name}": (one.version, one.changed_at) for one in whole}

    def _differing(
        self, listed: Mapping[str, tuple[str, float]], read: Mapping[str, str | None]
    ) -> tuple[list[str], list[str]]:
        """What is kept and is not there, and what has to be read. `read` has the tokens of what was read just now."""
        assert self._connection is not None
        self._connection.rollback()
        self._connection.execute("BEGIN")
        rows = whole_rows(
            self._connection.execute(
                "SELECT name, token, is_settled FROM documents WHERE name > ? AND name < ?",
                self._names,
            )
        )
        known = {name: (token, is_settled) for name, token, is_settled in rows}
        now = {**{name: token for name, (token, _) in listed.items()}, **read}
        self._present = {name for name, token in now.items() if token is not None}
        gone = [name for name in known if now.get(name) is None]
        due = [
            name
            for name, token in now.items()
            if token is not None
            and (known.get(name, ("",))[0] != token or (name not in read and (self._whole or not known[name][1])))
        ]
        return gone, due

    def _take(self, names: Sequence[str], listed: Mapping[str, tuple[str, float]], read: dict[str, str | None]) -> None:
        """Read these files and keep what they say."""
        assert self._connection is not None
        marks = ", ".join("?" * len(names))
        rows = self._connection.execute(
            f"SELECT name, token, is_settled, sha256 FROM documents WHERE name IN ({marks})", names
        )
        known = {name: one for name, *one in rows}
        taken: list[tuple[str, str, bool, bytes, _Parsed | None]] = []
        for name in names:
            path, (token, changed_at), began = self._lake.path / name, listed[name], time.time()
            self.errors.pop(path.stem, None)
            read[name] = None
            try:
                with lake_errors(path), suppress(FileNotFoundError):  # one that was removed since is gone
                    content = self._lake.storage.read(path)
                    digest, is_settled = sha256(content).digest(), changed_at + _SETTLED_SECONDS < began
                    is_same = name in known and known[name][2] == digest
                    if not is_same or known[name] != [token, is_settled, digest]:
                        parsed = None if is_same else self._parse(content, path)
                        taken.append((name, token, is_settled, digest, parsed))
                    read[name] = token
            except LakeError as error:
                self.errors[path.stem] = error

        def put(at: sqlite3.Connection) -> None:
            for name, token, is_settled, digest, parsed in taken:
                if parsed is None:
                    at.execute(
                        "UPDATE documents SET token = ?, is_settled = ? WHERE name = ? AND sha256 = ?",
                        (token, is_settled, name, digest),
                    )
                    continue
                try:
                    self._drop(at, [name])
                    insert = "INSERT INTO documents (name, token, is_settled, sha256) VALUES (?, ?, ?, ?)"
                    document = at.execute(insert, (name, token, is_settled, digest)).lastrowid
                    assert document is not None
                    self._keep(at, document, parsed)
                except (OverflowError, UnicodeEncodeError) as error:
                    self._drop(at, [name])
                    read[name] = None
                    path = self._lake.path / name
                    self.errors[path.stem] = self._unkeepable(path, error)

        if taken:
            self._write(put)

    def _drop(self, at: sqlite3.Connection, names: Iterable[str]) -> None:
        """Drop what is kept of files."""
        for name in names:
            found = at.execute("SELECT number FROM documents WHERE name = ?", (name,)).fetchone()
            if found is not None:
                self._forget(at, *found)
                at.execute("DELETE FROM documents WHERE number = ?", found)

    def _drop_gone(self, at: sqlite3.Connection, names: Iterable[str]) -> None:
        """Drop what is kept of files that are no more, and what was of use to them alone."""
        self._drop(at, names)
        self._forget_unused(at)

    def _write(self, work: Callable[[sqlite3.Connection], object]) -> None:
        """Let `work` change the cache, all of it or nothing."""
        assert self._connection is not None
        self._connection.rollback()
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            work(self._connection)
            self._connection.execute("COMMIT")
        except BaseException:
            self._connection.rollback()
            raise

    def _ask(self, statement: str, *values: object) -> list[Any]:
        """The rows of a statement; anew where the cache turns out to be damaged."""
        return self._decoded(lambda row: row, statement, *values)

    def _decoded(self, decode: Callable[[Any], _Decoded], statement: str, *values: object) -> list[_Decoded]:
        """As `_ask`, each row as `decode` makes it of what is kept; what cannot be decoded is damaged, too."""
        while True:
            assert self._connection is not None
            try:
                return [decode(row) for row in whole_rows(self._connection.execute(statement, values))]
            except sqlite3.Error as error:
                self._fall_back(error)
            except (ValueError, TypeError, AttributeError) as error:
                self._fall_back(sqlite3.DatabaseError(str(error)))
            self._settle()

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def whole_rows(rows: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The rows. sqlite3.DatabaseError for a null, which nothing that is kept is: SQLite reads it where zeros are."""
    found = list(rows)
    if any(None in row for row in found):
        raise sqlite3.DatabaseError("a value is null")
    return found


def portions(rows: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """The rows, some at a time."""
    return (rows[first : first + _AT_A_TIME] for first in range(0, len(rows), _AT_A_TIME))
