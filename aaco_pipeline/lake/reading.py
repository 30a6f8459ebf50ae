"""Read a lake: list its sessions and campaigns, and read verified table rows from files or segments.

If either the file or the segment is torn or missing, the other is used; it is only an error if both are.
`aaco_pipeline.lake.store` writes; `aaco_pipeline.lake.sql` runs SQL.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
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

    from aaco_pipeline.lake.catalogue import Catalogue


Place = Path | Held
"""A file of its own, or a part of a segment."""


class Places:
    """Locate the rows of one table for one read. Segments are looked up on first use.

    With `segments_first`, segments are preferred to files, so that reading many owners opens few files.
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
        """Locate and verify the rows of a non-empty published table. LakeError if no intact copy exists."""
        try:
            return self._found(owner, entry)
        except LakeError:
            if self._is_of_lists:
                raise
        # The cached lists may be damaged undetected: only the lists themselves can prove that rows are missing.
        self._held = where_held(readable_lists(self._lake, self._table.name), self._ids)
        self._is_of_lists = True
        return self._found(owner, entry)

    def _found(self, owner: str, entry: Entry) -> Place:
        failed: dict[bool, LakeError] = {}
        for in_segment in (True, False) if self._segments_first else (False, True):
            try:
                place = self._part(owner, entry) if in_segment else require_intact(self._lake, entry)
                if place is not None:
                    return place
            except LakeError as error:
                failed[in_segment] = error
        raise failed.get(True) or failed[False]

    def _part(self, owner: str, entry: Entry) -> Held | None:
        if self._held is None:
            self._held = self._kept()
        held = self._held.get((owner, entry.stage, entry.sha256))
        if held is not None:
            told = f"table {entry.table} of {self._table.scope} {owner}, stage {entry.stage}"
            require_part_intact(self._lake, held, told, self._seen)
        return held

    def _kept(self) -> dict[PartKey, Held]:
        """Look the parts up in this host's cache of the lists."""
        if not list_names(self._lake, self._table.name):
            return {}
        from aaco_pipeline.lake.catalogue import SegmentCatalogue

        with SegmentCatalogue(LakeFolder(self._lake), self._table.name) as known:
            return known.held(self._ids)


def read_places(
    lake: Path, table: Table, places: Sequence[Place], columns: Sequence[str] | None
) -> "list[pl.DataFrame]":
    """Read the rows at these places in order, in the contract's columns or the given ones."""
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
    """Read some rows at a place in these columns; `rows` gives the first row and the number of rows."""
    if isinstance(place, Path):
        return _read_file(table, place, columns, rows)
    first, count = rows
    part = place._replace(first_row=place.first_row + first, rows=count)
    (frame,) = read_places(lake, table, [part], columns)
    return frame


def _read_file(
    table: Table, path: Path, columns: Sequence[str] | None, rows: tuple[int, int] | None = None
) -> "pl.DataFrame":
    """Read a table's own file, or some of its rows; the key comes from the path, as only older files contain it."""
    import polars as pl

    asked = list(polars_schema(table)) if columns is None else [*columns]
    try:
        held = [name for name in pl.read_parquet_schema(path) if name in asked] if columns is not None else None
        # The row count is known even if none of the columns exist in this file.
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
    """Select the columns in this order; columns missing from an older contract are null."""
    import polars as pl

    schema = polars_schema(table)
    absent = [pl.lit(None, schema[name]).alias(name) for name in columns if name not in frame.columns]
    return frame.with_columns(absent).select(columns)


#: Rows per batch: one row group as written by Polars.
_BATCH_ROWS: Final = 1 << 17
#: For more sessions or campaigns than this, manifests are looked up in the catalogue.
_MOST_NAMED: Final = 200


