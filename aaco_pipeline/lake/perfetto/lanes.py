"""The order of begins and ends on a track, whether slices nest, and lanes for those that do not.

How a slice becomes bytes is `aaco_pipeline.lake.perfetto.records`.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

Integers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def nesting_lanes(frame: pl.DataFrame) -> pl.DataFrame:
    """`frame`, the slices of one track, with a column `lane` (int32): in lane 0 they nest, in the others none overlap.

    Slices that cross another leave lane 0, so that a call stack with a few crossing calls stays one stack.
    """
    if not frame.height:
        return frame.with_columns(lane=pl.lit(None, pl.Int32))
    nested = np.arange(frame.height)
    start, end = frame["start_ns"].to_numpy(), frame["end_ns"].to_numpy()
    # Two slices that cross can hide a third one's crossing, so what is left is looked at until nothing crosses.
    while len(nested):
        own = np.zeros(len(nested), np.int64)
        crossing = crossing_slices(own, *events_in_order(start[nested], end[nested]), len(nested))
        if not crossing.any():
            break
        nested = nested[~crossing]
    left = np.ones(frame.height, bool)
    left[nested] = False
    stack = frame.filter(pl.Series(~left)).with_columns(lane=pl.lit(0, pl.Int32))
    if stack.height == frame.height:
        return stack
    others = assign_lanes(frame.filter(pl.Series(left)).with_columns(track=pl.lit(0)))
    return pl.concat([stack, others.drop("track").with_columns(pl.col("lane") + 1)])


def assign_lanes(frame: pl.DataFrame, *, by: Sequence[str] = ("track",)) -> pl.DataFrame:
    """`frame` with a column `lane` (int32, from 0 in every group of `by`): no two slices of a lane overlap.

    There are as many lanes as slices ever run at once. A nested slice gets a lane of its own, too;
    one without duration takes a lane for its instant.
    """
    start, end = (frame[name].cast(pl.Int64).to_numpy() for name in ("start_ns", "end_ns"))
    numbered = frame.select(by).unique(maintain_order=True).with_row_index("group")
    same = frame.select(by).join(numbered, on=list(by), how="left", nulls_equal=True, maintain_order="left")
    group = same["group"].cast(pl.Int64).to_numpy()
    rows, is_end = events_in_order(start, end)
    by_group = np.argsort(group[rows], kind="stable")
    rows, is_end = rows[by_group], is_end[by_group]
    # The number of slices that run goes up to a level at a begin and down from it at an end. Who brings it up takes
    # the lane of who last brought it down from there; following these predecessors leads to the lane's first slice.
    level = np.cumsum(1 - 2 * is_end.astype(np.int64)) + is_end
    place = group[rows] * (level.max(initial=0) + 1) + level
    by_place = np.argsort(place, kind="stable")
    again = np.flatnonzero(~is_end[by_place][1:] & (np.diff(place[by_place]) == 0))
    first = np.arange(frame.height)
    first[rows[by_place[again + 1]]] = rows[by_place[again]]
    while not np.array_equal(further := first[first], first):
        first = further
    lane = np.empty(frame.height, np.int64)
    lane[rows[~is_end]] = level[~is_end] - 1
    return frame.with_columns(lane=pl.Series(lane[first], dtype=pl.Int32))


def _sorted(values: Integers, then_by: Integers) -> Integers:
    """The order by `values`, equal ones by `then_by`. Sorting by both is slow, and equal ones are rare."""
    order = np.argsort(values, kind="stable")
    return np.lexsort((then_by, values)) if (np.diff(values[order]) == 0).any() else order


def events_in_order(start: Integers, end: Integers) -> tuple[Integers, Mask]:
    """The row of every begin and end in the order of a valid trace, and which of them are ends.

    At one instant what began before ends first (inner before outer); then the new slices begin (outer before inner);
    those without duration end at once.
    """
    begins = _sorted(start, -end)
    instant = (start == end)[begins]
    lasting = begins[~instant]
    ends = lasting[_sorted(end[lasting], -np.arange(len(lasting)))]
    twice = np.repeat(begins, 1 + instant)
    rows = np.concatenate((ends, twice))
    is_end = np.ones(len(rows), bool)
    is_end[len(ends) :] = np.diff(twice, prepend=-1) == 0
    in_order = np.argsort(np.where(is_end, end[rows], start[rows]), kind="stable")  # a merge of two sorted runs
    return rows[in_order], is_end[in_order]


def crossing_slices(track: Integers, rows: Integers, is_end: Mask, height: int) -> Mask:
    """Slices nest exactly when each ends with as many open slices on its track as it began with."""
    tracks = track[rows].astype(np.uint16 if track.max() < 1 << 16 else np.int64)  # sorting short numbers is quick
    by_track = np.argsort(tracks, kind="stable")
    open_after = np.empty(len(rows), np.int64)
    open_after[by_track] = np.cumsum(1 - 2 * is_end[by_track].astype(np.int64))
    at_begin, at_end = np.empty((2, height), np.int64)
    at_begin[rows[~is_end]] = open_after[~is_end] - 1
    at_end[rows[is_end]] = open_after[is_end]
    crossing: Mask = at_begin != at_end
    return crossing
