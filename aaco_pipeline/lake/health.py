"""What is torn, orphaned or stale in a lake, and removing what nothing needs.

What is wrong between the lake, Dagster and the host is `aaco_pipeline.automation.doctor`.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.files import TEMPORARY_PREFIX, file_digest, lake_errors, lock_is_free, remove_free_lock
from aaco_pipeline.lake.identity import CAMPAIGN_ID, SESSION_ID
from aaco_pipeline.lake.journal import JOURNAL
from aaco_pipeline.lake.layout import CALIBRATIONS, MANIFESTS, REQUESTS, SESSION_FOLDERS, owner_of
from aaco_pipeline.lake.manifest import Entry, Manifest
from aaco_pipeline.lake.reading import LakeReader, read_manifest


@dataclass(frozen=True)
class Fault:
    """Something in the lake that is not as it should be. `mendable` faults are mended by removing `path`."""

    kind: str
    path: Path
    explanation: str
    mendable: bool


def faults(lake: LakeReader) -> list[Fault]:
    """Everything torn, orphaned or stale in the lake. Reads every published byte."""
    with lake_errors(lake.path):
        found: list[Fault] = []
        published: set[Path] = set()
        unreadable = False
        for path in sorted((lake.path / MANIFESTS).glob("*.json")):
            try:
                manifest = read_manifest(path)
            except LakeError as error:
                unreadable = True
                found.append(Fault("unreadable manifest", path, str(error), mendable=False))
                continue
            if manifest is not None:
                published |= {lake.path / file for file in manifest.files}
                found += _damaged_files(lake, manifest)
        if not unreadable:  # an unreadable manifest may publish what looks like an orphan
            found += _unpublished_files(lake, published)
        return [*found, *_stale_locks(lake)]


def leftovers(lake: LakeReader) -> list[Fault]:
    """What dead writers left and nothing needs: every fault that is mended by removing a path. Reads no table.

    LakeError when a manifest cannot be read, which may publish what looks like an orphan.
    """
    with lake_errors(lake.path):
        published = {lake.path / file for manifest in lake.manifests() for file in manifest.files}
        return [fault for fault in (*_unpublished_files(lake, published), *_stale_locks(lake)) if fault.mendable]


def mend(lake: LakeReader, fault: Fault) -> bool:
    """Remove what a mendable fault names, unless a writer took it up meanwhile. True when it is gone."""
    if not fault.mendable:
        return False
    with lake_errors(fault.path):
        if fault.kind == "stale lock":
            remove_free_lock(fault.path)
        elif fault.kind == "unfinished write" and fault.path.is_dir():
            shutil.rmtree(fault.path)
        elif fault.kind == "unfinished write":
            fault.path.unlink(missing_ok=True)
        else:
            scope, identifier = owner_of(fault.path)
            with lake.locked(identifier, scope):
                if fault.path not in {lake.path / file for file in lake.manifest(identifier, scope).files}:
                    fault.path.unlink(missing_ok=True)
    return not fault.path.exists()


def _damaged_files(lake: LakeReader, manifest: Manifest) -> Iterator[Fault]:
    for entry in manifest.entries:
        kind = _damage(lake, entry)
        # A writer may have superseded the file after its name was read: then it is no fault.
        if kind is not None and entry in lake.manifest(manifest.id, manifest.scope).entries:
            where = f"table {entry.table} of {manifest.scope} {manifest.id}"
            yield Fault(kind, lake.path / entry.file, f"{where}; materialize stage {entry.stage} again", mendable=False)


def _damage(lake: LakeReader, entry: Entry) -> str | None:
    try:
        intact = not entry.file or file_digest(lake.path / entry.file) == entry.sha256
    except FileNotFoundError:
        return "missing file"
    return None if intact else "torn file"


def _unpublished_files(lake: LakeReader, published: set[Path]) -> Iterator[Fault]:
    for path in sorted(lake.path.glob(f"{TEMPORARY_PREFIX}*")):
        if not _writer_lives(path):
            yield Fault("unfinished write", path, "what a statement of SQL spilled; its process died", mendable=True)
    folders = lake.path.iterdir() if lake.path.is_dir() else ()
    for folder in sorted(folder for folder in folders if folder.is_dir() and not folder.name.startswith(".")):
        holds_tables = folder.name not in (MANIFESTS, REQUESTS, CALIBRATIONS, JOURNAL, *SESSION_FOLDERS)
        for path in sorted(folder.glob("*_id=*/*" if holds_tables else f"{TEMPORARY_PREFIX}*")):
            if path.name.startswith(TEMPORARY_PREFIX):
                if not _writer_lives(path):
                    yield Fault("unfinished write", path, "left by a writer that died", mendable=True)
            elif path not in published:
                yield Fault("orphan file", path, "no manifest publishes it", mendable=_is_ours(path))


def _stale_locks(lake: LakeReader) -> Iterator[Fault]:
    known = {path.stem for path in (lake.path / MANIFESTS).glob("*.json")} | set(lake.captured())
    for lock in sorted((lake.path / ".locks").glob("*.lock")):
        if lock.stem not in known and lock_is_free(lock):
            yield Fault("stale lock", lock, "its session is not in the lake, and nobody holds it", mendable=True)


def _is_ours(path: Path) -> bool:
    """Whether an unpublished path is a file where only stages write; anything else is a person's."""
    scope, identifier = owner_of(path)
    pattern = SESSION_ID if scope == "session" else CAMPAIGN_ID
    return path.is_file() and pattern.fullmatch(identifier) is not None


def _writer_lives(path: Path) -> bool:
    """Whether the process that made the temporary `path` is still running (its number is in the name)."""
    number = path.name.removeprefix(TEMPORARY_PREFIX).partition("-")[0]
    return number.isdigit() and Path(f"/proc/{number}").is_dir()
