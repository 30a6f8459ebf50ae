"""The timeline of a device against a count of unit cells, and the definitions of its figures."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.analysis.timeline.activities import device_activities, host_calls, kernel_stats, measured_dispatches
from aaco_pipeline.analysis.timeline.device_timeline import FIRST_TO_LAST as WHOLE_WINDOW
from aaco_pipeline.analysis.timeline.device_timeline import ITERATION as ITERATION_WINDOW
from aaco_pipeline.analysis.timeline.device_timeline import timeline as timeline_of
from aaco_pipeline.analysis.timeline.gap_causes import gaps
from aaco_pipeline.analysis.timeline.host_waits import waits
from aaco_pipeline.formats.capture_tables import described_kernels
from aaco_pipeline.lake.contracts import contract
from aaco_pipeline.lake.validation import conform, empty_table, to_contract

DISPATCHES = {
    "dispatch_id": pl.Int32,
    "process_id": pl.Int32,
    "device_id": pl.Int32,
    "kernel_id": pl.Int32,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "iteration": pl.Int32,
    "parent_dispatch_id": pl.Int32,
    "self_ns": pl.Int64,
}
ITERATIONS = {"pass": pl.String, "iteration": pl.Int32, "phase": pl.String, "start_ns": pl.Int64, "end_ns": pl.Int64}


def dispatches(rows: Sequence[tuple[int, int] | tuple[int, int, dict[str, Any]]]) -> pl.DataFrame:
    """Dispatches of (start, end) in order; the third entry overrides the other columns."""
    return pl.DataFrame(
        [
            {
                "dispatch_id": number,
                "process_id": 0,
                "device_id": 0,
                "kernel_id": 0,
                "start_ns": row[0],
                "end_ns": row[1],
                "iteration": 0,
                "parent_dispatch_id": None,
                "self_ns": row[1] - row[0],
                **(row[2] if len(row) == 3 else {}),
            }
            for number, row in enumerate(rows)
        ],
        schema=DISPATCHES,
    )


def iterations(windows: Sequence[tuple[int, int]], *, warmup: int = 0, of: str = "trace") -> pl.DataFrame:
    return pl.DataFrame(
        [
            (of, number, "warmup" if number < warmup else "measure", start, end)
            for number, (start, end) in enumerate(windows)
        ],
        schema=ITERATIONS,
        orient="row",
    )


@dataclass(frozen=True)
class Timeline:
    timeline: pl.DataFrame
    gaps: pl.DataFrame
    kernel_stats: pl.DataFrame


def analyse(ran: pl.DataFrame, sessions: pl.DataFrame) -> Timeline:
    """The stage's result for dispatches without calls and copies, as on the CPU provider."""
    measured = measured_dispatches(ran, sessions)
    calls = host_calls(empty_table("api_calls"))
    run = to_contract("dispatches", measured.with_columns(below_resolution=False))
    used = measured.select("kernel_id").unique().sort("kernel_id")
    kernels = described_kernels(used.with_columns(name=pl.format("kernel {}", "kernel_id")))
    activities = device_activities(run, empty_table("memory_copies"), kernels, calls)
    found = gaps(activities, empty_table("api_calls"), waits(activities, calls, empty_table("synchronizations")))
    return Timeline(timeline_of(activities, calls, sessions), found, kernel_stats(measured))


NO_ITERATIONS = iterations([])


def whole(timeline: pl.DataFrame, device: int = 0) -> dict[str, Any]:
    return timeline.filter(pl.col("iteration").is_null() & (pl.col("device_id") == device)).row(0, named=True)


def of_iteration(timeline: pl.DataFrame, iteration: int, device: int = 0) -> dict[str, Any]:
    return timeline.filter((pl.col("iteration") == iteration) & (pl.col("device_id") == device)).row(0, named=True)


@st.composite
def many_dispatches(draw: st.DrawFn) -> pl.DataFrame:
    rows = draw(
        st.lists(
            st.tuples(st.integers(0, 30), st.integers(0, 6), st.integers(0, 1), st.sampled_from([None, 0, 1, 2])),
            min_size=1,
            max_size=14,
        )
    )
    return dispatches([(s, s + n, {"device_id": d, "iteration": i}) for s, n, d, i in rows])


