"""Ingest a folder from the user as sessions, one per run, and resume interrupted ingestion.

Request, raw copy, partition and analysis of a capture run under its lock in the journal, for the command, the inbox and
Dagster alike. `aaco_pipeline.resources.confinement` recognizes and copies runs, `aaco_pipeline.lake.journal` is the
journal; the caller passes the function that runs the stages as `finish`.
"""

import errno
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from aaco_pipeline import __version__
from aaco_pipeline.assets.stage import outdated, standing, state_expected
from aaco_pipeline.capture import ingested
from aaco_pipeline.capture.discovery import UNREADABLE, DiscoveredRuns, Run
from aaco_pipeline.errors import AacoError, CaptureError, LakeError, SourceError
from aaco_pipeline.formats.parsing.redaction import safe_name
from aaco_pipeline.formats.parsing.regular_files import settled
from aaco_pipeline.lake.files import lake_errors
from aaco_pipeline.lake.journal import Journal, JournalEntry
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.confinement.client import capture_digest, copy_capture, discover_runs, open_capture

State = Literal["new", "known", "continued", "refused"]
#: Errors of a full or read-only disk; they always concern the lake, because captures are only read.
_FULL: Final = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}
#: Errors of the machine rather than the capture. A missing file is not included.
_SYSTEM: Final = _FULL | {
    *(errno.EIO, errno.ENOMEM, errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ESTALE, errno.ETIMEDOUT),
    *(errno.EBUSY, errno.EAGAIN, errno.ENODEV, errno.ENXIO, errno.ENOTCONN),
}


@dataclass(frozen=True)
class Ingested:
    """Outcome of one run: its session, or why there is none.

    `attempt` counts the attempts at this capture: above 1, an earlier one was killed, failed, or used an earlier
    version. `error` is why the session is missing or incomplete. `rows` has, for each record kind of each part, the
    rows in the source, the rows ingested, and the reason for any difference.
    """

    run: Run
    state: State
    session: str | None = None
    attempt: int = 1
    version: int = 1
    error: AacoError | None = None
    rows: Sequence[dict[str, object]] = ()

    @property
    def is_verdict(self) -> bool:
        """Return whether a reader refused the capture; repeating the attempt is then useless."""
        return self.state == "refused" and not isinstance(self.error, SourceError)


def discovered(lake: TraceLake, path: Path) -> DiscoveredRuns:
    """Find the runs under `path`; CaptureError if there are none, SourceError if the path cannot be read."""
    with _system_errors(lake, path):
        found = discover_runs(path)
    closed = next((one for one in found.unread if one.reason.startswith(UNREADABLE)), None)
    if not found.runs and closed is not None:
        raise SourceError(f"{closed.path}: {closed.reason}")
    if not found.runs:
        raise CaptureError(f"{path}: nothing in it is a capture that can be read; `aaco ingest --dry-run` says why")
    return found


def ingest(
    lake: TraceLake,
    found: DiscoveredRuns,
    workload: str | None = None,
    *,
    finish: Callable[[str], object],
    place: Path | None = None,
    keep_original: bool = False,
) -> Iterator[Ingested]:
    """Ingest every run, one at a time: a session is finished before the next run is read.

    `finish` is called under the capture's lock for each incomplete session: it registers the session and runs its
    missing stages. A refused run leaves nothing behind, and the next run follows. LakeError if the lake or the machine
    fails; the next call continues. With a `place` (an inbox entry), a run at the same position as an earlier run is a
    new version of that capture. `keep_original` also keeps the originals of redacted files, readable only by their
    owner.
    """
    journal = Journal(lake)
    _enter_older_captures(lake, journal)
    earlier = journal.at(place) if place is not None else {}
    for name, run in _named(found.runs, place):
        digest = None
        try:
            with _system_errors(lake, run.folder):
                digest = capture_digest(run)
            called = safe_name(workload) if workload else None
            one = _taken(lake, journal, _Work(run, digest, called, earlier.get(name), keep_original), finish)
        except CaptureError as error:
            one = Ingested(run, "refused", error=error)
        if place is not None and digest is not None and one.session is not None:
            earlier[name] = digest
            journal.keep_place(place, earlier)
        yield one


@dataclass(frozen=True)
class _Work:
    """One run to ingest.

    `workload` is the user's name for it, or None for the capture's own; `before` is the digest of the previous content
    at its position.
    """

    run: Run
    digest: str
    workload: str | None
    before: str | None
    keep_original: bool


def _taken(lake: TraceLake, journal: Journal, work: _Work, finish: Callable[[str], object]) -> Ingested:
    with journal.held(work.digest):
        entry = journal.entry(work.digest)
        if entry is not None and entry.is_captured and not lake.raw(entry.session_id).is_dir():
            entry = None  # the session was removed
        has_raw = entry is not None and lake.raw(entry.session_id).is_dir()
        if entry is not None and has_raw and _is_up_to_date(lake, entry.session_id):
            return Ingested(work.run, "known", entry.session_id, entry.attempts, entry.version)
        state: State = "new" if entry is None else "continued"
        entry = _begun(lake, journal, work, entry)
        journal.keep(entry)
        rows: Sequence[dict[str, object]] = ()
        if not has_raw:
            try:
                rows = _copied(lake, work, entry)
            except CaptureError:
                journal.forget(work.digest)
                raise
        journal.keep(replace(entry, is_captured=True))
        state_expected(lake, entry.session_id)
        error = _finished(finish, entry.session_id)
        return Ingested(work.run, state, entry.session_id, entry.attempts, entry.version, error, rows)


