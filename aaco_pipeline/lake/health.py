"""Find torn, orphaned and stale files in a lake, remove unneeded ones, and prepare stages to run again.

`aaco_pipeline.pipeline.doctor` finds unfinished sessions and campaigns, and also runs their stages.
"""

import json
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Final

from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.artefacts import ARTEFACTS, BUILDS, drop_artefact, unnamed_artefacts
from aaco_pipeline.lake.catalogue import mark, unmarked
from aaco_pipeline.lake.declaration import Scope
from aaco_pipeline.lake.files import TEMPORARY_PREFIX, file_digest, lake_errors
from aaco_pipeline.lake.journal import JOURNAL
from aaco_pipeline.lake.layout import (
    CALIBRATIONS,
    FINDINGS,
    MANIFESTS,
    REQUESTS,
    SEGMENTS,
    SESSION_FOLDERS,
    is_id,
    owner_of,
    scope_of,
)
from aaco_pipeline.lake.manifest import (
    Entry,
    LostManifestError,
    Manifest,
    MisnamedManifestError,
    NewerManifestError,
)
from aaco_pipeline.lake.reading import LakeReader, read_manifest
from aaco_pipeline.lake.repair import (
    TORN_SEGMENT,
    UNFINISHED_SEGMENT,
    Segments,
    is_rebuildable,
    mend_segment,
    put_back,
    rebuild_manifest,
    unfinished_segments,
)
from aaco_pipeline.lake.repair import Fault as Fault  # noqa: PLC0414  (part of this module)
from aaco_pipeline.lake.retention import ASKED, CAMPAIGN_STAYS_OPEN, UNFINISHED_STAYS, Account
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.verified import RAW_LIST, described, raw_digests, raw_list, require_raw_intact

#: Folders of a lake without tables.
_WITHOUT_TABLES: Final = (
    MANIFESTS,
    REQUESTS,
    CALIBRATIONS,
    JOURNAL,
    ARTEFACTS,
    BUILDS,
    FINDINGS,
    SEGMENTS,
    *SESSION_FOLDERS,
)
#: While one of these exists, the content of the lake is unknown.
OF_MANIFESTS: Final = ("lost manifest", "misnamed manifest", "unreadable manifest")
UNMARKED: Final = "unmarked manifest"
_BY_A_WRITER: Final = "left by a writer that died"
#: Tables that name artefacts, with the column that does.
_NAMING: Final = (("baselines", "artefact"), ("bisection_builds", "artefact"), ("optimizations", "journal"))


def faults(lake: LakeReader) -> list[Fault]:
    """Find everything torn, orphaned or stale in the lake. Reads all published and captured bytes."""
    with lake_errors(lake.path):
        found: list[Fault] = []
        segments = Segments(lake)
        present = _present(lake)
        published: set[str] = set()
        unreadable: set[str] = set()
        committed: list[tuple[Scope, str]] = []
        for path, manifest in _manifests(lake):
            if isinstance(manifest, LakeError):
                unreadable |= _owners(path, manifest)
                found.append(_unreadable(lake, path, manifest))
            else:
                committed.append((manifest.scope, manifest.id))
                published |= {file for file in manifest.files if file.rpartition("/")[0] in present}
                found += _damaged_files(lake, manifest, segments, present)
        damaged = {one.path.parent for one in found}
        # A folder created meanwhile belongs to a writer.
        orphans = [
            one
            for one in _unneeded_files(lake, published, unreadable)
            if one.path not in damaged
            and (one.kind != "orphan file" or one.path.parent.relative_to(lake.path).as_posix() in present)
        ]
        # A torn table of baselines is reported above; the files it names are unknown.
        unknown = any(one.kind not in OF_MANIFESTS and one.path.parts[-3] == "baselines" for one in found)
        going = {one.name for one in Account(lake).pending() if one.rule == ASKED}  # their markers are already removed
        committed = [(scope, one) for scope, one in committed if one not in going]
        found += [
            Fault(UNMARKED, lake.marker_path(one, scope), "that it was committed is not marked", True)
            for scope, one in unmarked(lake, committed)
        ]
        artefacts = () if unreadable or unknown else _unnamed_artefacts(lake)
        # Torn segments come last: the sessions that lost rows are repaired first.
        return [*found, *segments.faults, *_captures(lake), *orphans, *artefacts, *_stale_locks(lake)]