class LakeReader(LakeFolder):
    """A lake to read from. A lake that does not exist is empty."""

    def sessions(self) -> list[str]:
        """Return ids of all sessions with a manifest, oldest first, including those whose manifest is lost.

        Reading a lost one raises its error.
        """
        return self._committed("session")

    def campaigns(self) -> list[str]:
        """Return sorted ids of all campaigns with a manifest, including those whose manifest is lost."""
        return self._committed("campaign")

    def catalogue(self, *, whole: bool = False) -> "Catalogue":
        """Return the catalogue of all current manifests, for use in a `with`."""
        from aaco_pipeline.lake.catalogue import Catalogue

        self._require_folder()
        return Catalogue(self, whole=whole)

    def manifests(self, scope: Scope) -> Iterator[Manifest]:
        """Yield every manifest of a scope, sorted by id. LakeError if any of them is unreadable."""
        with self.catalogue() as known:
            yield from known.manifests(scope)

    def manifest(self, identifier: str, scope: Scope = "session") -> Manifest:
        """Read the manifest of a session or campaign; it is empty if nothing is published.

        LakeError if it is lost or unreadable.
        """
        path = self.manifest_path(identifier, scope)
        found = read_manifest(self.storage, path)
        with lake_errors(path):
            if found is None and self.is_lost(identifier, scope):
                raise LostManifestError(path)
        return found or Manifest(scope, identifier)

    def progress(self, session: str) -> Progress:
        """Return the progress of a session: expected stages, and those that published, failed or never ran."""
        return progress_of(self.manifest(session))

    def unfinished(self) -> list[str]:
        """Return ids of sessions that were captured or have a manifest, but are not known to be complete.

        LakeError if a session's manifest is unreadable.
        """
        with self.catalogue() as known:
            known.require_readable("session")
            progress = known.progress()
        return sorted({*progress, *self.captured()} - {name for name, one in progress.items() if one.is_whole})

    def find_session(self, name: str) -> str:
        """Resolve a name to a session: an id, a unique prefix of one, or `latest`. UsageError otherwise."""
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
        """Return the bytes on disk of everything stored for `session`: tables, raw capture, trace and report."""
        folders = [self.path / name / f"session_id={require_session_id(session)}" for name in SESSION_FOLDERS]
        return self.table_bytes(session) + sum(map(self.storage.bytes_below, folders))

    def table_bytes(self, identifier: str, scope: Scope = "session") -> int:
        """Return the bytes of a session's or campaign's published tables, or of the existing files if it is lost."""
        if not self.is_lost(identifier, scope):
            return sum(entry.bytes for entry in self.manifest(identifier, scope).entries)
        tables = {*self.storage.names(self.path)}.difference(SESSION_FOLDERS)
        return sum(self.storage.bytes_below(self.path / one / f"{scope}_id={identifier}") for one in tables)

    def segment_bytes(self, identifier: str, scope: Scope = "session") -> int:
        """Return the original file bytes of tables that exist only in segments; 0 if the manifest is lost."""
        entries = () if self.is_lost(identifier, scope) else self.manifest(identifier, scope).entries
        with lake_errors(self.path):
            return sum(one.bytes for one in entries if one.file and self.storage.state(self.path / one.file) is None)

    def read(
        self, table: str, session: str | Sequence[str] | None = None, columns: Sequence[str] | None = None
    ) -> "pl.DataFrame":
        """Read one table as a Polars frame.

        Args:
            table: the table's name.
            session: one session or several, by id, unique prefix or `latest`; None for all. For a table of campaigns,
                names of campaigns.
            columns: the columns to read; None for all of the contract.

        Returns:
            The contract's columns in its order. Columns that an older contract lacked are null.

        Raises:
            UsageError: the table is unknown or a name ambiguous.
            LakeError: the contract is newer, or a file is torn.
        """
        import polars as pl

        declared = find_contract(table)
        if session is None:
            frames = self._read(declared, columns, lambda: self.published([declared])[table])
        else:
            named = [session] if isinstance(session, str) else list(session)
            owners = [self.find_session(name) if declared.scope == "session" else name for name in named]
            of_owners = [partial(self._entries, declared, owner) for owner in owners]
            frames = [frame for published in of_owners for frame in self._read(declared, columns, published)]
        empty = pl.DataFrame(schema=polars_schema(declared))
        return pl.concat(frames) if frames else empty if columns is None else empty.select(columns)

    def _entries(self, table: Table, owner: str) -> list[tuple[str, Entry]]:
        return [(owner, entry) for entry in self.manifest(owner, table.scope).of_table(table.name)]

    def batches(self, table: str, session: str, columns: Sequence[str]) -> Iterator["pl.DataFrame"]:
        """Read columns of one session's table in batches of rows, in order; a table without rows is one empty batch.

        Raises like `read`, and LakeError if a writer supersedes the table meanwhile.
        """
        import polars as pl

        declared = find_contract(table)
        owner = self.find_session(session)
        published = [one for one in self._entries(declared, owner) if one[1].file]
        if not published:
            yield pl.DataFrame(schema=polars_schema(declared)).select(columns)
        for (_, entry), place in zip(published, self.places(declared, published), strict=True):
            for first in range(0, entry.rows, _BATCH_ROWS):
                yield read_batch(self.path, declared, place, columns, (first, min(_BATCH_ROWS, entry.rows - first)))

    def read_entry(self, entry: Entry) -> "pl.DataFrame":
        """Read one published table after `verify_entry`."""
        import polars as pl

        place = self.verify_entry(entry)
        table = find_contract(entry.table)
        if place is None:
            return pl.DataFrame(schema=polars_schema(table))
        (frame,) = read_places(self.path, table, [place], None)
        return frame

    def verify_entry(self, entry: Entry) -> Place | None:
        """Locate a published table and verify its bytes and column types; None if it has no rows.

        LakeError if either is wrong. The values were checked against the contract before publication.
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
        """Raise LakeError if no intact copy of a published table exists."""
        _, owner = owner_of(self.path / published.file)
        if published.table not in all_tables():
            require_intact(self.path, published)
        else:
            Places(self.path, contract(published.table), [owner]).of(owner, published)

    def published(
        self, tables: Sequence[Table], meant: Mapping[str, frozenset[str]] | None = None
    ) -> dict[str, list[tuple[str, Entry]]]:
        """Return every published entry of each table with its owner, in id order and as of one instant.

        A table in `meant` is limited to those ids; if all tables are limited to few, only their manifests are read.
        LakeError if one of these manifests is unreadable.
        """
        named = {table.name: (meant or {}).get(table.name) for table in tables}
        if any(ids is None or len(ids) > _MOST_NAMED for ids in named.values()):
            with self.catalogue() as known:
                return {
                    table.name: known.entries(table.name, table.scope, None if ids is None else ids.__contains__)
                    for table in tables
                    for ids in (named[table.name],)
                }
        owners = [
            (table, one) for table in tables for one in sorted(named[table.name] or ()) if is_id(one, table.scope)
        ]
        manifests = {key: self.manifest(*key) for key in {(one, table.scope) for table, one in owners}}
        found: dict[str, list[tuple[str, Entry]]] = {table.name: [] for table in tables}
        for table, one in owners:
            found[table.name] += [(one, entry) for entry in manifests[one, table.scope].of_table(table.name)]
        return found

    def places(self, table: Table, published: Sequence[tuple[str, Entry]]) -> list[Place]:
        """Locate and verify each non-empty published entry: own files first for one owner, else segments first.

        LakeError if one is torn or missing, or was written under a newer contract.
        """
        owners = {owner for owner, _ in published}
        found = Places(self.path, table, owners, segments_first=len(owners) > 1)
        for owner, entry in published:
            _require_readable(table, entry, table.scope, owner)
        return [found.of(owner, entry) for owner, entry in published if entry.file]

    def view(self, session: str, path: Path, rests_on: str) -> bytes | None:
        """Return the content of a session's `trace` or `report`; None unless intact and generated from `rests_on`."""
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

    def _read(
        self, table: Table, columns: Sequence[str] | None, published: Callable[[], list[tuple[str, Entry]]]
    ) -> list["pl.DataFrame"]:
        while True:
            before = (published(), list_names(self.path, table.name))
            try:
                return read_places(self.path, table, self.places(table, before[0]), columns)
            except LakeError:
                # Either a writer superseded the file after its name was read, or the file is torn or lost.
                if (published(), list_names(self.path, table.name)) == before:
                    raise


def read_manifest(storage: Storage, path: Path) -> Manifest | None:
    """Read the manifest in the file `path`; None if it does not exist."""
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
