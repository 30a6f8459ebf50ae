"""Where each device's time went: busy, idle and overlapped time by window, the gaps, and statistics per kernel.

Interval arithmetic is `aaco_pipeline.analysis.intervals`; figures over iterations are `aaco_pipeline.analysis.metrics`.
"""

from dataclasses import dataclass
from typing import Final

import polars as pl

from aaco_pipeline.analysis import intervals

WHOLE_WINDOW: Final = "first_to_last_activity"
ITERATION_WINDOW: Final = "iteration"
_WINDOW_KEYS: Final = ("device_id", "iteration")


@dataclass(frozen=True)
class Timeline:
    """The frames of the tables `timeline`, `gaps` and `kernel_stats`, without their session key."""

    timeline: pl.DataFrame
    gaps: pl.DataFrame
    kernel_stats: pl.DataFrame


def analyse(dispatches: pl.DataFrame, iterations: pl.DataFrame) -> Timeline:
    """Timeline, gaps and kernel statistics of the dispatches in measured iterations.

    A device's whole window runs from its first activity's start to its last one's end; each measured iteration is a
    window of its own, from the iteration's own start and end. Activities are the dispatches at the top level: what
    runs inside a control-flow operator is part of it, not beside it. In the whole window busy_ns plus the gaps is the
    window, exactly.
    """
    measured = measured_dispatches(dispatches, iterations)
    activities = measured.filter(pl.col("parent_dispatch_id").is_null())
    windows = _windows(activities, iterations)
    return Timeline(
        timeline=_timeline(activities, windows),
        gaps=_gaps(activities, windows.filter(pl.col("iteration").is_null())),
        kernel_stats=kernel_stats(measured),
    )


def measured_dispatches(dispatches: pl.DataFrame, iterations: pl.DataFrame) -> pl.DataFrame:
    """The dispatches that count: those of measured iterations, or all when the session has no traced iterations.

    Warm-up is kept in `dispatches` and excluded here, as from every statistic.
    """
    traced = iterations.filter(pl.col("pass") == "trace")
    if traced.is_empty():
        return dispatches
    measured = traced.filter(pl.col("phase") == "measure").get_column("iteration")
    return dispatches.filter(pl.col("iteration").is_in(measured.implode()))


def kernel_stats(dispatches: pl.DataFrame) -> pl.DataFrame:
    """One row per kernel over its dispatches' self time; quantiles are observed values (nearest rank)."""
    total = pl.col("self_ns").sum()
    stats = dispatches.group_by("kernel_id").agg(
        dispatch_count=pl.len().cast(pl.Int64),
        total_ns=total,
        mean_ns=(total / pl.len()).round().cast(pl.Int64),
        min_ns=pl.col("self_ns").min(),
        p50_ns=_nearest_rank("self_ns", 0.50),
        p99_ns=_nearest_rank("self_ns", 0.99),
        max_ns=pl.col("self_ns").max(),
    )
    everything = stats.get_column("total_ns").sum()
    share = pl.col("total_ns") / everything if everything else pl.lit(None, pl.Float64)
    return stats.with_columns(share_ratio=share).sort("kernel_id")


def _nearest_rank(column: str, quantile: float) -> pl.Expr:
    """The smallest observed value with at least the share `quantile` of the values at or below it."""
    rank = (pl.len() * quantile).ceil().cast(pl.Int64).clip(lower_bound=1) - 1
    return pl.col(column).sort().get(rank)


def _windows(activities: pl.DataFrame, iterations: pl.DataFrame) -> pl.DataFrame:
    """One row per device and window: the whole one (iteration null) and each measured iteration's."""
    whole = activities.group_by("device_id").agg(
        window_start_ns=pl.col("start_ns").min(), window_end_ns=pl.col("end_ns").max()
    )
    whole = whole.with_columns(iteration=pl.lit(None, pl.Int32), window_rule=pl.lit(WHOLE_WINDOW))
    measured = iterations.filter((pl.col("pass") == "trace") & (pl.col("phase") == "measure")).select(
        "iteration",
        window_start_ns="start_ns",
        window_end_ns="end_ns",
        window_rule=pl.lit(ITERATION_WINDOW),
    )
    each = whole.select("device_id").join(measured, how="cross")
    return pl.concat([whole, each], how="diagonal").sort(*_WINDOW_KEYS)


