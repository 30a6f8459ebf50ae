"""What the manifests of a lake say, as this host keeps it: who asks about ten thousand sessions parses none of them.

How it is compared with the manifests, which stay the truth, is `documents`, in what form it is kept `manifest_rows`.
"""

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.catalogue import manifest_rows as kept
from aaco_pipeline.lake.catalogue.documents import KeptDocuments, portions
from aaco_pipeline.lake.declaration import Scope
from aaco_pipeline.lake.layout import MANIFESTS, LakeFolder, scope_of
from aaco_pipeline.lake.manifest import Entry, LostManifestError, Manifest, Progress, manifest_of_file, progress_of


class Catalogue(KeptDocuments[Manifest]):
    """What the manifests say at one instant, to be asked within a `with`. Making it looks at every manifest's token.

    `errors` holds why a manifest cannot be read, by its id; a lost one is among them. With `whole`, the bytes of every
    manifest are read, too.
    """

    def __init__(self, lake: LakeFolder, *, whole: bool = False) -> None:
        super().__init__(lake, MANIFESTS, whole=whole)

    @property
    def loss(self) -> LostManifestError | None:
        """The error of all sessions and campaigns whose manifests are lost; None when none is."""
        return self._loss(self.errors)

    def _loss(self, identifiers: Iterable[str]) -> LostManifestError | None:
        lost = [one for one in sorted(identifiers) if isinstance(self.errors[one], LostManifestError)]
        return LostManifestError(*(self._lake.manifest_path(one, scope_of(one)) for one in lost)) if lost else None

    def committed(self) -> list[tuple[Scope, str]]:
        """Every session and campaign whose manifest can be read, sorted."""
        return [(scope, identifier) for scope, identifier in self._ask(kept.COMMITTED)]

    def require_readable(self, scope: Scope, is_meant: Callable[[str], bool] | None = None) -> None:
        """LakeError when the manifest of a session or campaign cannot be read, of those that are meant."""
        meant = [one for one in sorted(self.errors) if scope_of(one) == scope and (is_meant is None or is_meant(one))]
        unread = [self.errors[one] for one in meant if not isinstance(self.errors[one], LostManifestError)]
        if (loss := self._loss(meant)) is not None:
            raise LakeError(f"{loss}; {unread[0]}") if unread else loss
        if unread:
            raise unread[0]

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
            "LEFT JOIN states AS s ON s.number = m.state WHERE m.scope = ? ORDER BY m.id, m.document",
            scope,
        )
        for some in portions(known):
            entries: dict[int, list[Entry]] = {row[0]: [] for row in some}
            for row in self._ask(kept.entries_of(len(some)), *entries):
                entries[row[-1]].append(kept.entry(row))
            for document, identifier, expected, stages, artifacts, stated in some:
                whole = (kept.artifacts(artifacts), kept.stated(stated))
                yield Manifest(scope, identifier, tuple(entries[document]), *kept.state(expected, stages)[::-1], *whole)

    def files(self) -> set[str]:
        """Every file that a table is published in, by its name in the lake. LakeError when a manifest is unreadable."""
        self.require_readable("session")
        self.require_readable("campaign")
        return {kept.file_of(row) for row in self._ask(kept.FILES_OF_TABLES)}

    def progress(self) -> dict[str, Progress]:
        """How far every session has come whose manifest can be read, by id."""
        known: dict[int, Progress] = {}
        states_of = "SELECT number, expected, stages FROM states"
        for number, (names, states) in self._decoded(lambda row: (row[0], kept.state(*row[1:])), states_of):
            known[number] = progress_of(Manifest("session", "", stages=states, expected=names))
        rows = self._ask(kept.STATES_OF_SESSIONS)
        return {identifier: known[state] for identifier, state in rows}

    def published_bytes(self) -> dict[str, int]:
        """Bytes of all that a session has published, of every session whose manifest can be read, by id."""
        return dict(self._ask("SELECT id, bytes FROM manifests WHERE scope = 'session'"))

    def digests(self, tables: Sequence[str]) -> dict[str, str]:
        """By session what is another text whenever what it publishes in one of these tables is."""
        found: dict[str, str] = {}
        for table in tables:
            for identifier, digest in self._ask(kept.DIGESTS_OF_TABLE, table):
                found[identifier] = f"{found.get(identifier, '')}{table} {digest} "
        return found

    def contents(self, scope: Scope) -> dict[str, str]:
        """Give the SHA-256 of every manifest of a scope that can be read, by id."""
        return {identifier: content.hex() for identifier, content in self._ask(kept.CONTENTS, scope)}

    def digest(self) -> str:
        """What is another text whenever the content of a manifest that can be read is."""
        rows = self._ask("SELECT name, sha256 FROM documents WHERE name > ? AND name < ? ORDER BY name", *self._names)
        return sha256(repr(rows).encode()).hexdigest()

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

    def _settle(self) -> None:
        super()._settle()
        begins, ends = len(f"{MANIFESTS}/"), -len(".json")
        for scope, identifier in self._lake.lost({name[begins:ends] for name in self._present}):
            self.errors[identifier] = LostManifestError(self._lake.manifest_path(identifier, scope))

    def _parse(self, content: bytes, path: Path) -> Manifest:
        return manifest_of_file(content, path)

    def _keep(self, at: sqlite3.Connection, document: int, parsed: Manifest) -> None:
        kept.keep(at, document, parsed)

    def _forget(self, at: sqlite3.Connection, document: int) -> None:
        kept.forget(at, document)

    def _forget_unused(self, at: sqlite3.Connection) -> None:
        kept.forget_unused(at)

    def _unkeepable(self, path: Path, reason: Exception) -> LakeError:
        return LakeError(f"{path}: not a manifest ({reason}); `aaco doctor --mend` rebuilds it")
