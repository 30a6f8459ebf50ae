"""Interval arithmetic against brute force: an interval on a small grid is the set of unit cells it covers."""

from collections.abc import Sequence
from itertools import pairwise

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aaco_pipeline.analysis import intervals

Interval = tuple[int, int]
Grouped = tuple[int | None, int, int]

GRID = 24
one_interval = st.tuples(st.integers(-2, GRID), st.integers(-2, 8)).map(lambda pair: (pair[0], pair[0] + pair[1]))
some_intervals = st.lists(one_interval, max_size=12)
grouped_intervals = st.lists(
    st.tuples(st.sampled_from([None, 0, 1]), one_interval).map(lambda pair: (pair[0], *pair[1])), max_size=16
)
SCHEMA = {"start_ns": pl.Int64, "end_ns": pl.Int64}
GROUPED = {"group": pl.Int32, **SCHEMA}
fast = settings(deadline=None, max_examples=120)


def frame(rows: Sequence[Interval]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def grouped(rows: Sequence[Grouped]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=GROUPED, orient="row")


def cells(rows: Sequence[Interval], at_least: int = 1) -> set[int]:
    """The unit cells that at least so many of the intervals cover."""
    covering = [cell for start, end in rows for cell in range(start, end)]
    return {cell for cell in covering if covering.count(cell) >= at_least}


def stretches(covered: set[int]) -> list[Interval]:
    """The maximal runs of neighbouring cells, in order."""
    found: list[Interval] = []
    for cell in sorted(covered):
        if found and found[-1][1] == cell:
            found[-1] = (found[-1][0], cell + 1)
        else:
            found.append((cell, cell + 1))
    return found


def of_group(rows: Sequence[Grouped], group: int | None) -> list[Interval]:
    return [(start, end) for own, start, end in rows if own == group]


@fast
@given(rows=some_intervals)
def test_union_covers_exactly_the_cells_of_the_intervals(rows: list[Interval]) -> None:
    assert intervals.union(frame(rows)).rows() == stretches(cells(rows))


@fast
@given(rows=grouped_intervals)
def test_union_keeps_groups_apart(rows: list[Grouped]) -> None:
    result = intervals.union(grouped(rows), ["group"])
    assert result.columns == ["group", "start_ns", "end_ns"]
    for group in (None, 0, 1):
        assert of_group(result.rows(), group) == stretches(cells(of_group(rows, group)))


@fast
@given(rows=some_intervals)
def test_the_union_of_a_union_is_itself(rows: list[Interval]) -> None:
    once = intervals.union(frame(rows))
    assert intervals.union(once).equals(once)


@fast
@given(rows=some_intervals)
def test_overlapped_is_where_two_or_more_are_open(rows: list[Interval]) -> None:
    assert intervals.overlapped(frame(rows)).rows() == stretches(cells(rows, at_least=2))


@fast
@given(rows=grouped_intervals)
def test_intervals_of_different_groups_do_not_overlap(rows: list[Grouped]) -> None:
    result = intervals.overlapped(grouped(rows), ["group"])
    assert result.columns == ["group", "start_ns", "end_ns"]
    for group in (None, 0, 1):
        assert of_group(result.rows(), group) == stretches(cells(of_group(rows, group), at_least=2))


@fast
@given(rows=some_intervals, start=st.integers(-4, GRID), length=st.integers(0, GRID))
def test_complement_and_stretches_are_the_window_exactly(rows: list[Interval], start: int, length: int) -> None:
    end = start + length
    inside = [(max(a, start), min(b, end)) for a, b in rows]
    covered = intervals.union(frame(inside))
    open_ones = intervals.complement(covered, start, end)
    assert open_ones.rows() == stretches(set(range(start, end)) - cells(inside))
    both = pl.concat([covered, open_ones])
    assert (both["end_ns"] - both["start_ns"]).sum() == length
    assert intervals.overlapped(both).is_empty()


@fast
@given(rows=st.lists(st.tuples(one_interval, one_interval), max_size=10))
def test_clip_keeps_what_lies_within_each_rows_own_window(rows: list[tuple[Interval, Interval]]) -> None:
    result = intervals.clip(
        pl.DataFrame(
            [(number, *own, *window) for number, (own, window) in enumerate(rows)],
            schema={"number": pl.Int64, **SCHEMA, "from": pl.Int64, "to": pl.Int64},
            orient="row",
        ),
        "from",
        "to",
    )
    expected = [
        (number, min(kept), max(kept) + 1, *window)
        for number, (own, window) in enumerate(rows)
        if (kept := cells([own]) & cells([window]))
    ]
    assert result.rows() == expected


@fast
@given(rows=grouped_intervals)
def test_length_is_the_sum_over_a_groups_intervals(rows: list[Grouped]) -> None:
    result = dict(intervals.length_ns(grouped(rows), ["group"]).rows())
    assert result == {group: sum(b - a for own, a, b in rows if own == group) for group in {own for own, _, _ in rows}}


def test_touching_intervals_are_joined_and_do_not_overlap() -> None:
    touching = frame([(5, 8), (0, 5)])
    assert intervals.union(touching).rows() == [(0, 8)]
    assert intervals.overlapped(touching).is_empty()


def test_an_overlap_ended_and_begun_at_one_time_is_one_stretch() -> None:
    assert intervals.overlapped(frame([(0, 10), (2, 4), (4, 6)])).rows() == [(2, 6)]


def test_three_at_once_are_overlapped_once() -> None:
    assert intervals.overlapped(frame([(0, 9), (0, 9), (3, 5)])).rows() == [(0, 9)]


def test_intervals_without_length_count_nowhere() -> None:
    rows = [(3, 3), (7, 2), (0, 1)]
    assert intervals.union(frame(rows)).rows() == [(0, 1)]
    assert intervals.overlapped(frame([*rows, (0, 1)])).rows() == [(0, 1)]
    assert intervals.complement(frame([]), 4, 4).is_empty()


def test_times_far_from_zero_are_exact() -> None:
    far = (1 << 62) + 1
    assert intervals.union(frame([(far, far + 3), (far + 2, far + 7)])).rows() == [(far, far + 7)]
    assert intervals.complement(frame([(far, far + 1)]), far - 1, far + 3).rows() == [
        (far - 1, far),
        (far + 1, far + 3),
    ]


@pytest.mark.parametrize("by", [(), ("group",)])
def test_no_intervals_give_no_stretches(by: tuple[str, ...]) -> None:
    nothing = grouped([])
    for result in (intervals.union(nothing, by), intervals.overlapped(nothing, by)):
        assert result.rows() == []
        assert result.columns == [*by, "start_ns", "end_ns"]
        assert result.schema["start_ns"] == result.schema["end_ns"] == pl.Int64
    assert intervals.clip(nothing.with_columns(a="start_ns", b="end_ns"), "a", "b").is_empty()
    assert intervals.length_ns(nothing, ["group"]).is_empty()
    assert intervals.complement(frame([]), 2, 9).rows() == [(2, 9)]


@fast
@given(rows=some_intervals)
def test_the_order_of_the_intervals_does_not_matter(rows: list[Interval]) -> None:
    for function in (intervals.union, intervals.overlapped):
        assert function(frame(rows)).equals(function(frame(rows[::-1])))


@fast
@given(rows=some_intervals)
def test_stretches_are_disjoint_ordered_and_apart(rows: list[Interval]) -> None:
    for result in (intervals.union(frame(rows)), intervals.overlapped(frame(rows))):
        assert all(start < end for start, end in result.rows())
        assert all(left[1] < right[0] for left, right in pairwise(result.rows()))
