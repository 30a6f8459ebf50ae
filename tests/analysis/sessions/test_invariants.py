"""The promises every session's tables must keep, each shown kept and broken."""

from collections.abc import Sequence
from itertools import pairwise

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.analysis.sessions.invariants import (
    KERNEL_TOLERANCE_NS,
    Finding,
    iterations_are_plausible,
    kernel_time_fits_iterations,
    operator_time_is_conserved,
    passes_are_conserved,
    path_is_conserved,
    roofs_are_plausible,
    stalls_are_conserved,
    trace_covers_iterations,
    window_is_conserved,
)


def timeline(*rows: tuple[int, int | None, int, int, int]) -> pl.DataFrame:
    """Rows of (device, iteration, start, end, busy)."""
    columns = ("device_id", "iteration", "window_start_ns", "window_end_ns", "busy_ns")
    frame = pl.DataFrame(rows, schema=dict.fromkeys(columns, pl.Int64), orient="row")
    whole = pl.when(pl.col("iteration").is_null()).then(pl.lit("first_to_last_activity"))
    return frame.with_columns(window_rule=whole.otherwise(pl.lit("iteration")))


def gaps(*rows: tuple[int, int, int]) -> pl.DataFrame:
    """Rows of (device, start, end)."""
    return pl.DataFrame(rows, schema=dict.fromkeys(("device_id", "start_ns", "end_ns"), pl.Int64), orient="row")


def iterations(*rows: tuple[str, int, int, int], cpu_time_ns: int = 0) -> pl.DataFrame:
    """Rows of (pass, iteration, start, end)."""
    frame = pl.DataFrame(
        rows, schema={"pass": pl.String, "iteration": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64}, orient="row"
    )
    return frame.with_columns(
        latency_ns=pl.col("end_ns") - pl.col("start_ns"), cpu_time_ns=pl.lit(cpu_time_ns, pl.Int64)
    )


def dispatches(*rows: tuple[int | None, int, int], self_ns: Sequence[int] | None = None) -> pl.DataFrame:
    """Rows of (iteration, start, end); self time is the length unless given."""
    frame = pl.DataFrame(
        rows, schema={"iteration": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64}, orient="row"
    ).with_columns(self_ns=pl.col("end_ns") - pl.col("start_ns"))
    return frame if self_ns is None else frame.with_columns(self_ns=pl.Series(self_ns, dtype=pl.Int64))


def blocks(*rows: tuple[str, int, int], cpu_time_ns: int = 0) -> pl.DataFrame:
    """Rows of (pass, start, end)."""
    schema = {"pass": pl.String, "start_ns": pl.Int64, "end_ns": pl.Int64}
    return pl.DataFrame(rows, schema=schema, orient="row").with_columns(cpu_time_ns=pl.lit(cpu_time_ns, pl.Int64))


def between(*durations: int) -> pl.DataFrame:
    """Gaps of the unprofiled pass."""
    rows = [("latency", duration) for duration in durations]
    return pl.DataFrame(rows, schema={"pass": pl.String, "duration_ns": pl.Int64}, orient="row")


def plausible(measured: pl.DataFrame, counted: pl.DataFrame | None = None) -> Finding:
    return iterations_are_plausible(measured, blocks() if counted is None else counted)


TWO_MS_TWICE = iterations(("trace", 0, 0, 2_000_000), ("trace", 1, 3_000_000, 5_000_000))


# Conservation of the window.


def test_busy_time_plus_gaps_is_the_window() -> None:
    found = window_is_conserved(timeline((0, None, 10, 110, 70)), gaps((0, 20, 30), (0, 50, 70)))
    assert found.holds
    assert found.figures == {"largest_difference_ns": 0, "devices": 1}


@pytest.mark.parametrize("hole", [gaps((0, 20, 30), (0, 50, 69)), gaps((0, 20, 31), (0, 50, 70)), gaps()])
def test_a_nanosecond_missing_from_the_gaps_is_found(hole: pl.DataFrame) -> None:
    found = window_is_conserved(timeline((0, None, 10, 110, 70)), hole)
    assert not found.holds
    assert found.figures["largest_difference_ns"] == (30 if hole.is_empty() else 1)
    assert "off by up to" in found.statement


def test_every_device_must_keep_its_own_window() -> None:
    both = timeline((0, None, 0, 100, 90), (1, None, 0, 100, 100))
    assert window_is_conserved(both, gaps((0, 0, 10))).holds
    assert not window_is_conserved(both, gaps((1, 0, 10))).holds


def test_windows_of_iterations_are_not_asked_for_gaps() -> None:
    assert window_is_conserved(timeline((0, None, 0, 100, 100), (0, 3, 0, 50, 10)), gaps()).holds