def cells(rows: pl.DataFrame, low: int, high: int) -> list[int]:
    """Every unit cell within the window that a row covers, once for each row that does."""
    return [
        cell
        for start, end in rows.select("start_ns", "end_ns").rows()
        for cell in range(max(start, low), min(end, high))
    ]


THREE = iterations([(0, 12), (12, 20), (25, 40)])


@given(ran=many_dispatches(), sessions=st.sampled_from([NO_ITERATIONS, THREE]))
def test_gaps_and_busy_time_are_the_window_exactly(ran: pl.DataFrame, sessions: pl.DataFrame) -> None:
    result = analyse(ran, sessions)
    counted = ran if sessions.is_empty() else ran.drop_nulls("iteration")
    assert set(result.timeline["device_id"]) == set(counted["device_id"])
    for device, own in counted.group_by("device_id"):
        window = whole(result.timeline, int(str(device[0])))
        low, high = window["window_start_ns"], window["window_end_ns"]
        assert (low, high) == (own["start_ns"].min(), own["end_ns"].max())
        gaps = result.gaps.filter(pl.col("device_id") == device[0])
        idle = cells(gaps, low, high)
        assert window["busy_ns"] + (gaps["end_ns"] - gaps["start_ns"]).sum() == high - low
        assert sorted({*cells(own, low, high), *idle}) == list(range(low, high))
        assert not set(idle) & set(cells(own, low, high))
        assert (gaps["end_ns"] > gaps["start_ns"]).all()


@given(ran=many_dispatches())
def test_every_figure_of_every_window_is_what_counting_cells_gives(ran: pl.DataFrame) -> None:
    timeline = analyse(ran, THREE).timeline
    for row in timeline.iter_rows(named=True):
        # An iteration's window is an interval: activities in it count, whichever iteration launched them.
        own = ran.filter((pl.col("device_id") == row["device_id"]) & pl.col("iteration").is_not_null())
        covered = cells(own, row["window_start_ns"], row["window_end_ns"])
        length = row["window_end_ns"] - row["window_start_ns"]
        assert row["busy_ns"] == row["compute_ns"] == len(set(covered))
        assert row["activity_time_sum_ns"] == len(covered)
        if row["iteration"] is None:
            assert row["activity_count"] == own.height
        assert row["active_ratio"] == (len(set(covered)) / length if length else None)
        assert row["active_ratio"] is None or 0 <= row["active_ratio"] <= 1


@given(ran=many_dispatches())
def test_each_gap_names_the_dispatches_on_either_side(ran: pl.DataFrame) -> None:
    gaps = analyse(ran, NO_ITERATIONS).gaps
    by_id = {row["dispatch_id"]: row for row in ran.iter_rows(named=True)}
    for gap in gaps.iter_rows(named=True):
        before, after = by_id[gap["previous_activity_id"]], by_id[gap["next_activity_id"]]
        assert (before["device_id"], before["end_ns"]) == (gap["device_id"], gap["start_ns"])
        assert (after["device_id"], after["start_ns"]) == (gap["device_id"], gap["end_ns"])
        assert gap["previous_activity_kind"] == gap["next_activity_kind"] == "dispatch"
        assert gap["cause"] == "unknown"


def test_the_hand_drawn_timeline() -> None:
    """Two dispatches overlap by 4 in a window of 30, and one stands alone after a gap of 10."""
    row = whole(analyse(dispatches([(10, 20), (16, 24), (34, 40)]), iterations([(0, 50)])).timeline)
    assert row["window_rule"] == WHOLE_WINDOW
    assert (row["window_start_ns"], row["window_end_ns"]) == (10, 40)
    assert (row["busy_ns"], row["activity_time_sum_ns"]) == (20, 24)
    assert row["active_ratio"] == 20 / 30
    assert row["activity_count"] == 3


