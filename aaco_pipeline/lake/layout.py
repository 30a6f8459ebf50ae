"""Name sessions and campaigns, and locate everything of a lake: folders, files and the locks that writers hold.

Reading is `aaco_pipeline.lake.reading`, writing `aaco_pipeline.lake.store`, finding damage
`aaco_pipeline.lake.health`.
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
#: A campaign is named by its maker; the rule keeps it a valid path part, partition key and SQL literal.
CAMPAIGN_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")

#: A capture that is one file is named after it: how such files end says nothing of the workload.
_FILE_ENDINGS: Final = re.compile(r"(\.(gz|json|csv|db|trace|onnx))+$")


def new_session_id(workload: str | None = None, now: datetime | None = None) -> str:
    """`YYYYMMDDTHHMMSSZ-<8 hex>-<workload>`: sorts by time to the second, and is random within it.

    Of the workload's name, without the endings of a file, letters and digits are kept, at most 24 characters; without a
    name the id ends before it.
    """
    moment = (now or datetime.now(UTC)).astimezone(UTC)
    plain = _FILE_ENDINGS.sub("", (workload or "").lower())
    name = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:_NAME_LENGTH].rstrip("-")
    return "-".join(filter(None, (f"{moment:%Y%m%dT%H%M%SZ}", secrets.token_hex(4), name)))


def time_of(session: str) -> datetime | None:
    """The second that an id states; None where that is no time."""
    try:
        return datetime.strptime(session[:16], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        return None


def require_session_id(text: str) -> str:
    """`text` itself when it is a session id, else UsageError: ids become paths, so nothing else may pass."""
    if SESSION_ID.fullmatch(text) is None:
        raise UsageError(
            f"{text!r} is not a session id; expected YYYYMMDDTHHMMSSZ-<8 hexadecimal digits>, or that with -<workload>"
        )
    return text


def require_campaign_id(text: str) -> str:
    """`text` itself when it is a valid campaign id, else UsageError."""
    if SESSION_ID.fullmatch(text) is not None:
        raise UsageError(f"{text!r} is a session id; a campaign needs a name of its own")
    if CAMPAIGN_ID.fullmatch(text) is None:
        raise UsageError(f"{text!r} is not a campaign id; expected letters, digits, '_' and '-', at most 128")
    return text


#: How much of a table's digest its file's name holds.
DIGITS_IN_NAME: Final = 12
LOCK_TIMEOUT_SECONDS: Final = 120.0
#: Whoever runs a session's stages may be measuring for hours.
RUN_TIMEOUT_SECONDS: Final = 86_400.0
MANIFESTS: Final = "manifests"
#: Where the markers lie: an empty file for each session and campaign that was committed, beside the folders of a table.
MARKERS: Final[Mapping[Scope, str]] = {"session": "sessions", "campaign": "campaigns"}
#: In the folder of manifests: every manifest from before there were markers has got its own.
MARKED: Final = "marked"
REQUESTS: Final = "launches"
#: Folders of a lake that hold one folder per session, besides the tables.
SESSION_FOLDERS: Final = ("raw", "traces", "reports")
#: Of these the one with the captures.
RAW: Final = SESSION_FOLDERS[0]
#: The folder of measured ceilings, which belong to a machine; see `aaco_pipeline.lake.calibrations`.
CALIBRATIONS: Final = "calibrations"
#: The folder of what was found and told, a JSON file each, for programs that look on.
FINDINGS: Final = "findings"
#: The folder of segments, one folder for each table; see `aaco_pipeline.lake.segments.format`.
SEGMENTS: Final = "segments"
_REQUIRE_ID: Final[Mapping[Scope, Callable[[str], str]]] = {
    "session": require_session_id,
    "campaign": require_campaign_id,
}


class LakeFolder:
    """A lake at a local path, by its names alone. Creating the object touches nothing.

    UsageError for an address with a scheme, such as `s3://lake`.
    """

    def __init__(self, path: str | Path) -> None:
        self.path: Final = lake_path(path)
        self.storage: Final[Storage] = STORAGE

    def raw(self, session: str) -> Path:
        """The folder of the session's capture as it came. It exists only when the capture is complete."""
        return self._of_session(RAW, session)

    def has_raw(self, session: str) -> bool:
        """Whether the session's capture is there, and so complete."""
        return self.storage.state(self.raw(session)) is not None

    def trace(self, session: str) -> Path:
        """Where the session's unified trace is kept, once it was asked for."""
        return self._of_session("traces", session) / "trace.pftrace.gz"

    def report(self, session: str) -> Path:
        """Where the session's page is kept, once it was asked for."""
        return self._of_session("reports", session) / "report.html"

    def verdict_page(self, campaign: str) -> Path:
        """Where the page of the campaign's verdict belongs, with verdict.json beside it."""
        return self.path / "reports" / f"campaign_id={require_campaign_id(campaign)}" / "verdict.html"

    def search_page(self, campaign: str) -> Path:
        """Where the page of a search for a faster kernel belongs."""
        return self.path / "reports" / f"campaign_id={require_campaign_id(campaign)}" / "search.html"

    def has_campaign(self, name: str) -> bool:
        """Whether a campaign of this name has published anything, also one whose manifest is lost."""
        places = (self.manifest_path, self.marker_path) if is_id(name, "campaign") else ()
        return any(self.storage.state(place(name, "campaign")) is not None for place in places)

    def manifest_path(self, identifier: str, scope: Scope) -> Path:
        """The file that says what is published for a session or campaign."""
        return self.path / MANIFESTS / f"{_REQUIRE_ID[scope](identifier)}.json"

    def marker_path(self, identifier: str, scope: Scope) -> Path:
        """The empty file that says that a session or campaign was committed, whether or not its manifest is there."""
        return self.path / MARKERS[scope] / _REQUIRE_ID[scope](identifier)

    def marked(self, scope: Scope) -> list[str]:
        """Ids of sessions or campaigns that were committed and not removed, sorted; in an earlier lake not all."""
        return [name for name in self.storage.names(self.path / MARKERS[scope]) if is_id(name, scope)]

    def is_lost(self, identifier: str, scope: Scope) -> bool:
        """Whether a session or campaign was committed, was not removed, and has no manifest."""
        manifest, marker = self.manifest_path(identifier, scope), self.marker_path(identifier, scope)
        # The marker is made last and removed first: seen after its manifest was absent, it is of one made meanwhile.
        absent, marked, absent_still = (self.storage.state(one) is None for one in (manifest, marker, manifest))
        return absent and not marked and absent_still

    def lost(self, present: Collection[str]) -> Iterator[tuple[Scope, str]]:
        """The sessions and campaigns whose manifests are lost, of those that are not in `present`, a set of ids."""
        for scope, folder in MARKERS.items():
            for name in self.storage.names(self.path / folder):
                if name not in present and "_id=" not in name and is_id(name, scope) and self.is_lost(name, scope):
                    yield scope, name

    def request_path(self, session: str) -> Path:
        """The file that keeps what is to be measured for the session."""
        return self.path / REQUESTS / f"{require_session_id(session)}.json"

    def lock_path(self, identifier: str) -> Path:
        """The file whose lock a writer of the session or campaign holds."""
        return self.path / ".locks" / f"{identifier}.lock"

    def captured(self) -> list[str]:
        """Ids of sessions whose raw capture is complete, analysed or not, oldest first."""
        names = [name.partition("session_id=") for name in self.storage.names(self.path / RAW)]
        return [name for before, _, name in names if not before and SESSION_ID.fullmatch(name)]

    def requests(self) -> list[str]:
        """Ids of sessions that were asked for and not yet captured, oldest first."""
        names = self.storage.names(self.path / REQUESTS)
        return sorted(name.removesuffix(".json") for name in names if name.endswith(".json"))

    @contextmanager
    def locked(self, identifier: str, scope: Scope, wait_seconds: float | None = None) -> Iterator[None]:
        """A block in which no other writer changes the session or campaign. PassingLakeError after the wait."""
        path = self.lock_path(_REQUIRE_ID[scope](identifier))
        seconds = LOCK_TIMEOUT_SECONDS if wait_seconds is None else wait_seconds
        with ExitStack() as taken:
            with lake_errors(path):
                taken.enter_context(self.storage.hold(path, seconds, f"{scope} {identifier}"))
            yield

    def attended(self, session: str) -> AbstractContextManager[None]:
        """A block in which nobody else sees to it that the session's stages run, for instance waits for the slot."""
        return self._held_while_it_runs(self._run_lock(session, "attended"), f"the stages of session {session}")

    def running(self, session: str, *, wait_seconds: float = RUN_TIMEOUT_SECONDS) -> AbstractContextManager[None]:
        """A block in which no other process runs stages of the session.

        PassingLakeError when one still does after the wait.
        """
        purpose = f"the stages of session {session}"
        return self._held_while_it_runs(self._run_lock(session, "running"), purpose, wait_seconds)

    def measuring(self, campaign: str, *, wait_seconds: float = RUN_TIMEOUT_SECONDS) -> AbstractContextManager[None]:
        """A block in which no other process measures the campaign. LakeError when one still does after the wait."""
        return self._held_while_it_runs(self._measuring_lock(campaign), f"campaign {campaign}", wait_seconds)

    def is_measuring(self, campaign: str) -> bool:
        """Whether anybody measures the campaign, on this host or on one that shares the lake."""
        with lake_errors(path := self._measuring_lock(campaign)):
            return self.storage.is_held(path)

    def is_running(self, session: str) -> bool:
        """Whether anybody is at work on the session's stages, on this host or on one that shares the lake."""
        for path in (self._run_lock(session, name) for name in ("attended", "running")):
            with lake_errors(path):
                if self.storage.is_held(path):
                    return True
        return False

    def forget_run_locks(self, session: str) -> None:
        """Delete what a killed run left of the locks above."""
        for name in ("attended", "running", self.trace(session).name, self.report(session).name):
            self.storage.drop_lock(self._run_lock(session, name))

    def drawing(self, session: str, view: Path) -> AbstractContextManager[None]:
        """A block in which nobody else makes that view of the session. PassingLakeError when one still does."""
        lock = self._run_lock(session, view.name)
        return self._held_while_it_runs(lock, f"{view.name} of session {session}", LOCK_TIMEOUT_SECONDS)

    def compacting(self) -> AbstractContextManager[None]:
        """A block in which nobody else writes or removes segments. LakeError at once when somebody does."""
        return self._held_while_it_runs(self._compaction_lock, "the lake's compaction", 0.0)

    def is_compacting(self) -> bool:
        """Whether anybody writes or removes segments, on this host or on one that shares the lake."""
        with lake_errors(self._compaction_lock):
            return self.storage.is_held(self._compaction_lock)

    @contextmanager
    def _held_while_it_runs(
        self, path: Path, purpose: str, wait_seconds: float = RUN_TIMEOUT_SECONDS
    ) -> Iterator[None]:
        """The lock dies with its holder, and its file goes with the block."""
        lock = self.storage.hold(path, wait_seconds, purpose)
        with ExitStack() as taken:
            with lake_errors(path):
                taken.enter_context(lock)
            taken.callback(self.storage.drop_lock, path)  # while it is held: whoever waits for it makes a new one
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
    """Whether a text can name a session, or a campaign."""
    is_session = SESSION_ID.fullmatch(text) is not None
    return is_session if scope == "session" else not is_session and CAMPAIGN_ID.fullmatch(text) is not None


def scope_of(identifier: str) -> Scope:
    """Which of the two a valid id names."""
    return "session" if SESSION_ID.fullmatch(identifier) is not None else "campaign"


def table_file(table: str, scope: Scope, identifier: str, stage: str, digest: str) -> str:
    """The name in the lake of a table's file; "" for a table without rows, which has neither digest nor file."""
    return f"{table}/{scope}_id={identifier}/{stage}-{digest[:DIGITS_IN_NAME]}.parquet" if digest else ""


def owner_of(path: Path) -> tuple[Scope, str]:
    """The session or campaign in whose folder the table file `path` lies."""
    key, _, identifier = path.parent.name.partition("_id=")
    return ("campaign" if key == "campaign" else "session"), identifier
