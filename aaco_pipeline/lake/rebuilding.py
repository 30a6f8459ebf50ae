"""Rebuild a torn or lost manifest from the tables' files, or rename a misnamed one.

Each file states its table, owner and stage in its metadata, and the first digits of its digest in its name.
"""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.contracts import all_tables
from aaco_pipeline.lake.declaration import Scope, Table
from aaco_pipeline.lake.files import file_digest, lake_errors
from aaco_pipeline.lake.layout import DIGITS_IN_NAME, scope_of, table_file
from aaco_pipeline.lake.manifest import Entry, Manifest, MisnamedManifestError, NewerManifestError
from aaco_pipeline.lake.reading import LakeReader, read_manifest
from aaco_pipeline.lake.segments.format import readable_lists
from aaco_pipeline.lake.store import TraceLake

_REASON: Final = "its manifest was torn or lost and is rebuilt from the files of its tables; run it again"


def rebuild_manifest(lake: TraceLake, identifier: str) -> Manifest:
    """Rebuild the torn or lost manifest of a session or campaign from its tables' files, and return it.

    Tables without rows and earlier failures leave no files, and of two files of one table the published one is unknown.
    So every stage found is recorded as failed, and the session is not whole until they have run again. LakeError when
    the manifest is of a later version.
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
    """Tell whether a manifest can be rebuilt: from a table's rows, or from the session's capture."""
    is_captured = scope == "session" and lake.has_raw(identifier)
    return is_captured or next(_entries(lake, scope, identifier), None) is not None


def put_back(lake: TraceLake, path: Path) -> bool:
    """Rename a misnamed manifest; False if another manifest has its name."""
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
    """Yield an entry for every table of every stage that has exactly one intact file, or one version in segments."""
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
    """Entries for the parts of one owner's table in segments, dead or not, by table and stage."""
    found: dict[tuple[str, str], set[Entry]] = defaultdict(set)
    for one in readable_lists(lake.path, table.name):
        for part in one.parts:
            if part.id == identifier:
                file = table_file(table.name, table.scope, *part[:3])
                entry = Entry(table.name, part.stage, file, part.rows, part.bytes, part.sha256, part.contract_version)
                found[table.name, part.stage].add(entry)
    return {key: list(entries) for key, entries in found.items()}


def _entry(lake: LakeReader, table: Table, identifier: str, file: Path) -> Entry | None:
    """Make the entry of a file from its metadata; None if it is torn or belongs elsewhere."""
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