def test_a_session_without_activities_breaks_no_promise() -> None:
    assert window_is_conserved(timeline(), gaps()).holds
    assert kernel_time_fits_iterations(dispatches(), iterations()).holds
    assert trace_covers_iterations(dispatches(), iterations()).holds
    assert plausible(iterations()).holds


@given(cuts=st.lists(st.integers(0, 10_000), min_size=2, max_size=20, unique=True), shift=st.integers(-3, 3))
def test_any_window_cut_into_busy_and_idle_is_conserved_and_no_other(cuts: list[int], shift: int) -> None:
    edges = sorted(cuts)
    pieces = list(pairwise(edges))
    idle = [(0, start, end) for start, end in pieces[1::2]]
    busy = sum(end - start for start, end in pieces[0::2])
    found = window_is_conserved(timeline((0, None, edges[0], edges[-1], busy + shift)), gaps(*idle))
    assert found.holds == (shift == 0)
    assert found.figures["largest_difference_ns"] == abs(shift)


# Kernel time within iterations.


def test_kernel_time_within_a_tick_per_kernel_fits() -> None:
    exact = dispatches(
        (0, 0, 1_000_000), (0, 1_000_000, 2_000_000 + 2 * KERNEL_TOLERANCE_NS), (1, 3_000_000, 3_000_001)
    )
    assert kernel_time_fits_iterations(exact, TWO_MS_TWICE).holds


def test_kernel_time_beyond_a_tick_per_kernel_is_found() -> None:
    over = dispatches((0, 0, 1_000_000), (0, 1_000_000, 2_000_001 + 2 * KERNEL_TOLERANCE_NS), (1, 3_000_000, 3_000_001))
    found = kernel_time_fits_iterations(over, TWO_MS_TWICE)
    assert not found.holds
    assert found.figures == {"iterations": 2, "iterations_exceeded": 1, "negative_self_times": 0}


def test_nested_kernels_count_with_self_time_only() -> None:
    nested = dispatches((0, 0, 1_900_000), (0, 100_000, 1_800_000), self_ns=[200_000, 1_700_000])
    assert kernel_time_fits_iterations(nested, TWO_MS_TWICE).holds


def test_a_negative_self_time_is_found() -> None:
    found = kernel_time_fits_iterations(dispatches((0, 0, 10), self_ns=[-1]), TWO_MS_TWICE)
    assert not found.holds
    assert found.figures["negative_self_times"] == 1


def test_iterations_of_the_unprofiled_pass_do_not_bound_the_kernels_of_the_profiled() -> None:
    both = iterations(("latency", 0, 0, 5), ("trace", 0, 100, 2_000_100))
    assert kernel_time_fits_iterations(dispatches((0, 100, 1_000_100)), both).holds


# Coverage.


def test_a_trace_that_covers_its_iterations_is_whole() -> None:
    whole = dispatches((0, -KERNEL_TOLERANCE_NS, 10), (1, 3_000_000, 5_000_000 + KERNEL_TOLERANCE_NS))
    found = trace_covers_iterations(whole, TWO_MS_TWICE)
    assert found.holds
    assert set(found.figures.values()) == {0}


@pytest.mark.parametrize(
    ("kernels", "figure"),
    [
        (dispatches((0, 0, 10)), "iterations_without_kernels"),
        (dispatches((0, 0, 10), (1, 3_000_000, 3_000_001), (None, 2_500_000, 2_500_001)), "kernels_without_iteration"),
        (dispatches((0, -KERNEL_TOLERANCE_NS - 1, 10), (1, 3_000_000, 3_000_001)), "kernels_outside"),
        (dispatches((0, 0, 10), (1, 3_000_000, 5_000_001 + KERNEL_TOLERANCE_NS)), "kernels_outside"),
        (dispatches((0, 0, 10), (1, 3_000_000, 3_000_001), (2, 6_000_000, 6_000_001)), "kernels_outside"),
    ],
)
def test_each_hole_in_the_coverage_is_found_and_counted(kernels: pl.DataFrame, figure: str) -> None:
    found = trace_covers_iterations(kernels, TWO_MS_TWICE)
    assert not found.holds
    assert {name for name, count in found.figures.items() if count} == {figure}
    assert found.figures[figure] == 1


# Plausibility.


def test_iterations_that_follow_one_another_are_plausible() -> None:
    found = plausible(iterations(("latency", 0, 0, 5), ("latency", 1, 5, 9), ("trace", 0, 2, 4)))
    assert found.holds
    assert found.figures["iterations"] == 3


def test_an_iteration_that_begins_before_the_last_has_ended_is_found_in_its_own_pass() -> None:
    found = plausible(iterations(("trace", 1, 4, 9), ("trace", 0, 0, 5), ("latency", 0, 0, 3)))
    assert not found.holds
    assert found.figures["overlapping"] == 1


def test_an_iteration_that_takes_no_time_is_found() -> None:
    found = plausible(iterations(("latency", 0, 5, 5)))
    assert not found.holds
    assert found.figures["without_length"] == 1


