"""Name sessions and campaigns, and locate everything in a lake: folders, files and writers' locks.

`aaco_pipeline.lake.reading` reads, `aaco_pipeline.lake.store` writes, and `aaco_pipeline.lake.health` finds damage.
"""

import re
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from aaco_pipeline.errors import UsageError
from aaco_pipeline.lake.declaration import Scope
from aaco_pipeline.lake.files import lake_errors
from aaco_pipeline.lake.storage import STORAGE, Storage, lake_path

SESSION_ID: Final = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}(-[a-z0-9][a-z0-9-]{0,23})?")
_NAME_LENGTH: Final = 24
#: A campaign is named by its creator; this rule keeps it valid as a path component, partition key and SQL literal.
CAMPAIGN_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")

#: Suffixes of single-file captures, which do not describe the workload.
_FILE_ENDINGS: Final = re.compile(r"(\.(gz|json|csv|db|trace|onnx))+$")


def new_session_id(workload: str | None = None, now: datetime | None = None) -> str:
    """Create an id `YYYYMMDDTHHMMSSZ-<8 hex>-<workload>`, which sorts by second and is random within it.

    The workload's name loses file suffixes and everything but letters and digits, and is cut to 24 characters; without
    a name the id ends before it.
    """
    moment = (now or datetime.now(UTC)).astimezone(UTC)
    plain = _FILE_ENDINGS.sub("", (workload or "").lower())
    name = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:_NAME_LENGTH].rstrip("-")
    return "-".join(filter(None, (f"{moment:%Y%m%dT%H%M%SZ}", secrets.token_hex(4), name)))


