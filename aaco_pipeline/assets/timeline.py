"""The stage `timeline`: busy and idle time of each device, the gaps, and statistics per kernel.

All arithmetic is `aaco_pipeline.analysis.timeline` and `aaco_pipeline.analysis.metrics`.
"""

from typing import Final

import dagster as dg
import polars as pl

from aaco_pipeline.analysis.metrics import kernels_per_iteration, timeline_metrics
from aaco_pipeline.analysis.timeline import analyse
from aaco_pipeline.assets.inference_run import inference_run
from aaco_pipeline.assets.kernel_trace import kernel_trace
from aaco_pipeline.assets.partitions import session_partitions
from aaco_pipeline.assets.stage import OWNERS, Outcome, expected_errors, publish_outcome, stage_metadata
from aaco_pipeline.lake.evidence import Evidence, evidence_frame
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.dagster_resources import LakeResource

STAGE: Final = "timeline"
TABLES: Final = ("timeline", "gaps", "kernel_stats", "session_metrics", "evidence")


def read_timeline(lake: TraceLake, session: str) -> Outcome:
    """Timeline, gaps, kernel statistics and metrics of the traced pass; empty tables without dispatches."""
    recorded = lake.read("dispatches", session).drop("session_id")
    dispatches = recorded.filter(pl.col("end_ns") >= pl.col("start_ns"))
    iterations = lake.read("iterations", session).drop("session_id")
    kernels = lake.read("kernels", session)
    result = analyse(dispatches, iterations)
    metrics = timeline_metrics(result.timeline, kernels_per_iteration(dispatches, iterations))
    whole = result.timeline.filter(pl.col("iteration").is_null())
    found = (
        Evidence("device activities", "present", None, "dispatches", dispatches.height)
        if dispatches.height
        else Evidence("device activities", "absent", "the session has no dispatches", "dispatches", 0)
    )
    unusable = recorded.height - dispatches.height
    left_out = [
        Evidence(
            "dispatches left out", "partial", "they have no times, or end before they begin", "dispatches", unusable
        )
    ]
    causes = Evidence("gap causes", "absent", "causes of gaps are not attributed yet: every cause is unknown")
    top = (
        result.kernel_stats.join(kernels, on="kernel_id")
        .sort("total_ns", descending=True)
        .select(
            kernel="name", operator="short_name", dispatches="dispatch_count", total_ns="total_ns", share="share_ratio"
        )
    )
    return Outcome(
        {
            "timeline": result.timeline,
            "gaps": result.gaps,
            "kernel_stats": result.kernel_stats,
            "session_metrics": metrics,
            "evidence": evidence_frame(STAGE, [found, causes, *(left_out if unusable else [])]),
        },
        {
            "active_ratio": whole.get_column("active_ratio").max() if whole.height == 1 else None,  # type: ignore[dict-item]
            "busy_ns": int(whole.get_column("busy_ns").sum()),
            "gaps": result.gaps.height,
        },
        top,
        "top kernels",
    )


@dg.asset(
    partitions_def=session_partitions,
    group_name="analysis",
    kinds={"polars", "parquet"},
    owners=OWNERS,
    deps=[inference_run, kernel_trace],
    metadata=stage_metadata(TABLES),
)
def timeline(context: dg.AssetExecutionContext, lake: LakeResource) -> dg.MaterializeResult[None]:
    """Where did each device's time go: busy, idle, overlapped, and in which kernels?"""
    with expected_errors():
        store = lake.open()
        return publish_outcome(store, context.partition_key, STAGE, read_timeline(store, context.partition_key))
