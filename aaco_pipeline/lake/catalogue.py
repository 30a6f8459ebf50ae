"""The catalogue of everything published in a lake, served from cached manifests and lists of segments.

It also marks committed sessions and campaigns. The cache is in `aaco_pipeline.lake.local_cache`, the manifest format in
`aaco_pipeline.lake.manifest`; `aaco_pipeline.lake.store` decides when a manifest is replaced.
"""

import json
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import datetime
from functools import cache, partial
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from typing import Any, Final
from zlib import crc32

from aaco_pipeline.errors import LakeError, PassingLakeError
from aaco_pipeline.lake.declaration import Scope
from aaco_pipeline.lake.files import lake_errors
from aaco_pipeline.lake.layout import MANIFESTS, MARKED, MARKERS, SEGMENTS, LakeFolder, scope_of, table_file
from aaco_pipeline.lake.local_cache import KeptDocuments, portions
from aaco_pipeline.lake.manifest import (
    Artifact,
    Entry,
    LostManifestError,
    Manifest,
    Progress,
    StageState,
    manifest_of_file,
    progress_of,
)
from aaco_pipeline.lake.segments.format import Held, NewerSegmentError, PartKey, RowGroup, Segment, SegmentList

#: Placeholder for a file with its usual name; no file in a lake has this name.
_USUAL: Final = "/"
_ENTRIES: Final = (
    "SELECT m.scope, m.id, e.table_name, e.stage, e.file, e.rows, e.bytes, e.sha256, e.contract_version, e.document "
    "FROM entries AS e JOIN manifests AS m ON m.document = e.document"
)
#: With more owners than this, all parts of a segment are scanned.
_MOST_NAMED: Final = 200


