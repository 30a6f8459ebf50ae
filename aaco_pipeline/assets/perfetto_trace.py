"""The view `perfetto_trace`: everything of a session on one axis, as a trace for ui.perfetto.dev.

How it is made and kept is `aaco_pipeline.report.on_demand`; in Dagster it is made anew whenever somebody asks for it.
"""

from aaco_pipeline.assets.stage import Outcome, Session, stage
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.on_demand import DRAWN, make_trace


@stage(
    reads=DRAWN,
    group="presentation",
    session_kinds=(),
    kinds=("perfetto",),
    file=("trace", TraceLake.trace),
)
def perfetto_trace(session: Session) -> Outcome:
    """What happened when, on one axis? Open the file at ui.perfetto.dev."""
    summary = make_trace(session.lake, session.id)
    return Outcome(
        {},
        headline={
            "slices": summary.slices,
            "counter_values": summary.counters,
            "flows": summary.flows,
            "trace_bytes": summary.bytes,
        },
    )
