"""What the manifests of a lake say, kept by this host so that asking about ten thousand sessions parses none of them.

The manifests stay the truth. A listing of their folder is compared with what is kept: what is unchanged by its token is
not opened, what has vanished is forgotten, the rest is read and parsed. A manifest that cannot be read is never kept:
whoever needs it gets its error, and nobody else does. Where this is kept is `aaco_pipeline.lake.local_cache`, in what
form `aaco_pipeline.lake.kept_manifests`.
"""

import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake import kept_manifests as kept
from aaco_pipeline.lake.declaration import Scope
from aaco_pipeline.lake.files import lake_errors
from aaco_pipeline.lake.layout import MANIFESTS, LakeFolder, is_id
from aaco_pipeline.lake.local_cache import cache_in_memory, drop_cache, is_damaged, open_cache
from aaco_pipeline.lake.manifest import Entry, Manifest
from aaco_pipeline.lake.progress import Progress, progress_of

#: A file changed so shortly before it was read may change again and keep its token: it is read again next time.
_SETTLED_SECONDS: Final = 2.0
#: So many manifests are read and kept at a time: a kill loses no more, and another process waits no longer.
_AT_A_TIME: Final = 256
#: Another process that writes while we compare makes us compare again; after so often in a copy of our own.
_ROUNDS: Final = 3


_Decoded = TypeVar("_Decoded")