class Catalogue(KeptDocuments[Manifest]):
    """The manifests of a lake at one instant, for use in a `with`. Creation checks every manifest's token.

    `errors` maps the id of an unreadable or lost manifest to its error. With `whole`, every byte of every manifest is
    also read.
    """

    TABLES = ("manifests", "entries")
    REFUSED = "not a manifest ({}); `aaco doctor --mend` rebuilds it"

    def __init__(self, lake: LakeFolder, *, whole: bool = False) -> None:
        super().__init__(lake, MANIFESTS, whole=whole)

    @property
    def loss(self) -> LostManifestError | None:
        """Return one error for all lost manifests; None if none is lost."""
        return self._loss(self.errors)

    def _loss(self, identifiers: Iterable[str]) -> LostManifestError | None:
        lost = [one for one in sorted(identifiers) if isinstance(self.errors[one], LostManifestError)]
        return LostManifestError(*(self._lake.manifest_path(one, scope_of(one)) for one in lost)) if lost else None

    def committed(self) -> list[tuple[Scope, str]]:
        """Return every session and campaign with a readable manifest, sorted."""
        return self._ask("SELECT scope, id FROM manifests ORDER BY scope, id")

    def require_readable(self, scope: Scope, is_meant: Callable[[str], bool] | None = None) -> None:
        """Raise LakeError if a selected manifest of this scope is unreadable."""
        meant = [one for one in sorted(self.errors) if scope_of(one) == scope and (is_meant is None or is_meant(one))]
        unread = [self.errors[one] for one in meant if not isinstance(self.errors[one], LostManifestError)]
        if (loss := self._loss(meant)) is not None:
            raise LakeError(f"{loss}; {unread[0]}") if unread else loss
        if unread:
            raise unread[0]

    def entries(
        self, table: str, scope: Scope, is_meant: Callable[[str], bool] | None = None
    ) -> list[tuple[str, Entry]]:
        """Return every selected published entry of a table with its owner's id, ordered by id.

        LakeError if one of these manifests is unreadable.
        """
        self.require_readable(scope, is_meant)
        statement = f"{_ENTRIES} WHERE e.table_name = ? AND m.scope = ? ORDER BY m.id, e.document, e.place"
        found = self._ask(statement, table, scope, decode=lambda row: (row[1], _entry(row)))
        return found if is_meant is None else [one for one in found if is_meant(one[0])]

    def manifests(self, scope: Scope) -> Iterator[Manifest]:
        """Return every manifest of a scope, sorted by id. LakeError at once if any is unreadable."""
        self.require_readable(scope)
        return self._manifests(scope)

    def _manifests(self, scope: Scope) -> Iterator[Manifest]:
        statement = (
            "SELECT document, id, expected, stages, artifacts, stated FROM manifests WHERE scope = ? "
            "ORDER BY id, document"
        )
        for some in portions(self._ask(statement, scope)):
            entries: dict[int, list[Entry]] = {row[0]: [] for row in some}
            of_some = f"{_ENTRIES} WHERE e.document IN ({', '.join('?' * len(some))}) ORDER BY e.document, e.place"
            for row in self._ask(of_some, *entries):
                entries[row[-1]].append(_entry(row))
            for document, identifier, expected, stages, artifacts, stated in some:
                yield Manifest(
                    scope,
                    identifier,
                    tuple(entries[document]),
                    *_states(expected, stages),
                    tuple(Artifact(*one) for one in json.loads(artifacts)),
                    tuple((name, text) for name, text in json.loads(stated)),
                )

    def files(self) -> set[str]:
        """Return every file of a published table, by its path in the lake. LakeError if a manifest is unreadable."""
        self.require_readable("session")
        self.require_readable("campaign")
        return {file for file in self._ask(_ENTRIES, decode=lambda row: _entry(row).file) if file}

    def progress(self) -> dict[str, Progress]:
        """Return the progress of every session with a readable manifest, by id."""
        statement = "SELECT id, expected, stages FROM manifests WHERE scope = 'session' ORDER BY id"
        return dict(self._ask(statement, decode=lambda row: (row[0], _progress(*row[1:]))))

    def published_bytes(self) -> dict[str, int]:
        """Return the published bytes of every session with a readable manifest, by id."""
        return dict(self._ask("SELECT id, bytes FROM manifests WHERE scope = 'session'"))

    def digests(self, tables: Sequence[str]) -> dict[str, str]:
        """Return a text per session that changes with anything the session publishes in these tables."""
        statement = (
            "SELECT m.id, e.sha256 FROM entries AS e JOIN manifests AS m ON m.document = e.document "
            "WHERE e.table_name = ? AND m.scope = 'session' ORDER BY e.document, e.place"
        )
        found: dict[str, str] = {}
        for table in tables:
            for identifier, digest in self._ask(statement, table):
                found[identifier] = f"{found.get(identifier, '')}{table} {digest} "
        return found

    def contents(self, scope: Scope) -> dict[str, str]:
        """Return the SHA-256 of every readable manifest of a scope, by id."""
        statement = "SELECT m.id, d.sha256 FROM manifests AS m JOIN documents AS d ON d.number = m.document"
        return dict(self._ask(f"{statement} WHERE m.scope = ?", scope, decode=lambda row: (row[0], row[1].hex())))

    def digest(self) -> str:
        """Return a digest that changes whenever the content of a readable manifest changes."""
        rows = self._ask("SELECT name, sha256 FROM documents WHERE name > ? AND name < ? ORDER BY name", *self._names)
        return sha256(repr(rows).encode()).hexdigest()

    def rows_of_tables(self) -> dict[str, int]:
        """Return the number of published rows of each table. LakeError if a manifest is unreadable."""
        self.require_readable("session")
        self.require_readable("campaign")
        return dict(self._ask("SELECT table_name, sum(rows) FROM entries GROUP BY table_name"))

    def remembered(self, kind: str) -> dict[str, tuple[str, str]]:
        """Return cached values of a kind by id, each with the text that identifies its sources."""
        statement = "SELECT id, made_of, value FROM remembered WHERE kind = ?"
        return dict(self._ask(statement, kind, decode=lambda row: (row[0], row[1:])))

    def remember(self, kind: str, found: Mapping[str, tuple[str, str]]) -> None:
        """Cache values for other processes. Later queries may see a later state of the lake."""
        rows = [(identifier, kind, *one) for identifier, one in found.items()]
        with suppress(sqlite3.Error):  # they will be computed again
            self._write(lambda at: at.executemany("INSERT OR REPLACE INTO remembered VALUES (?, ?, ?, ?)", rows))

    def _settle(self) -> None:
        super()._settle()
        for scope, identifier in self._lake.lost({Path(name).stem for name in self._present}):
            self.errors[identifier] = LostManifestError(self._lake.manifest_path(identifier, scope))

    def _parse(self, content: bytes, path: Path) -> Manifest:
        return manifest_of_file(content, path)

    def _rows(self, parsed: Manifest) -> Iterator[tuple[str, Iterable[Sequence[object]]]]:
        bytes_ = sum(one.bytes for one in parsed.entries) + sum(one.bytes for one in parsed.artifacts)
        texts = map(json.dumps, (parsed.expected, parsed.stages, parsed.artifacts, parsed.stated))
        yield "manifests", [(parsed.scope, parsed.id, bytes_, *texts)]
        yield (
            "entries",
            (
                (place, one.table, one.stage, _USUAL if one.file == _usual_file(parsed, one) else one.file, *one[3:])
                for place, one in enumerate(parsed.entries)
            ),
        )

    def _forget(self, at: sqlite3.Connection, names: Iterable[str]) -> None:
        super()._forget(at, names)
        at.execute("DELETE FROM remembered WHERE id NOT IN (SELECT id FROM manifests)")