def leftovers(lake: LakeReader) -> list[Fault]:
    """Find leftovers of dead writers: every fault repaired by removing a path.

    Reads only the tables that name artefacts. LakeError if they or a manifest are unreadable, because the files that
    they name would look like orphans.
    """
    with lake_errors(lake.path):
        with lake.catalogue() as known:
            published = known.files()
        unneeded = (
            *unfinished_segments(lake),
            *_unpublished_files(lake, published),
            *_unnamed_artefacts(lake),
            *_stale_locks(lake),
        )
        return [fault for fault in unneeded if fault.mendable]


def clear_away(lake: TraceLake) -> None:
    """Remove unfinished and unpublished files of killed writers, and their locks.

    Called before writing, so that resumed work leaves nothing behind. Files that an unreadable manifest may publish are
    kept; `faults` reports them.
    """
    with lake_errors(lake.path):
        manifests = dict(_manifests(lake))
        readable = [one for one in manifests.values() if isinstance(one, Manifest)]
        published = {file for manifest in readable for file in manifest.files}
        torn = [(path, one) for path, one in manifests.items() if isinstance(one, LakeError)]
        unreadable = {owner for path, one in torn for owner in _owners(path, one)}
        # Locks come last: removing a file takes its owner's lock.
        for fault in chain(_unneeded_files(lake, published, unreadable), _stale_locks(lake)):
            mend(lake, fault)
        runs = lake.path / ".locks" / "runs"
        for name in lake.storage.names(runs):
            if name.endswith(".measuring"):
                lake.storage.drop_free_lock(runs / name)


def mend(lake: TraceLake, fault: Fault) -> bool:
    """Repair a fault unless a writer already did. True if it is gone, or its session is ready to run again."""
    if not fault.mendable:
        return False
    if fault.kind in ("torn file", "missing file"):
        lake.record_torn(owner_of(fault.path)[1])
        return True
    if fault.kind in (TORN_SEGMENT, UNFINISHED_SEGMENT, "torn copy"):
        return _remove_copy(lake, fault.path) if fault.kind == "torn copy" else mend_segment(lake, fault.path)
    if fault.kind in (*OF_MANIFESTS, UNMARKED):
        return _mend_manifest(lake, fault)
    with lake_errors(fault.path):
        if fault.kind == "unverified capture":
            lake.storage.write(fault.path / RAW_LIST, raw_list(raw_digests(lake.storage.local(fault.path))))
            return True
        if fault.kind == "unnamed artefact":
            if fault in list(_unnamed_artefacts(lake)):
                drop_artefact(fault.path)
        elif fault.kind == "stale lock":
            lake.storage.drop_free_lock(fault.path)
        elif fault.kind == "unfinished write":
            lake.storage.discard(fault.path)
        elif fault.kind != "empty folder":
            scope, identifier = owner_of(fault.path)
            with lake.locked(identifier, scope):
                if fault.path not in {lake.path / file for file in lake.manifest(identifier, scope).files}:
                    lake.storage.remove(fault.path)
        _clear(lake, fault.path if fault.kind == "empty folder" else fault.path.parent)
    return lake.storage.state(fault.path) is None


def _clear(lake: TraceLake, folder: Path) -> None:
    """Remove a session's or campaign's folder of a table if it is empty and nobody is working on it."""
    if folder.parent.parent == lake.path and not lake.storage.names(folder) and _is_left(lake, folder):
        with lake.locked(owner_of(folder / "file")[1], owner_of(folder / "file")[0]):
            lake.storage.clear(folder, [])


def _mend_manifest(lake: TraceLake, fault: Fault) -> bool:
    if fault.kind == UNMARKED:
        return mark(lake, scope_of(fault.path.name), [fault.path.name])
    if fault.kind == "misnamed manifest":
        return put_back(lake, fault.path)
    rebuild_manifest(lake, fault.path.stem)
    return True


