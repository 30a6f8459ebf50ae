"""Invariants of a session's tables that always hold: conservation, plausibility, coverage.

Each function returns whether its invariant holds, with the figures. The stage declarations (`aaco_pipeline.assets`)
define which invariants are checked and what a violation blocks.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import polars as pl

from aaco_pipeline.analysis.timeline.device_timeline import FIRST_TO_LAST
from aaco_pipeline.providers import CPU_PROVIDER

#: The profile's clock ticks in microseconds, so each kernel's time may be off by one tick.
KERNEL_TOLERANCE_NS: Final = 1_000
#: A device may exceed the clock for which its ceiling is stated, but not by more than ten percent.
MOST_OF_A_SPEC_ROOF: Final = 1.1


@dataclass(frozen=True)
class Finding:
    """Result of an invariant check, in words, with the relevant figures."""

    holds: bool
    statement: str
    figures: Mapping[str, int | float]


def window_is_conserved(timeline: pl.DataFrame, gaps: pl.DataFrame) -> Finding:
    """Check that every device's busy time and gaps add up to its window, to the nanosecond."""
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
    """Check path <= window, path + unexplained = window and sum of categories = path, exactly, in every scope."""
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


def operator_time_is_conserved(operator_kernels: pl.DataFrame, stats: pl.DataFrame) -> Finding:
    """Check that attributed and unattributed time and dispatches add up exactly to each kernel's."""
    sums = operator_kernels.group_by("kernel_id").agg(pl.col("dispatch_count", "total_ns").sum())
    both = sums.join(
        stats.select("kernel_id", own_count="dispatch_count", own_ns="total_ns"), on="kernel_id", how="full"
    )
    same = (pl.col("dispatch_count") == pl.col("own_count")) & (pl.col("total_ns") == pl.col("own_ns"))
    # Before the model analysis there are no rows at all; a kernel missing from existing rows is an error.
    wrong = 0 if operator_kernels.is_empty() else both.filter(~same.fill_null(False)).height
    return Finding(
        wrong == 0,
        "operators' kernel time and what is unattributed are the kernels' time"
        if wrong == 0
        else f"{wrong} kernels have other time or other dispatches than their operators and the unattributed rest",
        {"kernels": stats.height, "not_conserved": wrong},
    )


def stalls_are_conserved(instructions: pl.DataFrame, stalls: pl.DataFrame) -> Finding:
    """Check that the reasons of each thread trace add up exactly to its instructions' stalled cycles."""
    keys = ["kernel_id", "dispatch_id", "capture"]
    traced = instructions.drop_nulls("stall_cycles").group_by(keys).agg(own=pl.col("stall_cycles").sum())
    reasons = stalls.drop_nulls("stall_cycles").group_by(keys).agg(stated=pl.col("stall_cycles").sum())
    both = traced.join(reasons, on=keys, how="full", nulls_equal=True)
    wrong = both.filter(pl.col("own").fill_null(0) != pl.col("stated").fill_null(0)).height
    return Finding(
        wrong == 0,
        "the reasons of the stalls add up to the stalled cycles"
        if wrong == 0
        else f"in {wrong} traced dispatches the reasons do not add up to the stalled cycles",
        {"traced_dispatches": traced.height, "not_conserved": wrong},
    )


def roofs_are_plausible(bounds: pl.DataFrame) -> Finding:
    """Check that no kernel exceeded a published ceiling, with a tolerance of ten percent for its clock."""
    above = bounds.filter((pl.col("ceiling_source") == "spec") & (pl.col("share_ratio") > MOST_OF_A_SPEC_ROOF))
    kernels = above.get_column("kernel_id").n_unique()
    return Finding(
        kernels == 0,
        "no kernel is above a published ceiling"
        if kernels == 0
        else f"{kernels} kernels are above a published ceiling: it, a counter or a duration is wrong",
        {"bounds": bounds.height, "kernels_above": kernels},
    )


def kernel_time_fits_iterations(dispatches: pl.DataFrame, iterations: pl.DataFrame) -> Finding:
    """Check that kernel self times in each traced iteration add up to at most its wall time, plus a tick per kernel."""
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
    """Check that each traced iteration has kernels, and that every kernel lies within its own iteration."""
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