class SegmentCatalogue(KeptDocuments[SegmentList]):
    """The lists of one table's segments at one instant, for use in a `with`.

    `errors` maps the name of a segment with an unreadable list to its error.
    """

    TABLES = ("segments", "parts")
    REFUSED = "not a segment's list ({}); `aaco doctor --mend` helps"

    def __init__(self, lake: LakeFolder, table: str) -> None:
        self._table = table
        super().__init__(lake, f"{SEGMENTS}/{table}")

    def held(self, ids: Collection[str] | None = None) -> dict[PartKey, Held]:
        """Locate each part, or each part of `ids`; if several segments hold it, the newest counts.

        Parts may be missing if the cache is damaged undetected, and all parts of a torn list are missing;
        `aaco_pipeline.lake.health` reports those. NewerSegmentError if a later version wrote a list.
        """
        for error in self.errors.values():
            if isinstance(error, NewerSegmentError):
                raise error
        statement = (
            "SELECT s.table_name, s.name, s.made, s.table_version, s.parts, s.row_groups, s.footer "
            "FROM documents AS d LEFT JOIN segments AS s ON s.document = d.number WHERE d.name > ? AND d.name < ?"
        )
        segments = self._ask(statement, *self._names, decode=_segment)
        named = [] if ids is None or len(ids) > _MOST_NAMED else sorted(ids)
        # The segment is given by name, because its number may differ in another state of the cache.
        parts = (
            "SELECT owner, stage, sha256, place, first_row, rows, checksum FROM parts "
            "WHERE document = (SELECT document FROM segments WHERE table_name = ? AND name = ?)"
            + (f" AND owner IN ({', '.join('?' * len(named))})" if named else "")
        )
        return {
            key: held
            for segment in sorted(segments, key=lambda one: (one.made, one.name))
            for key, held in self._ask(parts, self._table, segment.name, *named, decode=partial(_held, segment))
            if ids is None or key[0] in ids
        }

    def _parse(self, content: bytes, path: Path) -> SegmentList:
        return SegmentList.from_bytes(content, str(path))

    def _rows(self, parsed: SegmentList) -> Iterator[tuple[str, Iterable[Sequence[object]]]]:
        one = parsed.segment
        groups, footer = json.dumps(one.row_groups), json.dumps(one.footer)
        yield "segments", [(one.table, one.name, one.made.isoformat(), one.table_version, one.parts, groups, footer)]
        owners, stages, digests, rows = (parsed.columns[name] for name in ("id", "stage", "sha256", "rows"))
        parts = zip(owners, stages, digests, range(one.parts), accumulate(rows, initial=0), rows, strict=False)
        yield "parts", ((part[3], *part[:3], *part[4:], _checksum(part)) for part in parts)


def _usual_file(of: Manifest, one: Entry) -> str:
    return table_file(one.table, of.scope, of.id, one.stage, one.sha256)


def _entry(row: Sequence[Any]) -> Entry:
    """Decode a row of `_ENTRIES`."""
    scope, identifier, table, stage, file, rows, bytes_, digest, version, _ = row
    named = table_file(table, scope, identifier, stage, digest) if file == _USUAL else file
    return Entry(table, stage, named, rows, bytes_, digest, version)


