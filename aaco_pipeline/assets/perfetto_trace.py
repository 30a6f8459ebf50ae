"""The view `perfetto_trace`: the entire session on one time axis, as a trace for ui.perfetto.dev.

`aaco_pipeline.report.on_demand` generates and caches it; Dagster regenerates it on each request.
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
    """What happened when, on one time axis? Open the file at ui.perfetto.dev."""
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
