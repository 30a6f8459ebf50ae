"""What is published in a lake and reading it: manifests, sessions by name, tables as frames.

Writing is `aaco_pipeline.lake.store`, SQL over the lake `aaco_pipeline.lake.sql`. Nothing here knows what the tables
mean.
"""

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final

from aaco_pipeline.errors import LakeError, UsageError
from aaco_pipeline.lake.contracts import all_tables, contract, find_contract, polars_dtype, polars_schema
from aaco_pipeline.lake.declaration import Scope, Table
from aaco_pipeline.lake.files import lake_errors
from aaco_pipeline.lake.identity import SESSION_ID, require_session_id
from aaco_pipeline.lake.layout import MANIFESTS, SESSION_FOLDERS, LakeFolder, is_id, owner_of
from aaco_pipeline.lake.manifest import Entry, LostManifestError, Manifest, manifest_of_file
from aaco_pipeline.lake.narrowing import Meant
from aaco_pipeline.lake.places import Place, Places, read_batch, read_places
from aaco_pipeline.lake.progress import Progress, progress_of
from aaco_pipeline.lake.segments.format import list_names
from aaco_pipeline.lake.storage import Storage
from aaco_pipeline.lake.verified import require_intact

if TYPE_CHECKING:
    import polars as pl

    from aaco_pipeline.lake.catalogue.manifests import Catalogue

#: The rows of a batch: those of one row group, as Polars writes them.
_BATCH_ROWS: Final = 1 << 17


