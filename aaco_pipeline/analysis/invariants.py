"""What must hold of a session's tables whatever was measured: conservation, plausibility, coverage.

Each function looks at tables and says whether the promise holds, with the numbers; that a promise is checked, and
what a broken one blocks, is decided in `aaco_pipeline.assets.checks`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import polars as pl

from aaco_pipeline.analysis.device_timeline import FIRST_TO_LAST

#: The profile's clock ticks in microseconds, so each kernel's time may be wrong by one tick.
KERNEL_TOLERANCE_NS: Final = 1_000


@dataclass(frozen=True)
class Finding:
    """Whether a promise holds, in words, with the figures that show it."""

    holds: bool
    statement: str
    figures: Mapping[str, int | float]


def window_is_conserved(timeline: pl.DataFrame, gaps: pl.DataFrame) -> Finding:
    """For every device, busy time plus gaps is the whole window, to the nanosecond."""
    whole = timeline.filter(pl.col("window_rule") == FIRST_TO_LAST)
    idle = gaps.group_by("device_id").agg(gap_ns=(pl.col("end_ns") - pl.col("start_ns")).sum())
    off = whole.join(idle, on="device_id", how="left").select(
        (
            pl.col("busy_ns") + pl.col("gap_ns").fill_null(0) - (pl.col("window_end_ns") - pl.col("window_start_ns"))
        ).abs()
    )
    largest = int(off.to_series().max() or 0) if whole.height else 0  # type: ignore[arg-type]
    return Finding(
        largest == 0,
        "busy time plus gaps is the window on every device" if largest == 0 else f"off by up to {largest} ns",
        {"largest_difference_ns": largest, "devices": whole.height},
    )


def path_is_conserved(summary: pl.DataFrame) -> Finding:
    """In every scope the path is no longer than the window, with what is unexplained it is the window, and its
    categories add up to it, to the nanosecond."""
    scopes = summary.group_by("scope").agg(
        pl.col("window_ns", "path_ns", "unexplained_ns").first(), categories_ns=pl.col("category_ns").sum()
    )
    longer = scopes.filter(pl.col("path_ns") > pl.col("window_ns")).height
    open_ended = scopes.filter(pl.col("path_ns") + pl.col("unexplained_ns") != pl.col("window_ns")).height
    uneven = scopes.filter(pl.col("categories_ns") != pl.col("path_ns")).height
    holds = longer == open_ended == uneven == 0
    return Finding(
        holds,
        "the path and what it leaves unexplained are the window, and its categories are the path"
        if holds
        else f"{longer} paths are longer than their window, {open_ended} leave time over, {uneven} do not add up",
        {"scopes": scopes.height, "longer_than_window": longer, "not_conserved": open_ended + uneven},
    )


def kernel_time_fits_iterations(dispatches: pl.DataFrame, iterations: pl.DataFrame) -> Finding:
    """In every traced iteration the kernels' self times sum to no more than its wall time, a tick per kernel aside."""
    traced = iterations.filter(pl.col("pass") == "trace").select("iteration", "latency_ns")
    sums = (
        dispatches.drop_nulls("iteration")
        .group_by("iteration")
        .agg(self_ns=pl.col("self_ns").sum(), kernels=pl.len().cast(pl.Int64))
        .join(traced, on="iteration", how="inner")
    )
    excess = pl.col("self_ns") - pl.col("latency_ns")
    broken = sums.filter(excess > KERNEL_TOLERANCE_NS * pl.col("kernels"))
    negative = dispatches.filter(pl.col("self_ns") < 0).height
    holds = broken.is_empty() and negative == 0
    return Finding(
        holds,
        "kernel self times fit into every traced iteration"
        if holds
        else f"{broken.height} iterations hold more kernel time than wall time, {negative} self times are negative",
        {"iterations": sums.height, "iterations_exceeded": broken.height, "negative_self_times": negative},
    )


def trace_covers_iterations(dispatches: pl.DataFrame, iterations: pl.DataFrame) -> Finding:
    """Every traced iteration has kernels, every kernel an iteration, and each lies within its iteration's time."""
    traced = iterations.filter(pl.col("pass") == "trace").select("iteration", first_ns="start_ns", last_ns="end_ns")
    placed = dispatches.drop_nulls("iteration").join(traced, on="iteration", how="left")
    outside = placed.filter(
        pl.col("first_ns").is_null()
        | (pl.col("start_ns") < pl.col("first_ns") - KERNEL_TOLERANCE_NS)
        | (pl.col("end_ns") > pl.col("last_ns") + KERNEL_TOLERANCE_NS)
    ).height
    empty = traced.join(dispatches.drop_nulls("iteration"), on="iteration", how="anti").height
    homeless = int(dispatches.get_column("iteration").null_count())
    holds = outside == empty == homeless == 0
    return Finding(
        holds,
        "every traced iteration has its kernels and every kernel its iteration"
        if holds
        else f"{empty} iterations without kernels, {homeless} kernels without an iteration, {outside} outside its time",
        {"iterations_without_kernels": empty, "kernels_without_iteration": homeless, "kernels_outside": outside},
    )


def iterations_are_plausible(iterations: pl.DataFrame) -> Finding:
    """Iterations of a pass have positive length and do not overlap, and CPU time is not negative."""
    ordered = iterations.sort("pass", "iteration")
    overlap = ordered.filter(pl.col("start_ns") < pl.col("end_ns").shift(1).over("pass")).height
    empty = ordered.filter(pl.col("latency_ns") <= 0).height
    negative = ordered.filter(pl.col("cpu_time_ns") < 0).height
    holds = overlap == empty == negative == 0
    return Finding(
        holds,
        "iterations follow one another and take time"
        if holds
        else f"{overlap} overlap the one before, {empty} have no length, {negative} negative CPU time",
        {"iterations": ordered.height, "overlapping": overlap, "without_length": empty},
    )
