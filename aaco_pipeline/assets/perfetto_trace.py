"""The stage `perfetto_trace`: everything of a session on one axis, as a trace for ui.perfetto.dev.

Which table goes on which track is `aaco_pipeline.report.trace`; the encoder is `aaco_pipeline.lake.perfetto`.
"""

from aaco_pipeline.assets.stage import Outcome, Session, stage
from aaco_pipeline.lake.evidence import Evidence
from aaco_pipeline.lake.files import lake_errors
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.trace import TABLES, write_session_trace


@stage(reads=TABLES, group="presentation", kinds=("perfetto",), file=("trace", TraceLake.trace))
def perfetto_trace(session: Session) -> Outcome:
    """What happened when, on one axis? Open the file at ui.perfetto.dev."""
    path = session.lake.trace(session.id)
    with session.lake.new_artifact(session.id, "perfetto_trace", path) as file, lake_errors(session.lake.path):
        summary = write_session_trace(session.id, session.batches, file)
    held = summary.slices + summary.counters
    item = (
        Evidence("unified trace", "present", None, path.name, held)
        if held
        else Evidence("unified trace", "absent", "the session has no events to draw", path.name, 0)
    )
    return Outcome(
        {},
        [item],
        {
            "slices": summary.slices,
            "counter_values": summary.counters,
            "flows": summary.flows,
            "trace_bytes": summary.bytes,
        },
    )