def passes_are_conserved(iterations: pl.DataFrame, gaps: pl.DataFrame, blocks: pl.DataFrame) -> Finding:
    """Check, in every pass with block counters, that iterations and the gaps between them fill the blocks' time."""
    read = blocks.group_by("pass").agg(whole=(pl.col("end_ns") - pl.col("start_ns")).sum())
    inside = iterations.group_by("pass").agg(inside=pl.col("latency_ns").sum())
    between = gaps.group_by("pass").agg(between=pl.col("duration_ns").sum())
    both = read.join(inside, on="pass", how="left").join(between, on="pass", how="left").fill_null(0)
    off = both.select((pl.col("inside") + pl.col("between") - pl.col("whole")).abs().max()).item()
    largest, negative = int(off or 0), gaps.filter(pl.col("duration_ns") < 0).height
    holds = largest == negative == 0
    return Finding(
        holds,
        "iterations and the gaps between them are the whole of each pass"
        if holds
        else f"off by up to {largest} ns, {negative} gaps are negative",
        {"largest_difference_ns": largest, "passes": read.height, "gaps": gaps.height},
    )


def states_are_conserved(states: pl.DataFrame) -> Finding:
    """Check that a thread's states are contiguous: each begins where the previous one ended."""
    ordered = states.sort("thread_id", "start_ns")
    apart = (pl.col("start_ns") - pl.col("end_ns").shift(1).over("thread_id")).abs()
    torn, largest = ordered.select((apart > 0).sum(), apart.max().fill_null(0).alias("largest")).row(0)
    return Finding(
        not torn,
        "each state begins where the one before it ended" if not torn else f"{torn} do not, by up to {largest} ns",
        {"states": states.height, "torn": torn},
    )


def delays_are_conserved(delays: pl.DataFrame, iterations: pl.DataFrame) -> Finding:
    """Check that the parts of each decomposed iteration add up to its latency, and that none is negative."""
    summed = delays.group_by("pass", "iteration").agg(parts_ns=pl.col("duration_ns").sum())
    both = summed.join(iterations, on=["pass", "iteration"], how="left")
    length = pl.col("end_ns") - pl.col("start_ns")
    largest = int(both.select((pl.col("parts_ns") - length).abs().max()).item() or 0)
    negative = delays.filter(pl.col("duration_ns") < 0).height
    holds = largest == negative == 0
    return Finding(
        holds,
        "the parts of every iteration are its latency"
        if holds
        else f"off by up to {largest} ns, {negative} parts are negative",
        {"iterations": summed.height, "largest_difference_ns": largest},
    )


def iterations_are_plausible(iterations: pl.DataFrame, blocks: pl.DataFrame) -> Finding:
    """Check that iterations of a pass have positive length and do not overlap, and that no CPU time is negative."""
    ordered = iterations.sort("pass", "iteration")
    overlap = ordered.filter(pl.col("start_ns") < pl.col("end_ns").shift(1).over("pass")).height
    empty = ordered.filter(pl.col("latency_ns") <= 0).height
    negative = sum(frame.filter(pl.col("cpu_time_ns") < 0).height for frame in (ordered, blocks))
    holds = overlap == empty == negative == 0
    return Finding(
        holds,
        "iterations follow one another and take time"
        if holds
        else f"{overlap} overlap the one before, {empty} have no length, {negative} negative CPU time",
        {"iterations": ordered.height, "overlapping": overlap, "without_length": empty},
    )


def kernels_fit_their_calls(tables: Mapping[str, pl.DataFrame]) -> Finding:
    """Apply `kernel_time_fits_iterations` to kernels that run within host calls."""
    return kernel_time_fits_iterations(_within_calls(tables), tables["iterations"])


def kernels_cover_their_calls(tables: Mapping[str, pl.DataFrame]) -> Finding:
    """Apply `trace_covers_iterations` to kernels that run within host calls."""
    kernels, iterations = _within_calls(tables), tables["iterations"]
    return trace_covers_iterations(kernels, iterations if kernels.height else iterations.clear())


def _within_calls(tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """Return the dispatches that must lie within their iteration: not a device's, which run asynchronously."""
    dispatches = tables["dispatches"]
    return dispatches if tables["sessions"].item(0, "provider") == CPU_PROVIDER else dispatches.clear()
