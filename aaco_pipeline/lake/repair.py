"""Repair a lake: rebuild or rename manifests, and find and rewrite damaged segments.

Each table's file states its table, owner and stage in its metadata, and the first digits of its digest in its name.
`aaco_pipeline.lake.health` finds all other faults.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Final

from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.contracts import all_tables
from aaco_pipeline.lake.declaration import Scope, Table
from aaco_pipeline.lake.files import file_digest, lake_errors
from aaco_pipeline.lake.layout import DIGITS_IN_NAME, SEGMENTS, LakeFolder, scope_of, table_file
from aaco_pipeline.lake.manifest import Entry, Manifest, MisnamedManifestError, NewerManifestError
from aaco_pipeline.lake.reading import LakeReader, read_manifest
from aaco_pipeline.lake.segments.compaction import clear_unlisted, rewrite, unlisted
from aaco_pipeline.lake.segments.format import (
    Held,
    NewerSegmentError,
    PartKey,
    SegmentList,
    list_names,
    read_list,
    readable_lists,
    torn_sections,
)
from aaco_pipeline.lake.store import TraceLake

_REASON: Final = "its manifest was torn or lost and is rebuilt from the files of its tables; run it again"


def rebuild_manifest(lake: TraceLake, identifier: str) -> Manifest:
    """Rebuild the torn or lost manifest of a session or campaign from its tables' files, and return it.

    Tables without rows and earlier failures leave no files, and of two files of one table the published one is unknown.
    Therefore every stage found is recorded as failed, and the session is incomplete until they have run again.
    LakeError if the manifest was written by a later version.
    """
    scope = scope_of(identifier)
    path = lake.manifest_path(identifier, scope)
    with lake_errors(path), lake.locked(identifier, scope):
        try:
            if (intact := read_manifest(lake.storage, path)) is not None:
                return intact  # another process has repaired it
        except NewerManifestError:
            raise
        except LakeError:
            pass
        manifest = Manifest(scope, identifier, tuple(sorted(_entries(lake, scope, identifier))))
        for stage in {entry.stage for entry in manifest.entries}:
            manifest = manifest.with_failure(stage, "", _REASON)
        lake.commit(manifest)
        return manifest


def is_rebuildable(lake: LakeReader, identifier: str, scope: Scope) -> bool:
    """Return whether a manifest can be rebuilt: from a table's rows, or from the session's capture."""
    is_captured = scope == "session" and lake.has_raw(identifier)
    return is_captured or next(_entries(lake, scope, identifier), None) is not None


def put_back(lake: TraceLake, path: Path) -> bool:
    """Rename a misnamed manifest; False if another manifest already has the correct name."""
    try:
        read_manifest(lake.storage, path)
        return True  # another process has repaired it
    except MisnamedManifestError as error:
        scope = scope_of(error.identifier)
        right = lake.manifest_path(error.identifier, scope)
        with lake_errors(path), lake.locked(error.identifier, scope):
            misnamed = Manifest.from_bytes(lake.storage.read(path), str(path))
            if lake.storage.state(right) is None:
                lake.commit(misnamed)
            elif read_manifest(lake.storage, right) != misnamed:
                return False
            lake.storage.remove(path)
        return True


def _entries(lake: LakeReader, scope: Scope, identifier: str) -> Iterator[Entry]:
    """Yield an entry for every table of every stage with exactly one intact file, or one version in segments."""
    found: dict[tuple[str, str], list[Entry]] = defaultdict(list)
    for table in all_tables().values():
        folder = lake.path / table.name / f"{scope}_id={identifier}"
        for name in lake.storage.names(folder):
            entry = _entry(lake, table, identifier, folder / name) if name.endswith(".parquet") else None
            if entry is not None:
                found[entry.table, entry.stage].append(entry)
        for key, parts in _parts(lake, table, identifier).items():
            if key not in found:  # tables published after the compaction have files
                found[key] = parts
    return (entries[0] for entries in found.values() if len(entries) == 1)


def _parts(lake: LakeReader, table: Table, identifier: str) -> dict[tuple[str, str], list[Entry]]:
    """Return entries for all parts of one owner's table in segments, dead or alive, by table and stage."""
    found: dict[tuple[str, str], set[Entry]] = defaultdict(set)
    for one in readable_lists(lake.path, table.name):
        for part in one.parts:
            if part.id == identifier:
                file = table_file(table.name, table.scope, *part[:3])
                entry = Entry(table.name, part.stage, file, part.rows, part.bytes, part.sha256, part.contract_version)
                found[table.name, part.stage].add(entry)
    return {key: list(entries) for key, entries in found.items()}


