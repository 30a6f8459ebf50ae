"""Read a lake: which sessions and campaigns it holds, and verified rows of their tables from files or segments.

If the file or the segment is torn or gone, the other is used; it is an error only when both are. Writing is
`aaco_pipeline.lake.store`, SQL `aaco_pipeline.lake.sql`.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final

from aaco_pipeline.errors import LakeError, UsageError
from aaco_pipeline.lake.contracts import all_tables, contract, find_contract, polars_dtype, polars_schema
from aaco_pipeline.lake.declaration import Scope, Table
from aaco_pipeline.lake.files import lake_errors
from aaco_pipeline.lake.layout import (
    MANIFESTS,
    SESSION_FOLDERS,
    SESSION_ID,
    LakeFolder,
    is_id,
    owner_of,
    require_session_id,
)
from aaco_pipeline.lake.manifest import Entry, LostManifestError, Manifest, Progress, manifest_of_file, progress_of
from aaco_pipeline.lake.narrowing import Meant
from aaco_pipeline.lake.segments.format import (
    Held,
    PartKey,
    Segment,
    list_names,
    read_rows,
    readable_lists,
    require_part_intact,
    where_held,
)
from aaco_pipeline.lake.storage import STORAGE, Storage
from aaco_pipeline.lake.verified import missing, require_intact

if TYPE_CHECKING:
    import polars as pl
if TYPE_CHECKING:
    import polars as pl

    from aaco_pipeline.lake.catalogue.manifests import Catalogue


Place = Path | Held
"""A file of its own, or a part of a segment."""


class Places:
    """The places of one table's rows, for one reading. Segments are looked for when the first is needed.

    With `segments_first` a part of a segment is taken before a file: what reads many reads few files then.
    """

    def __init__(
        self, lake: Path, table: Table, ids: Collection[str] | None = None, *, segments_first: bool = False
    ) -> None:
        self._lake = lake
        self._table = table
        self._ids = ids
        self._segments_first = segments_first
        self._seen: set[tuple[str, int]] = set()
        self._held: dict[PartKey, Held] | None = None
        self._is_of_lists = False

    def of(self, owner: str, entry: Entry) -> Place:
        """Where the rows of a published table that has some are, verified. LakeError when they are nowhere whole."""
        try:
            return self._found(owner, entry)
        except LakeError:
            if self._is_of_lists:
                raise
        # What this host keeps of the lists may be damaged unseen: that rows are nowhere is for the lists to say.
        self._held = where_held(readable_lists(self._lake, self._table.name), self._ids)
        self._is_of_lists = True
        return self._found(owner, entry)

    def _found(self, owner: str, entry: Entry) -> Place:
        if not self._segments_first:
            try:
                return require_intact(self._lake, entry)
            except LakeError as error:
                if (held := self._part(owner, entry)) is None:
                    raise error
                return held
        try:
            held = self._part(owner, entry)
        except LakeError as error:
            try:
                return require_intact(self._lake, entry)
            except LakeError:
                raise error from None
        return require_intact(self._lake, entry) if held is None else held

    def _part(self, owner: str, entry: Entry) -> Held | None:
        if self._held is None:
            self._held = self._kept()
        held = self._held.get((owner, entry.stage, entry.sha256))
        if held is not None:
            told = f"table {entry.table} of {self._table.scope} {owner}, stage {entry.stage}"
            require_part_intact(self._lake, held, told, self._seen)
        return held

    def _kept(self) -> dict[PartKey, Held]:
        """Where the parts lie by what this host keeps of the lists."""
        if not list_names(self._lake, self._table.name):
            return {}
        from aaco_pipeline.lake.catalogue.segments import SegmentCatalogue

        with SegmentCatalogue(LakeFolder(self._lake), self._table.name) as known:
            return known.held(self._ids)


def read_places(
    lake: Path, table: Table, places: Sequence[Place], columns: Sequence[str] | None
) -> "list[pl.DataFrame]":
    """The rows at these places, in their order, in the contract's columns or those named."""
    asked = list(polars_schema(table)) if columns is None else [*columns]
    segments: dict[str, Segment] = {}
    runs: dict[str, list[tuple[int, int]]] = {}
    order: list[Path | str] = []
    for place in places:
        if isinstance(place, Path):
            order.append(place)
            continue
        file = place.segment.file
        segments[file] = place.segment
        own = runs.setdefault(file, [])
        if order and order[-1] == file and own and sum(own[-1]) == place.first_row:
            own[-1] = (own[-1][0], own[-1][1] + place.rows)
        else:
            own.append((place.first_row, place.rows))
            order.append(file)
    read = {file: iter(read_rows(lake, segment, runs[file], asked)) for file, segment in segments.items()}
    return [
        _in_columns(table, next(read[one]), asked) if isinstance(one, str) else _read_file(table, one, columns)
        for one in order
    ]


def read_batch(lake: Path, table: Table, place: Place, columns: Sequence[str], rows: tuple[int, int]) -> "pl.DataFrame":
    """Some of the rows at a place, the first of them and how many, in these columns."""
    if isinstance(place, Path):
        return _read_file(table, place, columns, rows)
    first, count = rows
    part = place._replace(first_row=place.first_row + first, rows=count)
    (frame,) = read_places(lake, table, [part], columns)
    return frame


def _read_file(
    table: Table, path: Path, columns: Sequence[str] | None, rows: tuple[int, int] | None = None
) -> "pl.DataFrame":
    """A table's own file, or some of its rows; the key comes from the path, as only older files hold it, too."""
    import polars as pl

    asked = list(polars_schema(table)) if columns is None else [*columns]
    try:
        held = [name for name in pl.read_parquet_schema(path) if name in asked] if columns is not None else None
        # Of columns that it does not hold it still says how many rows there are.
        if rows is None:
            frame = pl.read_parquet(path, columns=held or None, hive_partitioning=False, glob=False)
        else:
            scan = pl.scan_parquet(path, hive_partitioning=False, glob=False).slice(*rows)
            frame = (scan.select(held) if held else scan).collect()
    except (pl.exceptions.PolarsError, OSError) as error:
        if STORAGE.state(path) is None:
            raise missing(path) from error
        raise LakeError(f"{path}: cannot be read ({str(error).splitlines()[0]}); `aaco doctor` tells why") from error
    return _in_columns(table, frame.with_columns(pl.lit(owner_of(path)[1]).alias(table.key)), asked)


def _in_columns(table: Table, frame: "pl.DataFrame", columns: Sequence[str]) -> "pl.DataFrame":
    """The frame's columns in this order; those that an older contract did not have are null."""
    import polars as pl

    schema = polars_schema(table)
    absent = [pl.lit(None, schema[name]).alias(name) for name in columns if name not in frame.columns]
    return frame.with_columns(absent).select(columns)


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