def _unreadable(lake: LakeReader, path: Path, error: LakeError) -> Fault:
    scope = scope_of(path.stem)
    session = path.stem if scope == "session" else None
    if isinstance(error, NewerManifestError):  # intact; must not be touched
        return Fault("unreadable manifest", path, str(error), mendable=False)
    if isinstance(error, MisnamedManifestError):
        return Fault("misnamed manifest", path, str(error), mendable=True)
    if not isinstance(error, LostManifestError):
        return Fault("unreadable manifest", path, str(error), mendable=True, session=session)
    if is_rebuildable(lake, path.stem, scope):
        is_captured = session is not None and lake.has_raw(session)  # otherwise no stage can run again
        return Fault("lost manifest", path, str(error), mendable=True, session=session if is_captured else None)
    why = f"lost, and all that {path.stem} published, too; `aaco rm {path.stem}` accepts the loss"
    return Fault("lost manifest", path, why, mendable=False)


def _owners(path: Path, error: LakeError) -> set[str]:
    """Return the sessions and campaigns whose publications are unknown because of one unreadable manifest."""
    return {path.stem} | ({error.identifier} if isinstance(error, MisnamedManifestError) else set())


def _present(lake: LakeReader) -> set[str]:
    """Return the folders with files of sessions and campaigns, by their names in the lake."""
    folders = (one for one in lake.storage.names(lake.path) if not one.startswith("."))
    return {f"{one}/{owner}" for one in folders for owner in lake.storage.names(lake.path / one) if "_id=" in owner}


def _damaged_files(
    lake: LakeReader, manifest: Manifest, segments: Segments, present: Collection[str]
) -> Iterator[Fault]:
    for one in manifest.on_disk:
        is_held = segments.hold(manifest.id, one)
        if is_held and one.file.rpartition("/")[0] not in present:
            continue
        kind = _damage(lake, one)
        if kind is None or (is_held and kind == "missing file"):
            continue
        # Not a fault if a writer superseded the file after its name was read.
        if one not in lake.manifest(manifest.id, manifest.scope).on_disk:
            continue
        path = lake.path / one.file
        if is_held:
            yield Fault("torn copy", path, f"{described(path)}; a segment has it whole, and is read", mendable=True)
        elif manifest.scope == "session" and lake.has_raw(manifest.id):
            told = f"{described(path)}; its stage has to run again"
            yield Fault(kind, path, told, mendable=True, session=manifest.id)
        else:
            yield Fault(kind, path, f"{described(path)}; there is no raw capture to rebuild it from", mendable=False)


def _remove_copy(lake: TraceLake, path: Path) -> bool:
    """Remove a torn file of a table if a segment still has it intact; return whether it is gone."""
    scope, identifier = owner_of(path)
    segments = Segments(lake)
    with lake_errors(path), lake.locked(identifier, scope):
        for entry in lake.manifest(identifier, scope).entries:
            if lake.path / entry.file == path and segments.hold(identifier, entry):
                lake.storage.clear(path.parent, [path.name])
    return lake.storage.state(path) is None


def _damage(lake: LakeReader, published: Entry) -> str | None:
    """Read and check a published file now, and describe its damage."""
    try:
        intact = file_digest(lake.storage.local(lake.path / published.file)) == published.sha256
    except FileNotFoundError:
        return "missing file"
    return None if intact else "torn file"


def _captures(lake: LakeReader) -> Iterator[Fault]:
    """Yield raw captures that differ from their state when received, and those that cannot be verified."""
    for session in lake.captured():
        raw = lake.raw(session)
        try:
            local = lake.storage.local(raw)
            is_verified = require_raw_intact(local, raw_digests(local))
        except LakeError as error:
            if lake.has_raw(session):  # still present
                yield Fault("torn capture", raw, str(error), mendable=False)
            continue
        if not is_verified and lake.has_raw(session):
            told = "received by an earlier version, which kept no digests: its files are taken as they are now"
            yield Fault("unverified capture", raw, told, mendable=True)


def _manifests(lake: LakeReader) -> Iterator[tuple[Path, Manifest | LakeError]]:
    """Yield the path of each manifest, lost ones included, with its content or the error."""
    folder = lake.path / MANIFESTS
    names = [name for name in lake.storage.names(folder) if name.endswith(".json")]
    misnamed = set[str]()
    for path in map(folder.joinpath, names):
        try:
            manifest = read_manifest(lake.storage, path)
        except LakeError as error:
            misnamed |= _owners(path, error)
            yield path, error
            continue
        if manifest is not None:
            yield path, manifest
    for scope, identifier in lake.lost({name.removesuffix(".json") for name in names}):
        path = lake.manifest_path(identifier, scope)
        if identifier not in misnamed:  # those only need to be renamed
            yield path, LostManifestError(path)


