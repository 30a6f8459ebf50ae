"""The stage `capture`: run the workload once, or accept an existing complete capture, and report its contents.

Measurements are taken in `aaco_pipeline.resources.measure`; raw files are read in `aaco_pipeline.capture`.
"""

from typing import Final

from aaco_pipeline.assets.stage import ALL_KINDS, Outcome, Session, stage
from aaco_pipeline.errors import UsageError

#: The single slot shared by all measurements; dagster.yaml limits pools to 1 by default.
MEASUREMENT_POOL: Final = "measurement"


@stage(
    publishes=("sessions",),
    group="capture",
    kinds=("rocm", "onnx", "parquet"),
    session_kinds=ALL_KINDS,
    pool=MEASUREMENT_POOL,
)
def capture(session: Session) -> Outcome:
    """What was run, and is its raw capture complete?"""
    _measured_once(session)
    recorded = session.capture
    tables = recorded.tables()
    return Outcome({"sessions": tables["sessions"]}, recorded.evidence("files"), recorded.facts().summary)


def _measured_once(session: Session) -> None:
    """Measure the request unless the capture is already complete; measuring again requires a new session."""
    lake = session.lake
    if not lake.raw(session.id).is_dir():
        requested = lake.requested(session.id)
        if requested is None:
            raise UsageError(
                f"session {session.id} has neither a capture nor a request to measure; start one with `aaco run` or "
                "the job start_session"
            )
        if session.measure is None:
            raise UsageError(f"session {session.id} has still to be measured; run its stages with `aaco doctor --mend`")
        from aaco_pipeline.capture.request import MeasurementRequest  # imported only for measurements

        request = MeasurementRequest.from_json(requested, f"measurement request of session {session.id}")
        with lake.receive_raw(session.id) as folder:
            session.measure(request, folder, session.log)
    lake.withdraw(session.id)