def test_an_iterations_window_is_the_iterations_own_time() -> None:
    row = of_iteration(analyse(dispatches([(10, 20), (34, 40)]), iterations([(0, 50)])).timeline, 0)
    assert row["window_rule"] == ITERATION_WINDOW
    assert (row["window_start_ns"], row["window_end_ns"], row["busy_ns"]) == (0, 50, 16)


def test_activities_are_clipped_to_an_iterations_window() -> None:
    row = of_iteration(analyse(dispatches([(0, 10), (45, 60)]), iterations([(5, 50)])).timeline, 0)
    assert (row["busy_ns"], row["activity_time_sum_ns"], row["activity_count"]) == (10, 10, 2)


def test_warm_up_is_in_no_window_no_gap_and_no_statistic() -> None:
    warm: list[tuple[int, int, dict[str, Any]]] = [(0, 90, {"iteration": 0, "kernel_id": 9})]
    counted = [(s, e, {"iteration": 1}) for s, e in ((100, 110), (120, 130))]
    result = analyse(dispatches([*warm, *counted]), iterations([(0, 95), (95, 140)], warmup=1))
    row = whole(result.timeline)
    assert (row["window_start_ns"], row["window_end_ns"], row["busy_ns"]) == (100, 130, 20)
    assert result.timeline["iteration"].to_list() == [None, 1]
    assert result.gaps.select("start_ns", "end_ns").rows() == [(110, 120)]
    assert result.kernel_stats["kernel_id"].to_list() == [0]


def test_dispatches_outside_any_iteration_do_not_count_in_a_traced_session() -> None:
    ran = dispatches([(0, 10), (50, 60, {"iteration": None})])
    marked = iterations([(0, 12), (12, 20)])
    assert whole(analyse(ran, marked).timeline)["window_end_ns"] == 10
    assert measured_dispatches(ran, marked)["dispatch_id"].to_list() == [0]


def test_one_marked_iteration_alone_says_nothing_of_what_lies_around_it() -> None:
    ran = dispatches([(0, 10), (50, 60, {"iteration": None})])
    assert measured_dispatches(ran, iterations([(0, 12)])).equals(ran)


def test_a_process_whose_iterations_are_not_known_counts_whole_beside_one_whose_are() -> None:
    other = {"process_id": 1, "iteration": None}
    ran = dispatches([(0, 10), (50, 60, {"iteration": None}), (5, 9, other), (70, 80, other)])
    marked = iterations([(0, 12), (12, 20)])
    assert measured_dispatches(ran, marked)["dispatch_id"].to_list() == [0, 2, 3]


def test_without_traced_iterations_every_dispatch_counts() -> None:
    ran = dispatches([(0, 10), (50, 60, {"iteration": None})])
    for session in (NO_ITERATIONS, iterations([(0, 9)], of="latency")):
        assert measured_dispatches(ran, session).equals(ran)
        assert analyse(ran, session).timeline["iteration"].to_list() == [None]


def test_only_the_traced_pass_makes_windows() -> None:
    both = pl.concat([iterations([(500, 600), (600, 700)], of="latency"), iterations([(0, 20)])])
    result = analyse(dispatches([(5, 10)]), both)
    assert result.timeline.select("iteration", "window_end_ns").rows() == [(None, 10), (0, 20)]


def test_an_iteration_without_kernels_was_busy_for_zero_time() -> None:
    row = of_iteration(analyse(dispatches([(0, 5)]), iterations([(0, 6), (6, 16)])).timeline, 1)
    assert (row["busy_ns"], row["activity_time_sum_ns"], row["activity_count"]) == (0, 0, 0)
    assert row["active_ratio"] == 0.0


def test_nested_dispatches_are_not_counted_twice() -> None:
    ran = dispatches(
        [
            (0, 20, {"self_ns": 8, "kernel_id": 1}),
            (2, 8, {"parent_dispatch_id": 0}),
            (10, 16, {"parent_dispatch_id": 0}),
            (30, 40),
        ]
    )
    result = analyse(ran, iterations([(0, 50)]))
    row = whole(result.timeline)
    assert (row["busy_ns"], row["activity_time_sum_ns"], row["activity_count"]) == (30, 30, 2)
    assert result.gaps.select("start_ns", "end_ns", "previous_activity_id").rows() == [(20, 30, 0)]
    assert result.kernel_stats.select("kernel_id", "dispatch_count", "total_ns").rows() == [(0, 3, 22), (1, 1, 8)]