def _is_up_to_date(lake: TraceLake, session: str) -> bool:
    return standing(lake, session).is_whole is True and not outdated(lake, session)


def _begun(lake: TraceLake, journal: Journal, work: _Work, entry: JournalEntry | None) -> JournalEntry:
    """Create the journal entry for the next attempt, with the session already begun or a new one."""
    writer = f"aaco_pipeline {__version__}"
    if entry is not None:
        return replace(entry, attempts=entry.attempts + 1, writer=writer)
    called = work.workload or safe_name(work.run.folder.name)
    new = JournalEntry(work.digest, lake.new_session(called), 1, is_captured=False, writer=writer)
    before = journal.entry(work.before) if work.before not in (None, work.digest) else None
    if before is None:
        return new
    return replace(new, version=before.version + 1, follows=before.session_id)


def _copied(lake: TraceLake, work: _Work, entry: JournalEntry) -> Sequence[dict[str, object]]:
    """Copy the run into the lake, completely and readable or not at all, and return the row counts."""
    with lake.receive_raw(entry.session_id) as folder, _system_errors(lake, work.run.folder):
        copy_capture(work.run, folder, work.workload, keep_original=work.keep_original)
        if ingested.read(folder).digest != work.digest:
            raise SourceError(f"{work.run.folder}: has changed while it was read; wait until its copy is finished")
        if entry.follows is not None:
            ingested.state_version(folder, entry.version, entry.follows, lake.raw(entry.follows))
        # Read it before the copy is published: unreadable data must never become a session.
        with _named_as_handed_over(work.run, folder):
            capture = open_capture(folder)
            capture.require_whole()
    return capture.row_accounts()


@contextmanager
def _named_as_handed_over(run: Run, copy: Path) -> Iterator[None]:
    """Make a refusal name the user's file instead of its copy, which is deleted."""
    try:
        yield
    except CaptureError as error:
        top = run.folder if run.folder.is_dir() else run.folder.parent
        said = str(error).replace(f"{settled(copy) / ingested.FILES_FOLDER}", str(top))
        raise type(error)(said.replace(str(settled(copy)), str(run.folder))) from error


def _finished(finish: Callable[[str], object], session: str) -> AacoError | None:
    """Finish a session and return the error of a failed stage; a lake error also stops the following runs."""
    try:
        finish(session)
    except LakeError:
        raise
    except AacoError as error:
        return error
    return None


def _enter_older_captures(lake: TraceLake, journal: Journal) -> None:
    """Add captures of a lake that predates the journal; their file lists are read once."""
    if journal.is_complete:
        return
    for session in lake.captured():
        raw = lake.raw(session)
        if not ingested.probe(raw):
            continue
        try:
            digest = ingested.read(raw).digest
        except CaptureError:
            continue  # damaged: not searchable here; `aaco doctor` reports it
        with journal.held(digest):
            if journal.entry(digest) is None:
                journal.keep(JournalEntry(digest, session, 1, is_captured=True, writer="before the journal"))
    journal.complete()


def _named(runs: Sequence[Run], place: Path | None) -> Iterator[tuple[str, Run]]:
    """Yield every run with a stable name: a digest of its position within its place, and its number there."""
    seen: Counter[Path] = Counter()
    for run in runs:
        inside = run.folder.relative_to(place) if place is not None else run.folder
        seen[inside] += 1
        yield hashlib.sha256(f"{inside}\0{seen[inside]}".encode(errors="surrogateescape")).hexdigest()[:16], run


@contextmanager
def _system_errors(lake: TraceLake, path: Path) -> Iterator[None]:
    """Separate system errors from a reader's refusal, which is the only verdict on the capture."""
    try:
        yield
    except MemoryError as error:
        raise LakeError(f"{path}: not enough memory to take it in; free some, then ingest it again") from error
    except (CaptureError, OSError) as error:
        cause = _system_error(error)
        if cause is None:
            if isinstance(error, OSError):
                raise SourceError(f"{path}: {error}; check the file") from error
            raise
        where = cause.filename if isinstance(cause.filename, str) else str(cause.filename or "")
        if cause.errno in _FULL or Path(where).is_relative_to(lake.path):
            with lake_errors(lake.path):
                raise OSError(cause.errno, cause.strerror, cause.filename) from error
        raise SourceError(f"{where or path}: {cause.strerror}; check the file and its permissions") from error


def _system_error(error: BaseException | None) -> OSError | None:
    """Return the system error that caused an error, if there is one."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _SYSTEM:
            return error
        error = error.__cause__
    return None
