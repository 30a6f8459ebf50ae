"""Begin and forget sessions, and find those in the lake that are not whole.

Running a session's stages is `session_stages`; removing old sessions is `retention`.
"""

from collections.abc import Collection
from pathlib import Path

from aaco_pipeline.assets.stage import stages_of
from aaco_pipeline.capture.face import Kind
from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.formats.parsing.redaction import safe_name
from aaco_pipeline.lake.layout import MANIFESTS
from aaco_pipeline.lake.retention import ASKED, Account
from aaco_pipeline.lake.store import TraceLake


def register(lake: TraceLake, request: MeasurementRequest) -> str:
    """Write down a new session for `request`, and return its id; its stages are run by whoever comes next."""
    session = lake.new_session(safe_name(Path(request.model).stem))
    lake.request(session, request.to_json())
    lake.expect(session, stages_of(kind_asked(request)))
    return session


def kind_asked(request: MeasurementRequest) -> Kind:
    """Tell which kind of session measuring `request` makes."""
    return "timed" if request.untraced else "profiled" if request.profile else "measured"


def begun(lake: TraceLake) -> list[str]:
    """List sessions that were requested, captured or published and are not whole, the oldest first.

    Sessions whose removal has begun are left out.
    """
    return sorted({*lake.unfinished(), *lake.requests()} - half_removed(lake))


def half_removed(lake: TraceLake) -> set[str]:
    """Find sessions and campaigns whose removal was killed: their manifest is gone, or the user had named them."""
    manifests = lake.path / MANIFESTS
    pending = [one for one in Account(lake).pending() if one.kind in ("session", "campaign")]
    return {one.name for one in pending if one.rule == ASKED or not (manifests / f"{one.name}.json").exists()}


def running_sessions(lake: TraceLake, sessions: Collection[str]) -> set[str]:
    """Find those of `sessions` whose stages a process runs now, by the lake's locks."""
    return {session for session in sessions if lake.is_running(session)}


def can_be_run(lake: TraceLake, session: str) -> bool:
    """Return whether there is anything to run a session's stages on: its capture, or a request to measure one."""
    return lake.raw(session).is_dir() or lake.request_path(session).is_file()
