"""Beginning and forgetting a session in the lake: its measurement request, and the stages that it is to have.

A measurement request is defined in `aaco_pipeline.capture.request`.
"""

from pathlib import Path

from aaco_pipeline.assets.stage import stages_of
from aaco_pipeline.capture.face import Kind
from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.formats.parsing.redaction import safe_name
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
