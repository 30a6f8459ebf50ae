"""Begin and forget sessions, and find incomplete sessions in the lake.

`session_stages` runs a session's stages; `retention` removes old sessions.
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
    """Register a new session for `request`, and return its id; its stages run later."""
    session = lake.new_session(safe_name(Path(request.model).stem))
    lake.request(session, request.to_json())
    lake.expect(session, stages_of(kind_asked(request)))
    return session


def kind_asked(request: MeasurementRequest) -> Kind:
    """Return the kind of session that measuring `request` creates."""
    return "timed" if request.untraced else "profiled" if request.profile else "measured"


def begun(lake: TraceLake) -> list[str]:
    """List incomplete sessions that were requested, captured or published, oldest first.

    Sessions whose removal has begun are left out.
    """
    return sorted({*lake.unfinished(), *lake.requests()} - half_removed(lake))


def half_removed(lake: TraceLake) -> set[str]:
    """Find sessions and campaigns whose removal was killed: their manifest is gone, or the user had named them."""
    manifests = lake.path / MANIFESTS
    pending = [one for one in Account(lake).pending() if one.kind in ("session", "campaign")]
    return {one.name for one in pending if one.rule == ASKED or not (manifests / f"{one.name}.json").exists()}


def running_sessions(lake: TraceLake, sessions: Collection[str]) -> set[str]:
    """Return the subset of `sessions` whose stages a process is running, according to the lake's locks."""
    return {session for session in sessions if lake.is_running(session)}


def can_be_run(lake: TraceLake, session: str) -> bool:
    """Return whether a session's stages can run: it has a capture, or a request to measure."""
    return lake.raw(session).is_dir() or lake.request_path(session).is_file()
