"""The parts of a recording: set-up, steady work, interruptions and tear-down, with and without marked iterations.

Dispatches far from their kernel's warm ones, and what may have caused it.
"""

from collections.abc import Sequence

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analysis.steady.made_up import LENGTH, PACE, begins, call, copy, judged, lacking, parts, recording

STEP = [1, 2, 3, 4]


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=8),
    st.integers(12, 30),
    st.tuples(st.lists(st.integers(20, 40), max_size=30), st.lists(st.integers(20, 40), max_size=20)),
    st.integers(-(10**15), 10**15),
    st.booleans(),
)
def test_generated_recordings(
    step: Sequence[int], times: int, around: tuple[list[int], list[int]], shift: int, launched: bool
) -> None:
    before, after = around
    count = -(-3 * times // len(step)) + times
    work = [*step] * count
    tables = recording([*before, *work, *after], launched=launched)
    if launched:
        # First calls show that what comes before is set-up.
        first = call("hipMalloc", 0, 900_000, call_id=10_000)
        tables["api_calls"] = pl.concat([tables["api_calls"], recording([0], calls=[first])["api_calls"][1:]])
    found = judged(tables)
    steady = found.parts.filter(pl.col("part") == "steady")
    borders = (steady.get_column("start_ns").min(), steady.get_column("end_ns").max())
    assert borders == (begins(len(before)), begins(len(before) + len(work) - 1) + LENGTH)
    assert found.repetition is not None
    assert found.repetition.median_period_ns == PACE * found.repetition.period_activities
    times_of = {name: [c for c in ("start_ns", "end_ns") if c in frame.columns] for name, frame in tables.items()}
    moved = {name: frame.with_columns(pl.col(times_of[name]) + shift) for name, frame in tables.items()}
    again = judged(moved)
    assert again.parts.equals(found.parts.with_columns(pl.col("start_ns", "end_ns") + shift))
    renamed = {
        **tables,
        **{name: tables[name].with_columns(77 - pl.col("kernel_id")) for name in ("dispatches", "kernels")},
    }
    assert judged(renamed).parts.equals(found.parts)


def test_one_silence_of_the_host_is_an_interruption() -> None:
    found = judged(recording([0] + [1] * 100, launched=False, pauses={1: 5_000_000, 61: 2_000_000}))
    after = begins(61) + 7_000_000
    assert parts(found) == [
        ("set_up", begins(0), begins(1) + 5_000_000),
        ("steady", begins(1) + 5_000_000, begins(60) + 5_000_000 + LENGTH),
        ("interruption", begins(60) + 5_000_000 + LENGTH, after),
        ("steady", after, begins(100) + 7_000_000 + LENGTH),
    ]
    assert found.repetition is not None
    assert (found.repetition.repetitions, found.repetition.period_activities) == (100, 1)


def test_silences_that_come_again_and_again_are_the_rhythm() -> None:
    pauses = dict.fromkeys(range(10, 100, 10), 2_000_000)
    found = judged(recording([1] * 100, launched=False, pauses=pauses))
    assert [part for part, _, _ in parts(found)] == ["steady"]


def test_marked_iterations_decide() -> None:
    marked = [("warmup", 0, 8), *(("measure", first, first + 4) for first in (8, 12, 16))]
    found = judged(recording(STEP * 6, iterations=marked))
    assert parts(found) == [
        ("set_up", begins(0), begins(8)),
        ("steady", begins(8), begins(19) + LENGTH),
        ("tear_down", begins(19) + LENGTH, begins(23) + LENGTH),
    ]
    assert found.repetition is not None
    assert found.repetition.repetitions == 3
    assert found.repetition.median_period_ns == 4 * PACE


@pytest.mark.parametrize(("before", "steady_from"), [(5, 0), (20, 0), (21, 21)])
def test_work_before_the_marks_is_no_truncated_iteration(before: int, steady_from: int) -> None:
    """Ten marked iterations of four dispatches, and before them a few of the same kernels, or more than in five."""
    marked = [("measure", first, first + 4) for first in range(before, before + 40, 4)]
    tables = recording((STEP[:4] * 20)[: before + 40], iterations=marked)
    steady = next(start for part, start, _ in parts(judged(tables)) if part == "steady")
    assert steady == begins(steady_from)
    # Of a program that was run here nothing is cut off.
    run = {**tables, "iterations": tables["iterations"].with_columns(run=pl.lit(3, pl.Int32))}
    assert next(start for part, start, _ in parts(judged(run)) if part == "steady") == begins(before)


def test_a_marked_iteration_full_of_first_calls_is_set_up() -> None:
    marked = [("measure", first, first + 8) for first in range(0, 48, 8)]
    load = call("hipModuleLoadData", begins(2), begins(2) + 3_000_000)
    found = judged(recording(STEP * 12, iterations=marked, calls=[load], pauses={3: 3_000_000}))
    assert parts(found)[:1] == [("set_up", begins(0), begins(8) + 3_000_000)]
    assert found.repetition is not None
    assert found.repetition.repetitions == 5


def test_repetitions_at_the_beginning_that_load_code_are_set_up() -> None:
    load = call("hipModuleLoadData", begins(2), begins(2) + 3_000_000)
    found = judged(recording(STEP * 12, calls=[load], pauses={3: 3_000_000}))
    first = parts(found)[0]
    assert first[0] == "set_up"
    assert begins(3) + 3_000_000 < first[2] <= begins(8) + 3_000_000


def test_a_first_repetition_many_times_as_long_is_set_up_though_no_call_says_why() -> None:
    found = judged(recording(STEP * 12, launched=False, pauses={2: 8_000_000}))
    first = parts(found)[0]
    assert first[0] == "set_up"
    assert begins(2) + 8_000_000 < first[2] <= begins(8) + 8_000_000


def test_a_single_warm_step_is_steady_throughout() -> None:
    found = judged(recording(list(range(40))))
    assert parts(found) == [("steady", begins(0), begins(39) + LENGTH)]
    assert found.repetition is None
    assert lacking(found) is None


def test_work_from_before_the_recording_is_steady_too() -> None:
    tables = recording(STEP * 10, iterations=[("measure", 10, 40)])
    tables["api_calls"] = tables["api_calls"].filter(pl.col("start_ns") >= begins(10) - PACE)
    found = judged(tables)
    assert parts(found) == [("steady", begins(0), begins(39) + LENGTH)]
    assert found.repetition is not None
    assert found.repetition.period_activities == 30


def test_first_calls_and_nothing_that_repeats_is_a_cold_start() -> None:
    tables = recording(list(range(40)), calls=[call("hipModuleLoad", begins(4), begins(4) + 9_000_000)])
    found = judged(tables)
    assert lacking(found) == "cold_start"
    assert [part for part, _, _ in parts(found)] == ["set_up"]
    assert found.parts.get_column("lacking").to_list() == ["cold_start"]


@pytest.mark.parametrize(
    ("kernels", "launched", "iterations"),
    [([1, 2, 3, 4], True, []), ([1, 2, 3, 4], True, [("measure", 0, 4)]), (list(range(40)), False, [])],
)
def test_too_little_is_incomplete(kernels: list[int], launched: bool, iterations: list[tuple[str, int, int]]) -> None:
    found = judged(recording(kernels, launched=launched, iterations=iterations))
    assert lacking(found) == "incomplete"
    assert [part for part, _, _ in parts(found)] == ["set_up"]


@pytest.mark.parametrize(
    ("kernels", "steady"),
    [([1] * 10, True), ([1, 2, 3] * 5, True), ([1] * 4, False), ([1] * 9 + [2], False), ([1, 2, 3] * 5 + [1], False)],
)
def test_few_activities_are_steady_where_they_are_one_repetition_exactly(kernels: list[int], steady: bool) -> None:
    """Ten times one attention kernel of 66 ms is a measurement; ten kernels of anything else are not."""
    found = judged(recording(kernels, launched=False))
    assert [part for part, _, _ in parts(found)] == ["steady" if steady else "set_up"]


def test_no_activity_at_all_is_incomplete() -> None:
    found = judged({name: frame.clear() for name, frame in recording([1]).items()})
    assert lacking(found) == "incomplete"
    assert (found.parts.height, found.outliers.height, found.first_calls.height) == (0, 0, 0)


def test_copies_that_repeat_are_no_steady_part_of_kernels() -> None:
    read = [copy(begins(4) + PACE * i, begins(4) + PACE * i + 1_000, "device_to_host") for i in range(60)]
    found = judged(recording([1, 2, 3, 4], launched=False, copies=read))
    assert lacking(found) == "incomplete"
    alone = judged({**recording([1], copies=read), "dispatches": recording([1])["dispatches"].clear()})
    assert [part for part, _, _ in parts(alone)] == ["steady"]


def test_the_longer_phase_is_the_steady_part_and_the_other_is_named() -> None:
    found = judged(recording([1, 2, 3] * 20 + [5, 6, 7, 8] * 40, launched=False))
    assert parts(found) == [("set_up", begins(0), begins(60)), ("steady", begins(60), begins(219) + LENGTH)]
    assert found.parts.get_column("phase").to_list() == [0, None]
    assert found.parts.item(0, "reason") == "another phase: 20 repetitions of 3 activities"


def test_work_between_repetitions_that_is_none_interrupts() -> None:
    other = list(range(50, 62))
    found = judged(recording(STEP * 20 + other + STEP * 20, launched=False))
    assert [part for part, _, _ in parts(found)] == ["steady", "interruption", "steady"]
    _, start, end = parts(found)[1]
    assert abs(start - begins(80)) <= 4 * PACE
    assert abs(end - begins(92)) <= 4 * PACE


def test_copies_beside_the_steady_part_are_distinguished() -> None:
    calls = [
        call("hipMalloc", 100_000, 400_000),
        call("hipMemcpy", 500_000, 900_000),
        call("hipMemcpy", begins(50), begins(50) + 300_000),
    ]
    first = judged(recording([1] * 50, calls=calls)).first_calls
    assert first.select("kind", "start_ns").rows() == [
        ("allocation", 100_000),
        ("set_up_copy", 500_000),
        ("read_back_copy", begins(50)),
    ]


FIRST, SET_UP, IDLE, BESIDE, COLLECTIVE, SHORTER = (
    "first recorded dispatch of its kernel: first touch of its memory, page faults, cold caches",
    "before the steady part: clocks and caches not warm yet",
    "the device had been idle: clocks fell, caches were lost",
    "other work ran on the device beside it",
    "a collective: it waits for the last of the ranks",
    "shorter than the others: it may have had less to do",
)


def causes(found: pl.DataFrame) -> dict[int, list[str]]:
    return dict(found.select("dispatch_id", "possible_causes").rows())


def test_a_first_dispatch_is_judged_by_the_warm_ones() -> None:
    found = judged(recording([1] * 50, launched=False, lengths={0: 9_900})).outliers
    assert found.height == 0  # less than half the median more
    found = judged(recording([1] * 50, launched=False, lengths={0: 90_000}, pauses={1: 90_000})).outliers
    assert causes(found) == {0: [FIRST]}
    assert found.select("kernel_id", "duration_ns", "warm_median_ns", "warm_spread_ns", "warm_dispatches").row(0) == (
        1,
        90_000,
        LENGTH,
        0,
        49,
    )


def test_dispatches_of_the_set_up_have_that_for_a_cause() -> None:
    found = judged(recording([1, 9, 1, *([1, 2] * 30)], launched=False, lengths={2: 30_000}, pauses={3: 30_000}))
    assert [part for part, _ in found.parts.select("part", "device_id").rows()] == ["set_up", "steady"]
    assert causes(found.outliers) == {2: [SET_UP]}


def test_a_dispatch_after_idle_time_or_beside_others_may_be_slow() -> None:
    found = judged(recording([1] * 50, launched=False, lengths={20: 30_000, 40: 13_000}, pauses={20: 3_000_000}))
    assert causes(found.outliers) == {20: [IDLE, BESIDE], 40: [BESIDE]}


def test_a_shorter_dispatch_is_an_outlier_too() -> None:
    found = judged(recording([1] * 50, launched=False, lengths={20: 1_000})).outliers
    assert causes(found) == {20: [SHORTER]}


def test_a_slow_collective_waited_for_a_rank() -> None:
    tables = recording([1, 2] * 30, launched=False, lengths={40: 40_000}, pauses={41: 40_000})
    tables["kernels"] = tables["kernels"].with_columns(family=pl.lit("comm"))
    assert causes(judged(tables).outliers) == {40: [COLLECTIVE]}


def test_a_change_of_many_dispatches_or_of_the_grid_is_another_shape() -> None:
    half = dict.fromkeys(range(0, 50, 5), 30_000)
    assert judged(recording([1] * 50, launched=False, lengths=half)).outliers.height == 0
    grids = [64] * 50
    grids[20] = 6_400
    assert judged(recording([1] * 50, launched=False, lengths={20: 30_000}, grids=grids)).outliers.height == 0