def _entry(lake: LakeReader, table: Table, identifier: str, file: Path) -> Entry | None:
    """Build the entry of a file from its metadata; None if it is torn or belongs elsewhere."""
    import polars as pl

    stage, _, begins = file.stem.rpartition("-")
    local = lake.storage.local(file)
    digest = file_digest(local)
    if not stage or len(begins) != DIGITS_IN_NAME or not digest.startswith(begins):
        return None
    try:
        stated = pl.read_parquet_metadata(local)
        rows = pl.scan_parquet(local, hive_partitioning=False, glob=False).select(pl.len()).collect().item()
    except (pl.exceptions.PolarsError, OSError):
        return None
    named = tuple(stated.get(f"aaco.{name}") for name in ("table", table.key, "stage"))
    version = stated.get("aaco.contract_version", "")
    if named != (table.name, identifier, stage) or not version.isdecimal():
        return None
    name = file.relative_to(lake.path).as_posix()
    return Entry(table.name, stage, name, rows, local.stat().st_size, digest, int(version))


TORN_SEGMENT: Final = "torn segment"
UNFINISHED_SEGMENT: Final = "unfinished segment"


@dataclass(frozen=True)
class Fault:
    """Damage in the lake, and whether it can be repaired.

    With a `session`, repairing marks the session as incomplete, and running its stages again fixes the fault.
    """

    kind: str
    path: Path
    explanation: str
    mendable: bool
    session: str | None = None


class Segments:
    """Every segment of a lake, each read once from disk and verified against its list."""

    def __init__(self, lake: LakeFolder) -> None:
        self.faults: list[Fault] = []
        self._torn: dict[str, set[int]] = {}
        #: Short digests of the keys of intact parts, by table: a large lake has half a million of them.
        self._whole: dict[str, set[bytes]] = {}
        for table in lake.storage.names(lake.path / SEGMENTS):
            lists = [one for name in list_names(lake.path, table) if (one := self._look_at(lake, table, name))]
            whole = self._whole[table] = set()
            for one in sorted(lists, key=lambda one: (one.segment.made, one.segment.name)):
                for key, held in one.held():  # if several segments hold it, the newest counts
                    (whole.add if self._is_whole(held) else whole.discard)(_short(key))
        self.faults += unfinished_segments(lake)

    def hold(self, owner: str, entry: Entry) -> bool:
        """Return whether a published table is intact in a segment."""
        return _short((owner, entry.stage, entry.sha256)) in self._whole.get(entry.table, ())

    def _is_whole(self, held: Held) -> bool:
        torn = self._torn[held.segment.file]
        row_groups = held.segment.row_groups
        return not torn or not torn & {*held.segment.row_groups_of(held.first_row, held.rows), len(row_groups)}

    def _look_at(self, lake: LakeFolder, table: str, name: str) -> SegmentList | None:
        path = lake.path / SEGMENTS / table / name
        try:
            one = read_list(lake.path, table, name)
        except LakeError as error:
            is_newer = isinstance(error, NewerSegmentError)  # intact; must not be touched
            kind = "newer segment" if is_newer else TORN_SEGMENT
            self.faults.append(Fault(kind, path, str(error), not is_newer))
            return None
        if one is not None:
            torn = self._torn[one.segment.file] = set(torn_sections(lake.path, one.segment))
            if torn:
                told = f"{len(torn)} of its {len(one.segment.sections)} sections are not what was written"
                self.faults.append(Fault(TORN_SEGMENT, path, f"{told}; the others are written anew", True))
        return one


def _short(key: PartKey) -> bytes:
    """A short digest of a part's key."""
    return blake2b("\n".join(key).encode(), digest_size=16).digest()


def unfinished_segments(lake: LakeFolder) -> Iterator[Fault]:
    """Yield leftovers of killed compactions; none while one is running."""
    left = list(unlisted(lake))
    if not lake.is_compacting():
        for path in left:
            yield Fault(UNFINISHED_SEGMENT, path, "left by a compaction that was killed", True)


def mend_segment(lake: TraceLake, path: Path) -> bool:
    """Repair a torn or unfinished segment as far as possible; return whether it is gone.

    Readable parts of a torn segment are rewritten. It stays while a session or campaign needs an unreadable part, which
    must be published again first.
    """
    if path.suffix != ".json":  # torn segments are named by their list
        with lake.compacting():
            clear_unlisted(lake)
        return lake.storage.state(path) is None
    table = path.parent.name
    try:
        one = read_list(lake.path, table, path.name)
    except LakeError:
        if not _is_whole_without(lake, table):
            return False
        with lake.compacting(), lake_errors(path):
            lake.storage.remove(path)
            clear_unlisted(lake)
        return True
    return one is None or rewrite(lake, one.segment, datetime.now(UTC))


def _is_whole_without(lake: TraceLake, table: str) -> bool:
    """Return whether everything published of a table is intact elsewhere; False if a manifest is torn."""
    declared = all_tables()[table]
    try:
        lake.places(declared, lake.published([declared])[table])
    except LakeError:
        return False
    return True