class Catalogue:
    """What the manifests say at one instant, to be asked within a `with`. Making it looks at every manifest's token.

    `errors` holds why a manifest cannot be read, by its id. With `whole`, the bytes of every manifest are read, too.
    """

    def __init__(self, lake: LakeFolder, *, whole: bool = False) -> None:
        self.errors: dict[str, LakeError] = {}
        self._lake, self._whole = lake, whole
        self._connection: sqlite3.Connection | None = None
        #: What to try when what we have fails: first the file, then a new file, then memory.
        self._is_anew = self._is_own = False
        self._settle()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._close()

    def require_readable(self, scope: Scope, is_meant: Callable[[str], bool] | None = None) -> None:
        """LakeError when the manifest of a session or campaign cannot be read, of those that are meant."""
        for identifier, error in sorted(self.errors.items()):
            if is_id(identifier, "session") == (scope == "session") and (is_meant is None or is_meant(identifier)):
                raise error

    def entries(
        self, table: str, scope: Scope, is_meant: Callable[[str], bool] | None = None
    ) -> list[tuple[str, Entry]]:
        """All that is published of a table, with the id that it belongs to, in their order; of those that are meant.

        LakeError when a manifest of those cannot be read.
        """
        self.require_readable(scope, is_meant)
        found = self._decoded(lambda row: (row[1], kept.entry(row)), kept.ENTRIES_OF_TABLE, table, scope)
        return found if is_meant is None else [one for one in found if is_meant(one[0])]

    def manifests(self, scope: Scope) -> Iterator[Manifest]:
        """Every manifest of a scope, as it would be parsed, by id. LakeError, at once, when one cannot be read."""
        self.require_readable(scope)
        return self._manifests(scope)

    def _manifests(self, scope: Scope) -> Iterator[Manifest]:
        known = self._ask(
            "SELECT m.document, m.id, s.expected, s.stages, m.artifacts, m.stated FROM manifests AS m "
            "JOIN states AS s ON s.number = m.state WHERE m.scope = ? ORDER BY m.id, m.document",
            scope,
        )
        for some in _portions(known):
            entries: dict[int, list[Entry]] = {row[0]: [] for row in some}
            for row in self._ask(kept.entries_of(len(some)), *entries):
                entries[row[-1]].append(kept.entry(row))
            for document, identifier, expected, stages, artifacts, stated in some:
                whole = (kept.artifacts(artifacts), kept.stated(stated))
                yield Manifest(scope, identifier, tuple(entries[document]), *kept.state(expected, stages)[::-1], *whole)

    def progress(self) -> dict[str, Progress]:
        """How far every session has come whose manifest can be read, by id."""
        known: dict[int, Progress] = {}
        states_of = "SELECT number, expected, stages FROM states"
        for number, (names, states) in self._decoded(lambda row: (row[0], kept.state(*row[1:])), states_of):
            known[number] = progress_of(Manifest("session", "", stages=states, expected=names))
        rows = self._ask("SELECT id, state FROM manifests WHERE scope = 'session' ORDER BY id")
        return {identifier: known[state] for identifier, state in rows}

    def table_bytes(self) -> dict[str, int]:
        """How many bytes all tables of a session have, of every session whose manifest can be read, by id."""
        return dict(self._ask("SELECT id, bytes FROM manifests WHERE scope = 'session'"))

    def digests(self, tables: Sequence[str]) -> dict[str, str]:
        """By session what is another text whenever what it publishes in one of these tables is."""
        found: dict[str, str] = {}
        for table in tables:
            for identifier, digest in self._ask(kept.DIGESTS_OF_TABLE, table):
                found[identifier] = f"{found.get(identifier, '')}{table} {digest} "
        return found

    def rows_of_tables(self) -> dict[str, int]:
        """How many rows are published of each table. LakeError when a manifest cannot be read."""
        self.require_readable("session")
        self.require_readable("campaign")
        return dict(self._ask(kept.ROWS_OF_TABLES))

    def remembered(self, kind: str) -> dict[str, tuple[str, str]]:
        """What was remembered of a kind, by id: of what it was made, and what it is."""
        rows = self._ask("SELECT id, made_of, value FROM remembered WHERE kind = ?", kind)
        return {identifier: (made_of, value) for identifier, made_of, value in rows}

    def remember(self, kind: str, found: Mapping[str, tuple[str, str]]) -> None:
        """Keep what was found of sessions for other processes. What is asked after that may be of a later instant."""
        rows = [(identifier, kind, *one) for identifier, one in found.items()]
        with suppress(sqlite3.Error):  # it is found again
            self._write(lambda at: at.executemany("INSERT OR REPLACE INTO remembered VALUES (?, ?, ?, ?)", rows))

    # ---- comparing ---------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Make what is kept what the manifests say, and hold that state."""
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
            return cache_in_memory(kept.SCHEMA)
        return open_cache(self._lake.path, kept.SCHEMA, kept.FORM)

    def _fall_back(self, error: sqlite3.Error | None) -> None:
        """Go on with the next best after `error`, or after others wrote what we compared: a new file, else memory."""
        if self._is_own and error is not None:
            raise error
        damaged = error is not None and is_damaged(error)
        if damaged and not self._is_anew:
            self._close()
            drop_cache(self._lake.path, kept.FORM)
            self._is_anew = True
            return
        before, self._is_own = self._connection, True
        self._connection = cache_in_memory(kept.SCHEMA, None if damaged else before)
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
                self._write(partial(kept.forget_all, names=gone))
            for names in _portions(due):
                self._take(names, listed, read)
        return False

    def _listed(self) -> dict[str, tuple[str, float]]:
        """Every manifest by its name in the lake: its token, another once it was replaced, and when it was changed."""
        folder = self._lake.path / MANIFESTS
        with lake_errors(folder):
            found = self._lake.storage.listed(folder)
        return {f"{MANIFESTS}/{one.name}": (one.version, one.changed_at) for one in found if one.name.endswith(".json")}

    def _differing(
        self, listed: Mapping[str, tuple[str, float]], read: Mapping[str, str | None]
    ) -> tuple[list[str], list[str]]:
        """What is kept and is not there, and what has to be read. `read` has the tokens of what was read just now."""
        assert self._connection is not None
        self._connection.rollback()
        self._connection.execute("BEGIN")
        rows = self._connection.execute("SELECT name, token, is_settled FROM documents")
        known = {name: (token, is_settled) for name, token, is_settled in rows}
        now = {**{name: token for name, (token, _) in listed.items()}, **read}
        gone = [name for name in known if now.get(name) is None]
        due = [
            name
            for name, token in now.items()
            if token is not None
            and (known.get(name, ("",))[0] != token or (name not in read and (self._whole or not known[name][1])))
        ]
        return gone, due

    def _take(self, names: Sequence[str], listed: Mapping[str, tuple[str, float]], read: dict[str, str | None]) -> None:
        """Read these manifests and keep what they say."""
        assert self._connection is not None
        marks = ", ".join("?" * len(names))
        rows = self._connection.execute(
            f"SELECT name, token, is_settled, sha256 FROM documents WHERE name IN ({marks})", names
        )
        known = {name: one for name, *one in rows}
        taken: list[tuple[str, str, bool, bytes, Manifest | None]] = []
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
                        manifest = None if is_same else Manifest.from_bytes(content, str(path))
                        taken.append((name, token, is_settled, digest, manifest))
                    read[name] = token
            except LakeError as error:
                self.errors[path.stem] = error

        def put(at: sqlite3.Connection) -> None:
            for name, token, is_settled, digest, manifest in taken:
                if manifest is None:
                    at.execute(
                        "UPDATE documents SET token = ?, is_settled = ? WHERE name = ? AND sha256 = ?",
                        (token, is_settled, name, digest),
                    )
                    continue
                try:
                    kept.keep(at, name, token, digest, manifest, is_settled=is_settled)
                except (OverflowError, UnicodeEncodeError) as error:
                    kept.forget(at, name)
                    read[name] = None
                    path = self._lake.path / name
                    self.errors[path.stem] = LakeError(
                        f"{path}: not a manifest ({error}); `aaco doctor --mend` rebuilds it"
                    )

        if taken:
            self._write(put)

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
                return [decode(row) for row in self._connection.execute(statement, values)]
            except sqlite3.Error as error:
                self._fall_back(error)
            except (ValueError, TypeError, AttributeError) as error:
                self._fall_back(sqlite3.DatabaseError(str(error)))
            self._settle()

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _portions(rows: Sequence[Any]) -> Iterator[Sequence[Any]]:
    return (rows[first : first + _AT_A_TIME] for first in range(0, len(rows), _AT_A_TIME))