@cache
def _states(expected: str, stages: str) -> tuple[tuple[StageState, ...], tuple[str, ...]]:
    """Decode the stages that have run and those expected; many sessions share the same ones."""
    return tuple(StageState(*one) for one in json.loads(stages)), tuple(json.loads(expected))


@cache
def _progress(expected: str, stages: str) -> Progress:
    ran, to_run = _states(expected, stages)
    return progress_of(Manifest("session", "", stages=ran, expected=to_run))


def _segment(row: Sequence[Any]) -> Segment:
    table, name, made, table_version, parts, row_groups, footer = row
    groups = tuple(map(RowGroup._make, json.loads(row_groups)))
    return Segment(
        table, name, datetime.fromisoformat(made), table_version, parts, groups, RowGroup._make(json.loads(footer))
    )


def _held(segment: Segment, row: tuple[Any, ...]) -> tuple[PartKey, Held]:
    """Decode the key and the place of a part.

    ValueError if the row is damaged: another part's rows would be read instead.
    """
    *values, checksum = row
    if _checksum(tuple(values)) != checksum:
        raise ValueError("a part is not what was kept")
    owner, stage, digest, place, first_row, rows = values
    return (owner, stage, digest), Held(segment, place, first_row, rows)


def _checksum(values: tuple[Any, ...]) -> int:
    return crc32(repr(values).encode())


def mark_earlier(lake: LakeFolder, but: str | None = None) -> None:
    """Mark sessions and campaigns committed by a version without markers, and record that this was done.

    A marker shows that a session or campaign was committed, so that a missing manifest is reported as lost. Owners
    locked by a writer are left to that writer, and `but` to the caller, who is about to commit it.
    """
    folder, due = lake.path / MANIFESTS, dict[Scope, list[str]]()
    if lake.storage.names(folder):
        with Catalogue(lake) as known:
            for scope, identifier in _without_marker(lake, known.committed()):
                if identifier != but:
                    due.setdefault(scope, []).append(identifier)
    done = [mark(lake, scope, identifiers) for scope, identifiers in due.items()]
    if all(done):
        lake.storage.create(folder, [MARKED])


def unmarked(lake: LakeFolder, committed: Iterable[tuple[Scope, str]]) -> Iterator[tuple[Scope, str]]:
    """Yield committed sessions and campaigns that no writer will mark; none if the lake was never marked."""
    if lake.storage.state(lake.path / MANIFESTS / MARKED) is None:
        return  # the next writer will mark them all
    for scope, identifier in _without_marker(lake, committed):
        marker, manifest = lake.marker_path(identifier, scope), lake.manifest_path(identifier, scope)
        # Writers hold the lock from manifest to marker: an unlocked manifest without a marker lost its writer.
        if (
            not lake.storage.is_held(lake.lock_path(identifier))
            and lake.storage.state(marker) is None
            and lake.storage.state(manifest) is not None
        ):
            yield scope, identifier


def _without_marker(lake: LakeFolder, committed: Iterable[tuple[Scope, str]]) -> Iterator[tuple[Scope, str]]:
    marked = {scope: {*lake.marked(scope)} for scope in MARKERS}
    return ((scope, one) for scope, one in committed if one not in marked[scope])


def mark(lake: LakeFolder, scope: Scope, identifiers: Sequence[str]) -> bool:
    """Mark those that have a manifest. False if a writer is working on one, which is left to that writer."""
    is_done = True
    for some in portions(identifiers):
        with ExitStack() as held:
            found = []
            for one in some:
                try:
                    held.enter_context(lake.locked(one, scope, wait_seconds=0.0))
                except PassingLakeError:
                    is_done = False
                    continue
                if lake.storage.state(lake.manifest_path(one, scope)) is not None:
                    found.append(one)
                else:  # removed meanwhile, together with its lock
                    lake.storage.drop_lock(lake.lock_path(one))
            if found:
                with lake_errors(lake.path / MARKERS[scope]):
                    lake.storage.create(lake.path / MARKERS[scope], found)
    return is_done