def time_of(session: str) -> datetime | None:
    """Return the second stated by an id, or None if it is not a valid time."""
    try:
        return datetime.strptime(session[:16], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        return None


def require_session_id(text: str) -> str:
    """Return `text` if it is a session id, else raise UsageError: ids become paths, so nothing else may pass."""
    if SESSION_ID.fullmatch(text) is None:
        raise UsageError(
            f"{text!r} is not a session id; expected YYYYMMDDTHHMMSSZ-<8 hexadecimal digits>, or that with -<workload>"
        )
    return text


def require_campaign_id(text: str) -> str:
    """Return `text` if it is a valid campaign id, else raise UsageError."""
    if SESSION_ID.fullmatch(text) is not None:
        raise UsageError(f"{text!r} is a session id; a campaign needs a name of its own")
    if CAMPAIGN_ID.fullmatch(text) is None:
        raise UsageError(f"{text!r} is not a campaign id; expected letters, digits, '_' and '-', at most 128")
    return text


#: Digits of a table's digest in its file's name.
DIGITS_IN_NAME: Final = 12
LOCK_TIMEOUT_SECONDS: Final = 120.0
#: Stages that measure may run for hours.
RUN_TIMEOUT_SECONDS: Final = 86_400.0
MANIFESTS: Final = "manifests"
#: Folders of the markers: one empty file per committed session or campaign, next to the folders of a table.
MARKERS: Final[Mapping[Scope, str]] = {"session": "sessions", "campaign": "campaigns"}
#: A file in the folder of manifests: all manifests of versions without markers have been marked.
MARKED: Final = "marked"
REQUESTS: Final = "launches"
#: Folders, besides the tables, with one folder per session.
SESSION_FOLDERS: Final = ("raw", "traces", "reports")
#: The folder with the captures.
RAW: Final = SESSION_FOLDERS[0]
#: Measured ceilings of machines; see `aaco_pipeline.lake.calibrations`.
CALIBRATIONS: Final = "calibrations"
#: Reported findings, one JSON file each, for monitoring tools.
FINDINGS: Final = "findings"
#: Segments, one folder per table; see `aaco_pipeline.lake.segments.format`.
SEGMENTS: Final = "segments"
_REQUIRE_ID: Final[Mapping[Scope, Callable[[str], str]]] = {
    "session": require_session_id,
    "campaign": require_campaign_id,
}


class LakeFolder:
    """The paths and locks of a lake at a local path. Creating the object touches nothing.

    UsageError for an address with a scheme, such as `s3://lake`.
    """

    def __init__(self, path: str | Path) -> None:
        self.path: Final = lake_path(path)
        self.storage: Final[Storage] = STORAGE

    def raw(self, session: str) -> Path:
        """Return the folder of the session's raw capture; it exists only if the capture is complete."""
        return self._of_session(RAW, session)

    def has_raw(self, session: str) -> bool:
        """Return whether the session's capture exists, and so is complete."""
        return self.storage.state(self.raw(session)) is not None

    def trace(self, session: str) -> Path:
        """Return the path of the session's unified trace, which is generated on request."""
        return self._of_session("traces", session) / "trace.pftrace.gz"

    def report(self, session: str) -> Path:
        """Return the path of the session's page, which is generated on request."""
        return self._of_session("reports", session) / "report.html"

    def verdict_page(self, campaign: str) -> Path:
        """Return the path of the page with the campaign's verdict; verdict.json is in the same folder."""
        return self.path / "reports" / f"campaign_id={require_campaign_id(campaign)}" / "verdict.html"

    def search_page(self, campaign: str) -> Path:
        """Return the path of the page of a search for a faster kernel."""
        return self.path / "reports" / f"campaign_id={require_campaign_id(campaign)}" / "search.html"

    def has_campaign(self, name: str) -> bool:
        """Return whether a campaign of this name has published anything, even if its manifest is lost."""
        places = (self.manifest_path, self.marker_path) if is_id(name, "campaign") else ()
        return any(self.storage.state(place(name, "campaign")) is not None for place in places)

    def manifest_path(self, identifier: str, scope: Scope) -> Path:
        """Return the path of the manifest of a session or campaign."""
        return self.path / MANIFESTS / f"{_REQUIRE_ID[scope](identifier)}.json"

    def marker_path(self, identifier: str, scope: Scope) -> Path:
        """Return the path of the marker: an empty file that exists once a session or campaign was committed."""
        return self.path / MARKERS[scope] / _REQUIRE_ID[scope](identifier)

    def marked(self, scope: Scope) -> list[str]:
        """Return sorted ids of committed sessions or campaigns that were not removed; incomplete in older lakes."""
        return [name for name in self.storage.names(self.path / MARKERS[scope]) if is_id(name, scope)]

    def is_lost(self, identifier: str, scope: Scope) -> bool:
        """Return whether a session or campaign was committed and not removed, but has no manifest."""
        manifest, marker = self.manifest_path(identifier, scope), self.marker_path(identifier, scope)
        # The marker is created last and removed first; the second check of the manifest catches one created meanwhile.
        absent, marked, absent_still = (self.storage.state(one) is None for one in (manifest, marker, manifest))
        return absent and not marked and absent_still

    def lost(self, present: Collection[str]) -> Iterator[tuple[Scope, str]]:
        """Yield the sessions and campaigns whose manifests are lost, skipping the ids in `present`."""
        for scope, folder in MARKERS.items():
            for name in self.storage.names(self.path / folder):
                if name not in present and "_id=" not in name and is_id(name, scope) and self.is_lost(name, scope):
                    yield scope, name

    def request_path(self, session: str) -> Path:
        """Return the path of the request to measure the session."""
        return self.path / REQUESTS / f"{require_session_id(session)}.json"

    def lock_path(self, identifier: str) -> Path:
        """Return the path of the lock held by a writer of the session or campaign."""
        return self.path / ".locks" / f"{identifier}.lock"

    def captured(self) -> list[str]:
        """Return ids of sessions with a complete raw capture, analysed or not, oldest first."""
        names = [name.partition("session_id=") for name in self.storage.names(self.path / RAW)]
        return [name for before, _, name in names if not before and SESSION_ID.fullmatch(name)]

    def requests(self) -> list[str]:
        """Return ids of sessions that were requested but not captured yet, oldest first."""
        names = self.storage.names(self.path / REQUESTS)
        return sorted(name.removesuffix(".json") for name in names if name.endswith(".json"))

    @contextmanager
    def locked(self, identifier: str, scope: Scope, wait_seconds: float | None = None) -> Iterator[None]:
        """Keep other writers from changing the session or campaign. PassingLakeError after the wait."""
        path = self.lock_path(_REQUIRE_ID[scope](identifier))
        seconds = LOCK_TIMEOUT_SECONDS if wait_seconds is None else wait_seconds
        with ExitStack() as taken:
            with lake_errors(path):
                taken.enter_context(self.storage.hold(path, seconds, f"{scope} {identifier}"))
            yield

    def attended(self, session: str) -> AbstractContextManager[None]:
        """Be the only process that runs the session's stages, for example while it waits for the slot."""
        return self.holding(self._run_lock(session, "attended"), f"the stages of session {session}")

    def running(self, session: str, *, wait_seconds: float = RUN_TIMEOUT_SECONDS) -> AbstractContextManager[None]:
        """Keep other processes from running stages of the session. PassingLakeError after the wait."""
        purpose = f"the stages of session {session}"
        return self.holding(self._run_lock(session, "running"), purpose, wait_seconds)

    def measuring(self, campaign: str, *, wait_seconds: float = RUN_TIMEOUT_SECONDS) -> AbstractContextManager[None]:
        """Keep other processes from measuring the campaign. LakeError if the wait times out."""
        return self.holding(self._measuring_lock(campaign), f"campaign {campaign}", wait_seconds)

    def is_measuring(self, campaign: str) -> bool:
        """Return whether any process measures the campaign, on this host or another that shares the lake."""
        with lake_errors(path := self._measuring_lock(campaign)):
            return self.storage.is_held(path)

    def is_running(self, session: str) -> bool:
        """Return whether any process runs the session's stages, on this host or another that shares the lake."""
        for path in (self._run_lock(session, name) for name in ("attended", "running")):
            with lake_errors(path):
                if self.storage.is_held(path):
                    return True
        return False

    def forget_run_locks(self, session: str) -> None:
        """Delete locks that a killed run of the session left behind."""
        for name in ("attended", "running", self.trace(session).name, self.report(session).name):
            self.storage.drop_lock(self._run_lock(session, name))

    def drawing(self, session: str, view: Path) -> AbstractContextManager[None]:
        """Keep others from generating that view of the session. PassingLakeError after the wait."""
        lock = self._run_lock(session, view.name)
        return self.holding(lock, f"{view.name} of session {session}", LOCK_TIMEOUT_SECONDS)

    def compacting(self) -> AbstractContextManager[None]:
        """Keep others from writing or removing segments. LakeError at once if another process does."""
        return self.holding(self._compaction_lock, "the lake's compaction", 0.0)

    def is_compacting(self) -> bool:
        """Return whether any process writes or removes segments, on this host or another that shares the lake."""
        with lake_errors(self._compaction_lock):
            return self.storage.is_held(self._compaction_lock)

    @contextmanager
    def holding(self, path: Path, purpose: str, wait_seconds: float = RUN_TIMEOUT_SECONDS) -> Iterator[None]:
        """Hold a lock for the block, and remove its file afterwards."""
        lock = self.storage.hold(path, wait_seconds, purpose)
        with ExitStack() as taken:
            with lake_errors(path):
                taken.enter_context(lock)
            taken.callback(self.storage.drop_lock, path)  # while it is held: a waiting process creates a new one
            yield

    def _run_lock(self, session: str, name: str) -> Path:
        return self.path / ".locks" / "runs" / f"{require_session_id(session)}.{name}"

    @property
    def _compaction_lock(self) -> Path:
        return self.path / ".locks" / "compaction.lock"

    def _measuring_lock(self, campaign: str) -> Path:
        return self.path / ".locks" / "runs" / f"{require_campaign_id(campaign)}.measuring"

    def _of_session(self, folder: str, session: str) -> Path:
        return self.path / folder / f"session_id={require_session_id(session)}"


def is_id(text: str, scope: Scope) -> bool:
    """Return whether a text is a valid id of this scope."""
    is_session = SESSION_ID.fullmatch(text) is not None
    return is_session if scope == "session" else not is_session and CAMPAIGN_ID.fullmatch(text) is not None


def scope_of(identifier: str) -> Scope:
    """Return the scope that a valid id belongs to."""
    return "session" if SESSION_ID.fullmatch(identifier) is not None else "campaign"


def table_file(table: str, scope: Scope, identifier: str, stage: str, digest: str) -> str:
    """Return the path in the lake of a table's file; "" for a table without rows, which has no file."""
    return f"{table}/{scope}_id={identifier}/{stage}-{digest[:DIGITS_IN_NAME]}.parquet" if digest else ""


def owner_of(path: Path) -> tuple[Scope, str]:
    """Return the session or campaign whose folder holds the table file `path`."""
    key, _, identifier = path.parent.name.partition("_id=")
    return ("campaign" if key == "campaign" else "session"), identifier