def test_negative_processor_time_is_found() -> None:
    assert not plausible(iterations(("latency", 0, 0, 5), cpu_time_ns=-1)).holds
    assert not plausible(iterations(("latency", 0, 0, 5)), blocks(("latency", 0, 5), cpu_time_ns=-1)).holds


def test_iterations_and_gaps_are_the_whole_of_their_pass() -> None:
    measured = iterations(("latency", 0, 2, 5), ("latency", 1, 9, 10), ("trace", 0, 50, 60))
    whole = blocks(("latency", 0, 7), ("latency", 7, 12))
    assert passes_are_conserved(measured, between(2, 4, 2), whole).holds
    for wrong in (between(2, 4), between(2, 5, 2), between(), between(13, -5)):
        assert not passes_are_conserved(measured, wrong, whole).holds
    assert passes_are_conserved(measured, between(2, 4, 1), whole).figures["largest_difference_ns"] == 1


def test_a_pass_whose_counters_were_not_read_in_blocks_has_no_whole_to_keep() -> None:
    assert passes_are_conserved(iterations(("latency", 0, 2, 5)), between(), blocks()).holds


# Conservation of the critical path.


def summary(*rows: tuple[str, int, int, int, int]) -> pl.DataFrame:
    """Rows of (scope, window, path, unexplained, the category's time)."""
    columns = ("window_ns", "path_ns", "unexplained_ns", "category_ns")
    return pl.DataFrame(rows, schema={"scope": pl.String, **dict.fromkeys(columns, pl.Int64)}, orient="row")


def test_a_path_and_what_it_leaves_unexplained_are_the_window() -> None:
    assert path_is_conserved(summary(("session", 100, 80, 20, 50), ("session", 100, 80, 20, 30))).holds
    assert path_is_conserved(summary()).holds


@pytest.mark.parametrize(
    "row",
    [("session", 100, 110, -10, 110), ("session", 100, 80, 19, 80), ("session", 100, 80, 20, 79)],
    ids=["longer than its window", "a nanosecond left over", "categories short by one"],
)
def test_a_path_that_is_not_conserved_is_found(row: tuple[str, int, int, int, int]) -> None:
    assert not path_is_conserved(summary(row)).holds


def frame(columns: str, *rows: tuple[object, ...]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=columns.split(), orient="row")


OPERATORS = "kernel_id dispatch_count total_ns"


def test_operators_share_out_the_kernels_time() -> None:
    stats = frame(OPERATORS, (0, 3, 30), (1, 1, 5))
    assert operator_time_is_conserved(frame(OPERATORS, (0, 2, 20), (0, 1, 10), (1, 1, 5)), stats).holds
    assert operator_time_is_conserved(stats.clear(), stats).holds


@pytest.mark.parametrize(
    "rows",
    [[(0, 3, 29), (1, 1, 5)], [(0, 2, 30), (1, 1, 5)], [(0, 3, 30)], [(0, 3, 30), (1, 1, 5), (2, 1, 1)]],
    ids=["a nanosecond lost", "a dispatch lost", "a kernel left out", "a kernel without dispatches"],
)
def test_operators_that_do_not_share_out_the_time_are_found(rows: list[tuple[object, ...]]) -> None:
    found = operator_time_is_conserved(frame(OPERATORS, *rows), frame(OPERATORS, (0, 3, 30), (1, 1, 5)))
    assert not found.holds
    assert found.figures["not_conserved"] == 1


STALLED = "kernel_id dispatch_id capture stall_cycles"


def test_reasons_add_up_to_the_stalled_cycles() -> None:
    traced = frame(STALLED, (0, 2, "a", 40), (0, 2, "a", 60), (1, None, "a", 8), (1, None, "a", None))
    assert stalls_are_conserved(traced, frame(STALLED, (0, 2, "a", 90), (0, 2, "a", 10), (1, None, "a", 8))).holds
    short = stalls_are_conserved(traced, frame(STALLED, (0, 2, "a", 90), (0, 2, "a", 9), (1, None, "a", 8)))
    assert (short.holds, short.figures["not_conserved"]) == (False, 1)
    assert not stalls_are_conserved(traced, frame(STALLED, (0, 2, "a", 100))).holds
    two = frame(STALLED, (0, None, "a", 40), (0, None, "b", 60))
    assert stalls_are_conserved(two, two).holds
    assert not stalls_are_conserved(two, frame(STALLED, (0, None, "a", 60), (0, None, "b", 40))).holds, "each its own"


def test_nothing_runs_a_tenth_above_a_published_ceiling() -> None:
    columns = "kernel_id ceiling_source share_ratio"
    assert roofs_are_plausible(frame(columns, (0, "spec", 1.05), (0, "measured", 1.4), (1, "spec", None))).holds
    assert not roofs_are_plausible(frame(columns, (0, "spec", 1.11))).holds