def _timeline(activities: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    own = activities.select(*_WINDOW_KEYS, "start_ns", "end_ns")
    in_windows = pl.concat([own.with_columns(iteration=pl.lit(None, pl.Int32)), own.drop_nulls("iteration")])
    in_windows = in_windows.join(windows, on=_WINDOW_KEYS, nulls_equal=True)
    inside = intervals.clip(in_windows, "window_start_ns", "window_end_ns")
    measures = {
        "busy_ns": intervals.length_ns(intervals.union(inside, _WINDOW_KEYS), _WINDOW_KEYS),
        "overlapped_ns": intervals.length_ns(intervals.overlapped(inside, _WINDOW_KEYS), _WINDOW_KEYS),
        "activity_time_sum_ns": intervals.length_ns(inside, _WINDOW_KEYS),
    }
    rows = windows
    for name, measure in measures.items():
        rows = rows.join(measure.rename({"length_ns": name}), on=_WINDOW_KEYS, how="left", nulls_equal=True)
    counts = in_windows.group_by(_WINDOW_KEYS).agg(activity_count=pl.len().cast(pl.Int64))
    rows = rows.join(counts, on=_WINDOW_KEYS, how="left", nulls_equal=True)
    window = pl.col("window_end_ns") - pl.col("window_start_ns")
    return (
        # A window in which nothing ran was measured to hold nothing: zero, not null.
        rows.with_columns(pl.col(*measures, "activity_count").fill_null(0))
        .with_columns(
            active_ratio=pl.when(window > 0).then(pl.col("busy_ns") / window),
            compute_ns="busy_ns",
            exposed_copy_ns=pl.lit(None, pl.Int64),
            exposed_communication_ns=pl.lit(None, pl.Int64),
            linked_ratio=pl.lit(None, pl.Float64),
        )
        .sort(*_WINDOW_KEYS)
    )


def _gaps(activities: pl.DataFrame, whole_windows: pl.DataFrame) -> pl.DataFrame:
    """The gaps of each device's whole window, with the dispatches on either side."""
    gaps = [pl.DataFrame(schema=_GAPS)]
    for device, start, end in whole_windows.select("device_id", "window_start_ns", "window_end_ns").iter_rows():
        own = activities.filter(pl.col("device_id") == device)
        idle = intervals.complement(intervals.union(own), start, end)
        before = own.sort("dispatch_id").unique("end_ns", keep="last")
        after = own.sort("dispatch_id").unique("start_ns", keep="first")
        idle = idle.join(
            before.select(start_ns="end_ns", previous_activity_id="dispatch_id"),
            on="start_ns",
            how="left",
            maintain_order="left",
        ).join(
            after.select(end_ns="start_ns", next_activity_id="dispatch_id"),
            on="end_ns",
            how="left",
            maintain_order="left",
        )
        gaps.append(
            idle.select(
                device_id=pl.lit(device, pl.Int32),
                start_ns="start_ns",
                end_ns="end_ns",
                cause=pl.lit("unknown"),
                previous_activity_kind=pl.when(pl.col("previous_activity_id").is_not_null()).then(pl.lit("dispatch")),
                previous_activity_id="previous_activity_id",
                next_activity_kind=pl.when(pl.col("next_activity_id").is_not_null()).then(pl.lit("dispatch")),
                next_activity_id="next_activity_id",
                host_call_id=pl.lit(None, pl.Int32),
            )
        )
    return pl.concat(gaps)


_GAPS: Final = pl.Schema(
    {
        "device_id": pl.Int32(),
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
        "cause": pl.String(),
        "previous_activity_kind": pl.String(),
        "previous_activity_id": pl.Int32(),
        "next_activity_kind": pl.String(),
        "next_activity_id": pl.Int32(),
        "host_call_id": pl.Int32(),
    }
)
