"""The stage `timeline`: busy and idle time of each device, the gaps, and statistics per kernel.

All arithmetic is `aaco_pipeline.analysis`: `device_timeline`, `gap_causes`, `kernel_statistics` and `metrics`.
"""

from dataclasses import dataclass
from typing import Final

import dagster as dg
import polars as pl

from aaco_pipeline.analysis.kernels.statistics import kernel_stats, measured_dispatches
from aaco_pipeline.analysis.sessions.metrics import kernels_per_iteration, launch_metrics, timeline_metrics
from aaco_pipeline.analysis.timeline.activities import device_activities, host_calls
from aaco_pipeline.analysis.timeline.device_timeline import FIRST_TO_LAST
from aaco_pipeline.analysis.timeline.device_timeline import timeline as timeline_of
from aaco_pipeline.analysis.timeline.gap_causes import gaps
from aaco_pipeline.analysis.timeline.host_waits import Waits, waits
from aaco_pipeline.analysis.timeline.launch_cost import LaunchCost, launch_cost
from aaco_pipeline.assets.inference_run import inference_run
from aaco_pipeline.assets.kernel_trace import kernel_trace
from aaco_pipeline.assets.partitions import session_partitions
from aaco_pipeline.assets.stage import OWNERS, Outcome, expected_errors, publish_outcome, stage_metadata
from aaco_pipeline.lake.evidence import Evidence, Status, evidence_frame
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.validation import empty_table, to_contract
from aaco_pipeline.resources.dagster_resources import LakeResource

STAGE: Final = "timeline"
TABLES: Final = ("timeline", "gaps", "kernel_stats", "session_metrics", "evidence")


@dataclass(frozen=True)
class Recorded:
    """What ran in the measured iterations of a session, or in all of it where none are known.

    `dispatches` are those with times; `activities`, `calls` and `waits` as `aaco_pipeline.analysis` makes them.
    """

    dispatches: pl.DataFrame
    left_out: int
    kernels: pl.DataFrame
    iterations: pl.DataFrame
    copies: pl.DataFrame
    api_calls: pl.DataFrame
    activities: pl.DataFrame
    calls: pl.DataFrame
    waits: Waits


def counted_dispatches(dispatches: pl.DataFrame, iterations: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """The dispatches that every figure of the traced pass is over, and how many have no usable times."""
    timed = dispatches.filter(pl.col("end_ns") >= pl.col("start_ns"))
    return measured_dispatches(timed, iterations), dispatches.height - timed.height


def recorded(lake: TraceLake, session: str) -> Recorded:
    """Read a session's trace as the stages of analysis want it."""

    def table(name: str) -> pl.DataFrame:
        return lake.read(name, session).drop("session_id")

    iterations, kernels = table("iterations"), table("kernels")
    dispatches, left_out = counted_dispatches(table("dispatches"), iterations)
    copies, api_calls = table("memory_copies"), table("api_calls")
    calls = host_calls(api_calls)
    activities = device_activities(dispatches, copies, kernels, calls)
    waiting = waits(activities, calls, table("synchronizations"))
    return Recorded(dispatches, left_out, kernels, iterations, copies, api_calls, activities, calls, waiting)


def read_timeline(lake: TraceLake, session: str) -> Outcome:
    """Timeline, gaps with their causes, kernel statistics and metrics of the traced pass; empty without dispatches."""
    run = recorded(lake, session)
    rows = timeline_of(run.activities, run.calls, run.iterations, copies_traced=run.copies.height > 0)
    idle = gaps(run.activities, run.api_calls, run.waits).gaps
    stats = kernel_stats(run.dispatches)
    windows = rows.filter(pl.col("window_rule") == FIRST_TO_LAST)
    launching = launch_cost(run.activities, rows)
    whole = timeline_metrics(windows, kernels_per_iteration(run.dispatches, run.iterations))
    causes = (
        idle.group_by("cause")
        .agg(gaps=pl.len(), idle_ns=(pl.col("end_ns") - pl.col("start_ns")).sum())
        .sort("idle_ns", descending=True)
    )
    top = (
        stats.join(run.kernels, on="kernel_id")
        .sort("total_ns", descending=True)
        .select(
            kernel="name", operator="short_name", dispatches="dispatch_count", total_ns="total_ns", share="share_ratio"
        )
    )
    largest = causes.get_column("cause").head(3).to_list()
    return Outcome(
        {
            "timeline": to_contract("timeline", rows.select(empty_table("timeline").columns)),
            "gaps": to_contract("gaps", idle.select(empty_table("gaps").columns)),
            "kernel_stats": stats,
            "session_metrics": pl.concat([whole, launch_metrics(launching.busiest)]),
            "evidence": evidence_frame(STAGE, [*_evidence(run), *_of_launches(launching)]),
        },
        {
            "active_ratio": windows.get_column("active_ratio").max() if windows.height == 1 else None,  # type: ignore[dict-item]
            "busy_ns": int(windows.get_column("busy_ns").sum()),
            "gaps": idle.height,
            **{f"largest_gap_cause_{i + 1}": cause for i, cause in enumerate(largest)},
        },
        top,
        "top kernels",
    )


def _evidence(run: Recorded) -> list[Evidence]:
    height = run.activities.height
    items = [
        Evidence("device activities", "present", None, "dispatches", height)
        if height
        else Evidence("device activities", "absent", "the session has no dispatches", "dispatches", 0)
    ]
    if run.left_out:
        reason = "they have no times, or end before they begin"
        items.append(Evidence("dispatches left out", "partial", reason, "dispatches", run.left_out))
    unlinked = int(run.activities.get_column("call_id").null_count())
    if height and unlinked == height:
        reason = "no launches are known, so that no gap can be told to be the host's: every cause is unknown"
        items.append(Evidence("gap causes", "absent", reason))
    elif unlinked:
        reason = f"{unlinked} of {height} activities have no known launch; gaps before them are unknown"
        items.append(Evidence("gap causes", "partial", reason, "api_calls", unlinked))
    return items


def _of_launches(cost: LaunchCost) -> list[Evidence]:
    """What the figures on launching rest on."""
    busiest, devices = cost.busiest, cost.devices.height
    if busiest is None:
        return []
    if not busiest["launches"]:
        reason = f"no launch onto device {busiest['device_id']} is known, so that none can be told to be exposed"
        return [Evidence("launch cost", "absent", reason, "api_calls", 0)]
    reasons = []
    if devices > 1:
        reasons.append(f"the figures are those of device {busiest['device_id']}, the busiest of {devices}")
    if busiest["unlinked"]:
        reasons.append(f"{busiest['unlinked']} activities have no known launch, so that its cost is a lower bound")
    status: Status = "partial" if reasons else "present"
    return [Evidence("launch cost", status, "; ".join(reasons) or None, "api_calls", busiest["launches"])]


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
