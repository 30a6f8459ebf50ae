"""The stage `perfetto_trace`: everything of a session on one axis, as a trace for ui.perfetto.dev.

Which table goes on which track is `aaco_pipeline.report.trace`; the encoder is `aaco_pipeline.lake.perfetto`.
"""

from typing import Final

import dagster as dg

from aaco_pipeline.assets.critical_path import critical_path
from aaco_pipeline.assets.inference_run import inference_run
from aaco_pipeline.assets.kernel_trace import kernel_trace
from aaco_pipeline.assets.partitions import session_partitions
from aaco_pipeline.assets.session_environment import session_environment
from aaco_pipeline.assets.stage import OWNERS, Outcome, expected_errors, publish_outcome, stage_metadata
from aaco_pipeline.assets.telemetry import telemetry
from aaco_pipeline.assets.timeline import timeline
from aaco_pipeline.lake.evidence import Evidence, evidence_frame
from aaco_pipeline.lake.files import lake_errors
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.trace import write_session_trace
from aaco_pipeline.resources.dagster_resources import LakeResource

STAGE: Final = "perfetto_trace"
TABLES: Final = ("evidence",)


def write_perfetto_trace(lake: TraceLake, session: str) -> Outcome:
    """Write the trace, and say what went into it."""
    with lake_errors(lake.path):
        summary = write_session_trace(lake, session)
    held = summary.slices + summary.counters
    item = (
        Evidence("unified trace", "present", None, "trace.pftrace.gz", held)
        if held
        else Evidence("unified trace", "absent", "the session has no events to draw", "trace.pftrace.gz", 0)
    )
    return Outcome(
        {"evidence": evidence_frame(STAGE, [item])},
        {
            "slices": summary.slices,
            "counter_values": summary.counters,
            "flows": summary.flows,
            "trace_bytes": summary.bytes,
        },
    )


@dg.asset(
    partitions_def=session_partitions,
    group_name="presentation",
    kinds={"perfetto"},
    owners=OWNERS,
    deps=[session_environment, inference_run, kernel_trace, telemetry, timeline, critical_path],
    metadata=stage_metadata(TABLES),
)
def perfetto_trace(context: dg.AssetExecutionContext, lake: LakeResource) -> dg.MaterializeResult[None]:
    """What happened when, on one axis? Open the file at ui.perfetto.dev."""
    with expected_errors():
        store, session = lake.open(), context.partition_key
        result = publish_outcome(store, session, STAGE, write_perfetto_trace(store, session))
        link = dg.MetadataValue.path(store.trace(session))
        return result._replace(metadata={**(result.metadata or {}), "trace": link})