def _unneeded_files(lake: LakeReader, published: set[str], unreadable: set[str]) -> Iterator[Fault]:
    """Yield unpublished files, except those that an unreadable manifest may publish."""
    for fault in _unpublished_files(lake, published):
        if owner_of(fault.path)[1] not in unreadable:
            yield fault


def _unpublished_files(lake: LakeReader, published: set[str]) -> Iterator[Fault]:
    for path in lake.storage.unfinished(lake.path):
        yield Fault("unfinished write", path, "what a statement of SQL spilled; its process died", mendable=True)
    for folder in lake.storage.names(lake.path):
        if folder.startswith("."):
            continue
        holds_tables = folder not in _WITHOUT_TABLES
        if not holds_tables:
            yield from _unfinished(lake, lake.path / folder)
        for owner in lake.storage.names(lake.path / folder):
            if "_id=" not in owner:
                continue
            at = lake.path / folder / owner
            names = lake.storage.names(at)
            if holds_tables and not names and _is_left(lake, at):
                yield Fault("empty folder", at, _BY_A_WRITER, mendable=True)
            if any(name.startswith(TEMPORARY_PREFIX) for name in names):
                yield from _unfinished(lake, at)
            for name in names if holds_tables else ():
                if not name.startswith(TEMPORARY_PREFIX) and f"{folder}/{owner}/{name}" not in published:
                    yield Fault("orphan file", at / name, "no manifest publishes it", _is_ours(lake, at / name))


def _is_left(lake: LakeReader, folder: Path) -> bool:
    """Return whether a folder belongs to a session or campaign that nobody is working on."""
    scope, identifier = owner_of(folder / "file")
    return is_id(identifier, scope) and not lake.storage.is_held(lake.lock_path(identifier))


def _unfinished(lake: LakeReader, folder: Path) -> Iterator[Fault]:
    for path in lake.storage.unfinished(folder):
        yield Fault("unfinished write", path, _BY_A_WRITER, mendable=True)


def _unnamed_artefacts(lake: LakeReader) -> Iterator[Fault]:
    """Yield old artefacts that no baseline, build, optimization, nightly campaign or request names."""
    naming = (lake.read(table).get_column(column).drop_nulls() for table, column in _NAMING)
    named = [*(artefact for column in naming for artefact in column), *_of_the_last_nights(lake), *_waiting(lake)]
    for folder in unnamed_artefacts(lake.path, named):
        state = lake.storage.state(folder)
        if state is not None and time.time() - state.changed_at >= UNFINISHED_STAYS.total_seconds():
            yield Fault("unnamed artefact", folder, "no baseline, build or optimization names it", mendable=True)


def _of_the_last_nights(lake: LakeReader) -> list[str]:
    """Return files measured by recent nightly campaigns, which may be confirmed, resumed or become a baseline."""
    import polars as pl

    nights = lake.read("campaigns").filter(pl.col("night") >= pl.col("night").max() - CAMPAIGN_STAYS_OPEN)
    arms = lake.read("campaign_arms").join(nights, on="campaign_id", how="semi")
    return arms.get_column("artefact").to_list()


def _waiting(lake: LakeReader) -> Iterator[str]:
    """Return the files of sessions that were requested but not captured yet."""
    for session in lake.requests():
        with suppress(FileNotFoundError, ValueError):
            asked = json.loads(lake.storage.read(lake.request_path(session)))
            if isinstance(asked, dict) and asked.get("artefact") is not None:
                yield str(asked["artefact"])


def _stale_locks(lake: LakeReader) -> Iterator[Fault]:
    known = {*lake.sessions(), *lake.campaigns(), *lake.captured()}
    folder = lake.path / ".locks"
    for name in lake.storage.names(folder):
        owner, is_lock, _ = name.partition(".lock")
        if is_lock and owner not in known and not lake.storage.is_held(folder / name):
            yield Fault(
                "stale lock", folder / name, "its session is not in the lake, and nobody holds it", mendable=True
            )


def _is_ours(lake: LakeReader, path: Path) -> bool:
    """Return whether an unpublished file lies where only stages write; anything else belongs to the user."""
    scope, identifier = owner_of(path)
    state = lake.storage.state(path)
    return state is not None and not state.is_folder and is_id(identifier, scope)
