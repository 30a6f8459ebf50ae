"""The stage `timeline`: busy and idle time of each device, the gaps and their causes, and statistics per kernel.

All figures are computed in `aaco_pipeline.analysis.timeline`, `analysis.kernels` and `analysis.sessions`.
"""

from typing import Final

import polars as pl

from aaco_pipeline.analysis.sessions import invariants
from aaco_pipeline.analysis.sessions.metrics import kernels_per_iteration, launch_metrics, timeline_metrics
from aaco_pipeline.analysis.steady.parts import STEADY, STEADY_FROM, SteadyPart, steady_part
from aaco_pipeline.analysis.timeline.activities import RECORDED_FROM, Recorded, kernel_stats, recorded
from aaco_pipeline.analysis.timeline.device_timeline import FIRST_TO_LAST
from aaco_pipeline.analysis.timeline.device_timeline import timeline as timeline_of
from aaco_pipeline.analysis.timeline.gap_causes import LaunchCost, gaps, launch_cost
from aaco_pipeline.assets.stage import FINDINGS, Check, Outcome, Session, stage
from aaco_pipeline.lake.evidence import Evidence, Status
from aaco_pipeline.lake.validation import in_contract, to_contract

_READ: Final = tuple(dict.fromkeys((*RECORDED_FROM, *STEADY_FROM)))
#: Columns that `stage` fills from the completeness findings.
_UNTOLD: Final = pl.lit(None, pl.String)
_PUBLISHED: Final = (
    *("timeline", "gaps", "kernel_stats", "session_metrics"),
    *("session_parts", "first_calls", "outlier_dispatches"),
)


@stage(
    reads=(*_READ, FINDINGS),
    publishes=_PUBLISHED,
    group="analysis",
    kinds=("polars", "parquet"),
    checks=(
        Check(
            "conservation",
            "On every device, busy time plus gaps is the window, to the nanosecond.",
            lambda tables: invariants.window_is_conserved(tables["timeline"], tables["gaps"]),
            ("timeline", "gaps"),
        ),
    ),
)
def timeline(session: Session) -> Outcome:
    """Where did each device's time go: busy, idle, overlapped, and in which kernels?"""
    tables = session.tables(*_READ)
    run = session.derive(recorded, RECORDED_FROM)
    iterations = tables["iterations"]
    rows = timeline_of(run.activities, run.calls, iterations, copies_traced=tables["memory_copies"].height > 0)
    idle = gaps(run.activities, tables["api_calls"], run.waits)
    stats = kernel_stats(run.dispatches)
    windows = rows.filter(pl.col("window_rule") == FIRST_TO_LAST)
    launching = launch_cost(run.activities, rows)
    whole = timeline_metrics(windows, kernels_per_iteration(run.dispatches, iterations))
    causes = (
        idle.group_by("cause")
        .agg(idle_ns=(pl.col("end_ns") - pl.col("start_ns")).sum())
        .sort("idle_ns", "cause", descending=[True, False])
    )
    top = stats.join(tables["kernels"], on="kernel_id").sort("total_ns", "kernel_id", descending=[True, False])
    active = windows.get_column("active_ratio").max() if windows.height == 1 else None
    steady = steady_part(tables, run)
    return Outcome(
        {
            "session_parts": _with_repetitions(steady),
            "first_calls": to_contract("first_calls", steady.first_calls),
            "outlier_dispatches": to_contract("outlier_dispatches", steady.outliers),
            "timeline": in_contract("timeline", rows.with_columns(busy_bound=_UNTOLD)),
            "gaps": in_contract("gaps", idle.with_columns(doubt=_UNTOLD)),
            "kernel_stats": stats,
            "session_metrics": pl.concat([whole, launch_metrics(launching.busiest)]),
        },
        [*_evidence(run), *_of_launches(launching)],
        {
            "active_ratio": active if isinstance(active, float) else None,
            "busy_ns": int(windows.get_column("busy_ns").sum()),
            "gaps": idle.height,
            **{f"largest_gap_cause_{i + 1}": cause for i, cause in enumerate(causes.get_column("cause").head(3))},
        },
        top.select(
            kernel="name",
            operator="short_name",
            dispatches="dispatch_count",
            total_ns="total_ns",
            share_ratio="share_ratio",
        ),
        "top kernels",
    )


def _with_repetitions(steady: SteadyPart) -> pl.DataFrame:
    """Shape parts for `session_parts`; repetition columns are set only on the device where the loop was detected."""
    found = steady.repetition
    device, times, period = (
        (-1, None, None) if found is None else (found.device_id, found.repetitions, found.median_period_ns)
    )
    repeats = (pl.col("part") == STEADY) & (pl.col("device_id") == device)
    rows = steady.parts.with_columns(
        repetitions=pl.when(repeats).then(pl.lit(times, pl.Int64)),
        period_ns=pl.when(repeats).then(pl.lit(period, pl.Int64)),
    )
    return to_contract("session_parts", rows)


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
    """Report the basis of the launch figures."""
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
