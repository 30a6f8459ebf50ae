"""Dispatches far from their kernel's warm ones, and what may have caused it."""

import polars as pl

from tests.analysis.steady.made_up import LENGTH, judged, recording

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


def test_what_many_dispatches_do_is_another_shape_and_so_is_another_grid() -> None:
    half = dict.fromkeys(range(0, 50, 5), 30_000)
    assert judged(recording([1] * 50, launched=False, lengths=half)).outliers.height == 0
    grids = [64] * 50
    grids[20] = 6_400
    assert judged(recording([1] * 50, launched=False, lengths={20: 30_000}, grids=grids)).outliers.height == 0