def test_each_device_has_its_own_window_gaps_and_overlap() -> None:
    other = {"device_id": 1}
    ran = dispatches([(0, 10), (5, 15, other), (20, 30), (25, 26, other)])
    result = analyse(ran, iterations([(0, 40)]))
    assert result.timeline.select("device_id", "iteration").rows() == [(0, None), (0, 0), (1, None), (1, 0)]
    first, second = whole(result.timeline, 0), whole(result.timeline, 1)
    assert (first["window_start_ns"], first["window_end_ns"], first["busy_ns"]) == (0, 30, 20)
    assert (second["window_start_ns"], second["window_end_ns"], second["busy_ns"]) == (5, 26, 11)
    assert result.gaps.select("device_id", "start_ns", "end_ns").rows() == [(0, 10, 20), (1, 15, 25)]


def test_a_window_without_length_has_no_ratio() -> None:
    row = whole(analyse(dispatches([(7, 7)]), NO_ITERATIONS).timeline)
    assert (row["busy_ns"], row["active_ratio"]) == (0, None)


def test_no_dispatches_give_no_rows() -> None:
    result = analyse(dispatches([]), iterations([(0, 5)]))
    assert (result.timeline.height, result.gaps.height, result.kernel_stats.height) == (0, 0, 0)


self_times = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1000)), min_size=1, max_size=150)


@given(ran=self_times)
def test_kernel_statistics_are_those_of_the_kernels_self_times(ran: list[tuple[int, int]]) -> None:
    frame = dispatches([(0, 5000, {"kernel_id": kernel, "self_ns": own}) for kernel, own in ran])
    stats = kernel_stats(frame)
    everything = sum(own for _, own in ran)
    assert stats["kernel_id"].to_list() == sorted({kernel for kernel, _ in ran})
    assert stats["total_ns"].sum() == everything
    assert stats["dispatch_count"].sum() == len(ran)
    for row in stats.iter_rows(named=True):
        own = sorted(time for kernel, time in ran if kernel == row["kernel_id"])
        assert row["dispatch_count"] == len(own)
        assert row["total_ns"] == sum(own)
        assert (row["min_ns"], row["max_ns"]) == (own[0], own[-1])
        assert row["p50_ns"] == own[ceil(len(own) * Fraction(1, 2)) - 1]
        assert row["p99_ns"] == own[ceil(len(own) * Fraction(99, 100)) - 1]
        assert abs(row["mean_ns"] - Fraction(sum(own), len(own))) <= Fraction(1, 2)
        assert row["share_ratio"] == (pytest.approx(row["total_ns"] / everything) if everything else None)
    if everything:
        assert stats["share_ratio"].sum() == pytest.approx(1)


@pytest.mark.parametrize(("count", "rank"), [(1, 1), (2, 2), (99, 99), (100, 99), (101, 100), (200, 198), (201, 199)])
def test_the_p99_is_the_smallest_value_with_99_in_100_at_or_below_it(count: int, rank: int) -> None:
    frame = dispatches([(0, 9, {"self_ns": value}) for value in range(count, 0, -1)])
    assert kernel_stats(frame)["p99_ns"].to_list() == [rank]


def test_the_tables_fit_the_lake() -> None:
    result = analyse(dispatches([(0, 10), (12, 15)]), iterations([(0, 20)]))
    untold = pl.lit(None, pl.String)  # by the findings on the recording alone
    for name, frame in (
        ("timeline", result.timeline.with_columns(busy_bound=untold)),
        ("gaps", result.gaps.with_columns(doubt=untold)),
        ("kernel_stats", result.kernel_stats),
    ):
        columns = [column.name for column in contract(name).columns]
        assert conform(contract(name), frame.select(columns), "session").height == frame.height