class LakeReader(LakeFolder):
    """A lake to read from. One that does not exist is an empty one."""

    def sessions(self) -> list[str]:
        """Ids of all sessions with a manifest, oldest first: something is published, or stated to be expected.

        Those whose manifest is lost are among them; whoever reads of one gets the error.
        """
        return self._committed("session")

    def campaigns(self) -> list[str]:
        """Ids of all campaigns with a manifest, sorted; those whose manifest is lost are among them."""
        return self._committed("campaign")

    def catalogue(self, *, whole: bool = False) -> "Catalogue":
        """What all manifests say now, to be asked within a `with`; see `aaco_pipeline.lake.catalogue.manifests`."""
        from aaco_pipeline.lake.catalogue.manifests import Catalogue

        self._require_folder()
        return Catalogue(self, whole=whole)

    def manifests(self, scope: Scope) -> Iterator[Manifest]:
        """Every manifest of a scope, sorted by id. LakeError when one of them cannot be read."""
        with self.catalogue() as known:
            yield from known.manifests(scope)

    def manifest(self, identifier: str, scope: Scope = "session") -> Manifest:
        """What is published for one session or campaign; an empty manifest when nothing is.

        LakeError when it is lost or cannot be read.
        """
        path = self.manifest_path(identifier, scope)
        found = read_manifest(self.storage, path)
        with lake_errors(path):
            if found is None and self.is_lost(identifier, scope):
                raise LostManifestError(path)
        return found or Manifest(scope, identifier)

    def progress(self, session: str) -> Progress:
        """Which stages the session is to have, and which have published, failed or never run."""
        return progress_of(self.manifest(session))

    def unfinished(self) -> list[str]:
        """Ids of the sessions that were captured, or have a manifest, and do not state that they are whole.

        LakeError when the manifest of a session cannot be read.
        """
        with self.catalogue() as known:
            known.require_readable("session")
            progress = known.progress()
        return sorted({*progress, *self.captured()} - {name for name, one in progress.items() if one.is_whole})

    def find_session(self, name: str) -> str:
        """The session that `name` means: an id, a unique prefix of one, or `latest`. UsageError otherwise."""
        if SESSION_ID.fullmatch(name) and self.storage.state(self.manifest_path(name, "session")) is not None:
            return name
        known = self.sessions()
        if not known:
            raise UsageError(f"{self.path}: no sessions yet; `aaco run --model squeezenet` makes one")
        if name == "latest":
            return known[-1]
        matching = [identifier for identifier in known if identifier.startswith(name)]
        if name in matching or len(matching) == 1:
            return matching[0]
        if matching:
            raise UsageError(f"session {name!r} is ambiguous: {', '.join(matching[:4])} …; give more of the id")
        raise UsageError(f"no session {name!r} in {self.path}; `aaco ls` lists them, newest {known[-1]}")

    def disk_bytes(self, session: str) -> int:
        """Bytes on disk of everything the lake holds for `session`: tables, raw capture, trace and report."""
        folders = [self.path / name / f"session_id={require_session_id(session)}" for name in SESSION_FOLDERS]
        return self.table_bytes(session) + sum(map(self.storage.bytes_below, folders))

    def table_bytes(self, identifier: str, scope: Scope = "session") -> int:
        """Bytes of the published tables of a session or campaign; of a lost one, of the files that are there."""
        if not self.is_lost(identifier, scope):
            return sum(entry.bytes for entry in self.manifest(identifier, scope).entries)
        tables = {*self.storage.names(self.path)}.difference(SESSION_FOLDERS)
        return sum(self.storage.bytes_below(self.path / one / f"{scope}_id={identifier}") for one in tables)

    def segment_bytes(self, identifier: str, scope: Scope = "session") -> int:
        """Bytes of a session's or campaign's tables that are in segments alone, as their own files had them.

        Of a lost one that is not known, and 0.
        """
        entries = () if self.is_lost(identifier, scope) else self.manifest(identifier, scope).entries
        with lake_errors(self.path):
            return sum(one.bytes for one in entries if one.file and self.storage.state(self.path / one.file) is None)

    def read(
        self, table: str, session: str | Sequence[str] | None = None, columns: Sequence[str] | None = None
    ) -> "pl.DataFrame":
        """One table as a Polars frame: of one session, of several, or of all (None), in the contract's columns.

        Of these all, or those named by `columns` alone.

        For a table of campaigns, `session` names campaigns. Columns that an older contract did not have are null.
        Raises UsageError for an unknown table or an ambiguous name, LakeError for a newer contract or a torn file.
        """
        import polars as pl

        declared = find_contract(table)
        if session is None:
            frames = self._read_all(declared, columns)
        else:
            named = [session] if isinstance(session, str) else list(session)
            identifiers = [self.find_session(n) if declared.scope == "session" else n for n in named]
            frames = [frame for name in identifiers for frame in self._read_published(declared, name, columns)]
        return pl.concat(frames) if frames else _chosen(pl.DataFrame(schema=polars_schema(declared)), columns)

    def batches(self, table: str, session: str, columns: Sequence[str]) -> Iterator["pl.DataFrame"]:
        """These columns of one session's table, some rows at a time, in their order; of no rows one empty batch.

        Raises as `read`, and LakeError where a writer supersedes the table meanwhile.
        """
        import polars as pl

        declared = find_contract(table)
        owner = self.find_session(session)
        entries = [entry for entry in self.manifest(owner, declared.scope).of_table(table) if entry.file]
        if not entries:
            yield pl.DataFrame(schema=polars_schema(declared)).select(columns)
        places = self.places(declared, [(owner, entry) for entry in entries])
        for entry, place in zip(entries, places, strict=True):
            for first in range(0, entry.rows, _BATCH_ROWS):
                yield read_batch(self.path, declared, place, columns, (first, min(_BATCH_ROWS, entry.rows - first)))

    def read_entry(self, entry: Entry) -> "pl.DataFrame":
        """One published table, after `verify_entry`."""
        import polars as pl

        place = self.verify_entry(entry)
        table = find_contract(entry.table)
        if place is None:
            return pl.DataFrame(schema=polars_schema(table))
        (frame,) = read_places(self.path, table, [place], None)
        return frame

    def verify_entry(self, entry: Entry) -> Place | None:
        """Where a published table is; None when it has no rows.

        LakeError when it is not the bytes that were published, or its columns not its contract's. What is in the
        columns was held against the contract before those bytes were published.
        """
        import polars as pl

        table = find_contract(entry.table)
        if not entry.file:
            return None
        scope, owner = owner_of(self.path / entry.file)
        _require_readable(table, entry, scope, owner)
        place = Places(self.path, table, [owner]).of(owner, entry)
        path = place if isinstance(place, Path) else self.path / place.segment.file
        with lake_errors(path):
            held = pl.read_parquet_schema(path)
        declared = {c.name: polars_dtype(c.dtype) for c in table.columns if c.since <= entry.contract_version}
        wrong = sorted(name for name, dtype in declared.items() if held.get(name) != dtype)
        if wrong:
            raise LakeError(f"{path}: column {', '.join(wrong)} is not as table {table.name} declares it")
        return place

    def require_whole(self, published: Entry) -> None:
        """LakeError when a published table is nowhere as it was published."""
        _, owner = owner_of(self.path / published.file)
        if published.table not in all_tables():
            require_intact(self.path, published)
        else:
            Places(self.path, contract(published.table), [owner]).of(owner, published)

    def published(
        self, tables: Sequence[Table], meant: Mapping[str, Meant] | None = None
    ) -> dict[str, list[tuple[str, Entry]]]:
        """All that is published of each table, with the id that it belongs to, in the ids' order and of one instant.

        Of a table in `meant`, of those ids alone: where all are named, only their manifests are read. LakeError when a
        manifest that is meant cannot be read.
        """
        meant = meant or {}
        named = [meant[table.name].ids if table.name in meant else None for table in tables]
        if None in named:
            with self.catalogue() as known:
                return {table.name: known.entries(table.name, table.scope, meant.get(table.name)) for table in tables}
        manifests = {
            (table.scope, identifier): self.manifest(identifier, table.scope)
            for table, ids in zip(tables, named, strict=True)
            for identifier in sorted(ids or ())
            if is_id(identifier, table.scope) and meant[table.name](identifier)
        }
        return {
            table.name: [
                (identifier, entry)
                for (scope, identifier), manifest in sorted(manifests.items())
                if scope == table.scope and meant[table.name](identifier)
                for entry in manifest.of_table(table.name)
            ]
            for table in tables
        }

    def places(self, table: Table, published: Sequence[tuple[str, Entry]]) -> list[Place]:
        """Where each published entry with rows is, verified: of one owner its own file first, of more segments first.

        LakeError when one is torn or missing, or was written under a newer contract.
        """
        owners = {owner for owner, _ in published}
        found = Places(self.path, table, owners, segments_first=len(owners) > 1)
        for owner, entry in published:
            _require_readable(table, entry, table.scope, owner)
        return [found.of(owner, entry) for owner, entry in published if entry.file]

    def view(self, session: str, path: Path, rests_on: str) -> bytes | None:
        """The content of a session's `trace` or `report`; None unless it is whole and was made from just that."""
        stated = self.manifest(session).artifact(path.relative_to(self.path).as_posix())
        if stated is None or stated.rests_on != rests_on:
            return None
        with lake_errors(path):
            content = self.storage.read(path) if self.storage.state(path) is not None else b""
        return content if sha256(content).hexdigest() == stated.sha256 else None

    def _committed(self, scope: Scope) -> list[str]:
        self._require_folder()
        with lake_errors(self.path / MANIFESTS):
            names = (name for name in self.storage.names(self.path / MANIFESTS) if name.endswith(".json"))
            stated = {one for name in names if is_id(one := name.removesuffix(".json"), scope)}
            lost = (one for scope_of_it, one in self.lost(stated) if scope_of_it == scope)
            return sorted(stated.union(lost))

    def _require_folder(self) -> None:
        if (state := self.storage.state(self.path)) is not None and not state.is_folder:
            raise LakeError(f"{self.path}: not a folder, so not a lake; name another with --lake")

    def _read_published(self, table: Table, identifier: str, columns: Sequence[str] | None) -> list["pl.DataFrame"]:
        while True:
            manifest, lists = self.manifest(identifier, table.scope), list_names(self.path, table.name)
            try:
                published = [(identifier, entry) for entry in manifest.of_table(table.name)]
                return read_places(self.path, table, self.places(table, published), columns)
            except LakeError:
                # Either a writer superseded the file after we had read its name, or it is torn or lost.
                if (self.manifest(identifier, table.scope), list_names(self.path, table.name)) == (manifest, lists):
                    raise

    def _read_all(self, table: Table, columns: Sequence[str] | None) -> list["pl.DataFrame"]:
        while True:
            published, lists = self.published([table]), list_names(self.path, table.name)
            try:
                return read_places(self.path, table, self.places(table, published[table.name]), columns)
            except LakeError:
                if (self.published([table]), list_names(self.path, table.name)) == (published, lists):
                    raise


def read_manifest(storage: Storage, path: Path) -> Manifest | None:
    """The manifest in the file `path`; None when there is no such file."""
    with lake_errors(path):
        try:
            content = storage.read(path)
        except FileNotFoundError:
            return None
    return manifest_of_file(content, path)


def _require_readable(table: Table, entry: Entry, scope: Scope, identifier: str) -> None:
    if entry.contract_version > table.version:
        raise LakeError(
            f"table {table.name} of {scope} {identifier} was written under contract version "
            f"{entry.contract_version}, and this aaco_pipeline reads up to {table.version}; upgrade aaco_pipeline"
        )


def _chosen(frame: "pl.DataFrame", columns: Sequence[str] | None) -> "pl.DataFrame":
    return frame if columns is None else frame.select(columns)
