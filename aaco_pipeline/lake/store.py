"""The TraceLake on disk: publishing by manifest, reading, listing, removing, and finding what is torn.

What a table must look like is `aaco_pipeline.lake.contracts`; SQL over the lake is `aaco_pipeline.lake.sql`.
Nothing here knows what the tables mean, and nothing here imports Dagster.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from aaco_pipeline import __version__
from aaco_pipeline.errors import LakeError, UsageError
from aaco_pipeline.lake.contracts import contract
from aaco_pipeline.lake.declaration import Scope, Table
from aaco_pipeline.lake.files import (
    TEMPORARY_PREFIX,
    exclusive_lock,
    lake_errors,
    lock_is_free,
    remove_free_lock,
    sync_file,
    sync_folder,
    temporary_beside,
    write_atomically,
)
from aaco_pipeline.lake.identity import CAMPAIGN_ID, SESSION_ID, require_campaign_id, require_session_id
from aaco_pipeline.lake.manifest import Entry, Manifest

if TYPE_CHECKING:
    import polars as pl

LOCK_TIMEOUT_SECONDS: Final = 120.0
#: Folders of a lake that hold one folder per session, besides the tables.
SESSION_FOLDERS: Final = ("raw", "traces", "reports")
#: The folder of measured ceilings, which belong to a machine; see `aaco_pipeline.lake.calibrations`.
CALIBRATIONS: Final = "calibrations"


#: A stage's name becomes part of file names.
_STAGE: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
_REQUIRE_ID: Final[Mapping[Scope, Callable[[str], str]]] = {
    "session": require_session_id,
    "campaign": require_campaign_id,
}


@dataclass(frozen=True)
class Fault:
    """Something in the lake that is not as it should be. `mendable` faults are mended by removing `path`."""

    kind: str
    path: Path
    explanation: str
    mendable: bool


class TraceLake:
    """A lake at a local path. Creating the object touches nothing; the first publication makes the folders."""

    def __init__(self, path: str | Path) -> None:
        self.path: Final = Path(path).absolute()

    # ---- what there is -------------------------------------------------------------------------------------------

    def sessions(self) -> list[str]:
        """Ids of all sessions with something published, oldest first."""
        return sorted(m.id for m in self.manifests() if m.scope == "session")

    def manifests(self) -> list[Manifest]:
        """Every manifest in the lake, sorted by id."""
        folder = self.path / "manifests"
        if self.path.exists() and not self.path.is_dir():
            raise LakeError(f"{self.path}: not a folder, so not a lake; name another with --lake")
        with lake_errors(folder):
            found = sorted(folder.glob("*.json")) if folder.is_dir() else []
        manifests = []
        for path in found:
            with lake_errors(path):
                try:
                    content = path.read_bytes()
                except FileNotFoundError:
                    continue  # removed between listing and reading
            manifests.append(Manifest.from_bytes(content, str(path)))
        return manifests

    def manifest(self, identifier: str, scope: Scope = "session") -> Manifest:
        """What is published for one session or campaign; an empty manifest when nothing is."""
        path = self._manifest_path(identifier, scope)
        with lake_errors(path):
            try:
                content = path.read_bytes()
            except FileNotFoundError:
                return Manifest(scope, identifier)
        return Manifest.from_bytes(content, str(path))

    def find_session(self, name: str) -> str:
        """The session that `name` means: an id, a unique prefix of one, or `latest`. UsageError otherwise."""
        if SESSION_ID.fullmatch(name) and self.manifest(name).entries:
            return name
        known = self.sessions()
        if not known:
            raise UsageError(f"{self.path}: no sessions yet; `aaco run --model squeezenet` makes one")
        if name == "latest":
            return known[-1]
        matching = [identifier for identifier in known if identifier.startswith(name)]
        if name in matching:
            return name
        if len(matching) == 1:
            return matching[0]
        if matching:
            raise UsageError(f"session {name!r} is ambiguous: {', '.join(matching[:4])} …; give more of the id")
        raise UsageError(f"no session {name!r} in {self.path}; `aaco ls` lists them, newest {known[-1]}")

    def disk_bytes(self, session: str) -> int:
        """Bytes on disk of everything the lake holds for `session`: tables, raw capture, trace and report."""
        require_session_id(session)
        total = sum(entry.bytes for entry in self.manifest(session).entries)
        for folder in self._session_folders(session):
            total += sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        return total

    # ---- raw captures --------------------------------------------------------------------------------------------

    def raw(self, session: str) -> Path:
        """The folder of the session's capture as it came. It exists only when the capture is complete."""
        return self.path / "raw" / f"session_id={require_session_id(session)}"

    def trace(self, session: str) -> Path:
        """Where the session's unified trace is, if it has one."""
        return self.path / "traces" / f"session_id={require_session_id(session)}" / "trace.pftrace.gz"

    def report(self, session: str) -> Path:
        """Where the session's report belongs."""
        return self.path / "reports" / f"session_id={require_session_id(session)}" / "report.html"

    def captured(self) -> list[str]:
        """Ids of sessions whose raw capture is complete, analysed or not, oldest first."""
        prefix = "session_id="
        folder = self.path / "raw"
        names = [path.name for path in folder.glob(f"{prefix}*")] if folder.is_dir() else []
        return sorted(name.removeprefix(prefix) for name in names if SESSION_ID.fullmatch(name.removeprefix(prefix)))

    @contextmanager
    def receive_raw(self, session: str) -> Iterator[Path]:
        """A folder to fill with a capture, which becomes `raw(session)` at once and whole when the block ends well.

        LakeError if the session's capture is already complete: captures are never overwritten.
        """
        final = self.raw(session)
        with lake_errors(final):
            final.parent.mkdir(parents=True, exist_ok=True)
            temporary = temporary_beside(final)
            temporary.mkdir()
        try:
            yield temporary
            with lake_errors(final):
                for file in sorted(temporary.rglob("*")):
                    sync_file(file)
                sync_folder(temporary)
                with self._locked(session, "session"):
                    if final.exists():
                        raise LakeError(f"{final}: the capture is already complete; a new measurement is a new session")
                    temporary.rename(final)
                    sync_folder(final.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    # ---- launch requests -----------------------------------------------------------------------------------------

    def request(self, session: str, launch: str) -> None:
        """Keep the text of what is to be measured for `session` until its capture is complete."""
        path = self._request_path(session)
        with lake_errors(path):
            write_atomically(path, launch.encode())

    def requested(self, session: str) -> str | None:
        """The text kept by `request`; None when nothing is waiting to be measured under that id."""
        path = self._request_path(session)
        with lake_errors(path):
            try:
                return path.read_text(encoding="utf-8")
            except FileNotFoundError:
                return None

    def requests(self) -> list[str]:
        """Ids of sessions that were asked for and not yet captured, oldest first."""
        folder = self.path / "launches"
        return sorted(path.stem for path in folder.glob("*.json")) if folder.is_dir() else []

    def withdraw(self, session: str) -> None:
        """Forget the request for `session`, if there is one."""
        path = self._request_path(session)
        with lake_errors(path):
            path.unlink(missing_ok=True)

    # ---- publishing ----------------------------------------------------------------------------------------------

    def publish(
        self, identifier: str, stage: str, tables: Mapping[str, "pl.DataFrame"], scope: Scope = "session"
    ) -> tuple[Entry, ...]:
        """Publish all `tables` of one stage at once, replacing whatever that stage published before.

        Every table is checked against its contract before anything is written; files get names that hold their
        digest, then the manifest is replaced by rename, then superseded files are deleted. A kill at any instant
        leaves the old state or the new. The same input gives the same bytes. Returns the stage's entries.
        """
        from aaco_pipeline.lake.validation import conform

        if _STAGE.fullmatch(stage) is None:
            raise LakeError(f"{stage!r} is not a stage's name; expected lower-case letters, digits and '_'")
        frames = {name: conform(_contract_in_scope(name, scope), frame, identifier) for name, frame in tables.items()}
        with lake_errors(self.path), self._locked(identifier, scope):
            before = self.manifest(identifier, scope)
            entries = [self._write(contract(name), frame, identifier, stage) for name, frame in frames.items()]
            after = before.with_stage(stage, entries)
            if after != before or not self._manifest_path(identifier, scope).exists():
                write_atomically(self._manifest_path(identifier, scope), after.to_bytes())
            touched = {e.table for e in (*before.of_stage(stage), *entries)}
            self._delete_unpublished(after, touched)
        return after.of_stage(stage)

    def remove(self, session: str) -> int:
        """Delete everything of `session`: first from the manifest's view, then the files. Returns the bytes freed."""
        freed = self.disk_bytes(session)
        with lake_errors(self.path), self._locked(session, "session"):
            manifest = self.manifest(session)
            self._manifest_path(session, "session").unlink(missing_ok=True)
            if (self.path / "manifests").is_dir():
                sync_folder(self.path / "manifests")
            for folder in {self.path / Path(entry.file).parent for entry in manifest.entries}:
                shutil.rmtree(folder, ignore_errors=True)
            for folder in self._session_folders(session):
                shutil.rmtree(folder)
            self._request_path(session).unlink(missing_ok=True)
            self._lock_path(session).unlink(missing_ok=True)
        return freed

    # ---- reading -------------------------------------------------------------------------------------------------

    def read(self, table: str, session: str | Sequence[str] | None = None) -> "pl.DataFrame":
        """One table as a Polars frame: of one session, of several, or of all (None), in the contract's columns.

        For a table of campaigns, `session` names campaigns. Columns that an older contract did not have are null.
        Raises UsageError for an unknown table or an ambiguous name, LakeError for a newer contract or a torn file.
        """
        import polars as pl

        declared = find_contract(table)
        if session is None:
            identifiers = [m.id for m in self.manifests() if m.scope == declared.scope]
        else:
            named = [session] if isinstance(session, str) else list(session)
            identifiers = [self.find_session(n) if declared.scope == "session" else n for n in named]
        frames = [frame for identifier in identifiers for frame in self._read_published(declared, identifier)]
        if not frames:
            from aaco_pipeline.lake.contracts import polars_schema

            return pl.DataFrame(schema=polars_schema(declared))
        return pl.concat(frames, how="vertical")

    def read_entry(self, entry: Entry) -> "pl.DataFrame":
        """One published file, after comparing its bytes with the manifest's digest. LakeError when they differ."""
        path = self.path / entry.file
        table = find_contract(entry.table)
        _require_readable(table, entry, path)
        with lake_errors(path):
            if _sha256(path) != entry.sha256:
                raise LakeError(f"{path}: its bytes are not the published ones; materialize {entry.stage} again")
        return _read_file(table, path)

    def published_files(self, table: Table, manifests: Sequence[Manifest]) -> list[Path]:
        """Paths of the table's published files; LakeError when one was written under a newer contract."""
        paths = []
        for manifest in manifests:
            for entry in manifest.of_table(table.name):
                _require_readable(table, entry, self.path / entry.file)
                paths.append(self.path / entry.file)
        return paths

    def sql(self, statement: str) -> "pl.DataFrame":
        """The rows of one SELECT statement over the views of this lake; see `aaco_pipeline.lake.sql`."""
        from aaco_pipeline.lake.sql import select_frame

        return select_frame(self, statement)

    # ---- health --------------------------------------------------------------------------------------------------

    def faults(self) -> list[Fault]:
        """Everything torn, orphaned or stale in the lake. Reads every published byte."""
        with lake_errors(self.path):
            return self._faults()

    def _faults(self) -> list[Fault]:
        found: list[Fault] = []
        published: set[Path] = set()
        manifest_folder = self.path / "manifests"
        unreadable = False
        for path in sorted(manifest_folder.glob("*.json")) if manifest_folder.is_dir() else []:
            try:
                manifest = Manifest.from_bytes(path.read_bytes(), str(path))
            except LakeError as error:
                unreadable = True
                found.append(Fault("unreadable manifest", path, str(error), mendable=False))
                continue
            for entry in manifest.entries:
                published.add(self.path / entry.file)
                kind = self._damage(entry)
                # A writer may have superseded the file after its name was read: then it is no fault.
                if kind is not None and entry in self.manifest(manifest.id, manifest.scope).entries:
                    found.append(Fault(kind, self.path / entry.file, _rematerialize(entry, manifest), mendable=False))
        if not unreadable:  # with a manifest that cannot be read, nobody knows which files are orphans
            found.extend(self._orphans(published))
        locks = self.path / ".locks"
        known = {manifest_path.stem for manifest_path in manifest_folder.glob("*.json")}
        for lock in sorted(locks.glob("*.lock")) if locks.is_dir() else []:
            if lock.stem not in known and not self._has_raw(lock.stem) and lock_is_free(lock):
                found.append(Fault("stale lock", lock, "its session is not in the lake, and nobody holds it", True))
        return found

    def mend(self, fault: Fault) -> bool:
        """Remove what a mendable fault names, unless a writer took it up meanwhile. True when it is gone."""
        if not fault.mendable:
            return False
        with lake_errors(fault.path):
            if fault.kind == "stale lock":
                remove_free_lock(fault.path)
            elif fault.kind == "unfinished write":
                _delete(fault.path)
            else:
                scope, identifier = _owner_of(fault.path)
                with self._locked(identifier, scope):
                    entries = self.manifest(identifier, scope).entries
                    if not any(self.path / entry.file == fault.path for entry in entries):
                        fault.path.unlink(missing_ok=True)
        return not fault.path.exists()

    # ---- inside --------------------------------------------------------------------------------------------------

    def _damage(self, entry: Entry) -> str | None:
        try:
            return None if _sha256(self.path / entry.file) == entry.sha256 else "torn file"
        except FileNotFoundError:
            return "missing file"

    def _orphans(self, published: set[Path]) -> Iterator[Fault]:
        if not self.path.is_dir():
            return
        for folder in sorted(self.path.iterdir()):
            if folder.name.startswith(".") or not folder.is_dir():
                continue
            if folder.name in ("manifests", "launches", CALIBRATIONS, *SESSION_FOLDERS):
                for left in sorted(folder.glob(f"{TEMPORARY_PREFIX}*")):
                    if not _writer_lives(left):
                        yield Fault("unfinished write", left, "left by a writer that died", mendable=True)
                continue
            for file in sorted(folder.glob("*_id=*/*")):
                if file in published:
                    continue
                if file.name.startswith(TEMPORARY_PREFIX):
                    if not _writer_lives(file):
                        yield Fault("unfinished write", file, "left by a writer that died", mendable=True)
                else:
                    yield Fault("orphan file", file, "no manifest publishes it", mendable=_is_ours(file))

    def _has_raw(self, identifier: str) -> bool:
        return (self.path / "raw" / f"session_id={identifier}").is_dir()

    def _session_folders(self, session: str) -> list[Path]:
        candidates = [self.path / name / f"session_id={session}" for name in SESSION_FOLDERS]
        return [folder for folder in candidates if folder.is_dir()]

    def _manifest_path(self, identifier: str, scope: Scope) -> Path:
        return self.path / "manifests" / f"{_REQUIRE_ID[scope](identifier)}.json"

    def _request_path(self, session: str) -> Path:
        return self.path / "launches" / f"{require_session_id(session)}.json"

    def _lock_path(self, identifier: str) -> Path:
        return self.path / ".locks" / f"{identifier}.lock"

    @contextmanager
    def _locked(self, identifier: str, scope: Scope) -> Iterator[None]:
        path = self._lock_path(_REQUIRE_ID[scope](identifier))
        with (
            lake_errors(path),
            exclusive_lock(path, timeout_seconds=LOCK_TIMEOUT_SECONDS, purpose=f"{scope} {identifier}"),
        ):
            yield

    def _write(self, table: Table, frame: "pl.DataFrame", identifier: str, stage: str) -> Entry:
        folder = self.path / table.name / f"{table.key}={identifier}"
        folder.mkdir(parents=True, exist_ok=True)
        temporary = temporary_beside(folder / "file")
        try:
            metadata = {
                "aaco.contract_version": str(table.version),
                "aaco.table": table.name,
                f"aaco.{table.key}": identifier,
                "aaco.stage": stage,
                "aaco.writer": f"aaco_pipeline {__version__}",
            }
            with _polars_os_errors(temporary):
                frame.write_parquet(temporary, compression="zstd", metadata=metadata)
            sync_file(temporary)
            digest = _sha256(temporary)
            final = folder / f"{stage}-{digest[:12]}.parquet"
            temporary.replace(final)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(folder)
        return Entry(
            table=table.name,
            stage=stage,
            file=final.relative_to(self.path).as_posix(),
            rows=frame.height,
            bytes=final.stat().st_size,
            sha256=digest,
            contract_version=table.version,
        )

    def _delete_unpublished(self, manifest: Manifest, tables: set[str]) -> None:
        """Delete what the manifest no longer names. The caller holds the lock, so no other writer's file is here."""
        published = {self.path / entry.file for entry in manifest.entries}
        for table in tables:
            for file in (self.path / table / f"{manifest.scope}_id={manifest.id}").glob("*"):
                if file not in published:
                    file.unlink(missing_ok=True)

    def _read_published(self, table: Table, identifier: str) -> list["pl.DataFrame"]:
        while True:
            manifest = self.manifest(identifier, table.scope)
            try:
                return [_read_file(table, file) for file in self.published_files(table, [manifest])]
            except FileNotFoundError as error:
                # Either a writer superseded the file after we had read its name, or it is lost.
                if self.manifest(identifier, table.scope) == manifest:
                    raise LakeError(
                        f"{error.filename}: published but missing; `aaco doctor` tells how to mend it"
                    ) from error


@contextmanager
def _polars_os_errors(path: Path) -> Iterator[None]:
    """Polars tells of a full disk in a ComputeError's text; raise the operating system's error it stands for."""
    import polars as pl

    try:
        yield
    except pl.exceptions.ComputeError as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error


def find_contract(table: str) -> Table:
    """The contract of `table`, else UsageError with the nearest name."""
    try:
        return contract(table)
    except KeyError:
        import difflib

        from aaco_pipeline.lake.contracts import all_tables

        near = difflib.get_close_matches(table, all_tables(), n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UsageError(f"no table {table!r}; {hint}`aaco tables` lists them") from None


def _require_readable(table: Table, entry: Entry, path: Path) -> None:
    if entry.contract_version > table.version:
        raise LakeError(
            f"table {table.name} of {' '.join(_owner_of(path))} was written under contract version "
            f"{entry.contract_version}, and this aaco_pipeline reads up to {table.version}; upgrade aaco_pipeline"
        )


def _contract_in_scope(name: str, scope: Scope) -> Table:
    table = contract(name)
    if table.scope != scope:
        raise LakeError(f"table {name} belongs to a {table.scope}, and was published for a {scope}")
    return table


def _read_file(table: Table, path: Path) -> "pl.DataFrame":
    import polars as pl

    from aaco_pipeline.lake.contracts import polars_schema

    if not path.is_file():
        raise FileNotFoundError(2, "No such file", str(path))
    try:
        frame = pl.read_parquet(path, hive_partitioning=False, glob=False)
    except (pl.exceptions.PolarsError, OSError) as error:
        if not path.is_file():
            raise FileNotFoundError(2, "No such file", str(path)) from error
        reason = str(error).splitlines()[0]
        raise LakeError(f"{path}: cannot be read ({reason}); `aaco doctor` tells how to mend it") from error
    schema = polars_schema(table)
    return frame.select(
        pl.col(name) if name in frame.columns else pl.lit(None, dtype).alias(name) for name, dtype in schema.items()
    )


def _rematerialize(entry: Entry, manifest: Manifest) -> str:
    return f"table {entry.table} of {manifest.scope} {manifest.id}; materialize stage {entry.stage} again"


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _owner_of(path: Path) -> tuple[Scope, str]:
    """The session or campaign in whose folder the table file `path` lies."""
    key, _, identifier = path.parent.name.partition("_id=")
    return ("campaign" if key == "campaign" else "session"), identifier


def _is_ours(path: Path) -> bool:
    """Whether an unpublished path is a file where only stages write; anything else is a person's."""
    scope, identifier = _owner_of(path)
    pattern = SESSION_ID if scope == "session" else CAMPAIGN_ID
    return path.is_file() and pattern.fullmatch(identifier) is not None


def _writer_lives(path: Path) -> bool:
    """Whether the process that made the temporary `path` is still running (its number is in the name)."""
    number = path.name.removeprefix(TEMPORARY_PREFIX).partition("-")[0]
    return number.isdigit() and Path(f"/proc/{number}").is_dir()


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
