"""Order starts and ends of slices, and assign lanes to overlapping slices, one time window at a time.

`aaco_pipeline.report.perfetto.records` encodes slices.
"""

from dataclasses import dataclass, fields
from enum import IntEnum

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class Rule(IntEnum):
    """Handling of slices on a track that overlap without nesting."""

    REFUSE = 0
    STACK = 1  #: move them from lane 0, where all nest, to lanes without overlap: a call stack stays together
    FLAT = 2  #: no two slices of a lane overlap; nested ones get lanes of their own, too


@dataclass(frozen=True)
class Slices:
    """Slices as columns: `track` is a track's index, `row` the unique number of a slice in order of arrival."""

    start: Integers
    end: Integers
    track: Integers
    row: Integers

    def __len__(self) -> int:
        return len(self.start)

    def of(self, chosen: Mask) -> "Slices":
        return Slices(self.start[chosen], self.end[chosen], self.track[chosen], self.row[chosen])


@dataclass(frozen=True)
class Open(Slices):
    """Slices that have started but not ended, with their lanes."""

    lane: Integers


@dataclass(frozen=True)
class Events:
    """Starts and ends in a window, in the order required by the trace format.

    `rows` index `all`: first the `opened` slices that were open before the window, then the window's own. `lane` is the
    lane of each slice in `all`.
    """

    rows: Integers
    is_end: Mask
    lane: Integers
    opened: int
    all: Slices


class Sweep:
    """Sweep once through time, window by window, keeping only the open slices.

    A track gets as many lanes as its maximum number of simultaneous slices; a slice without duration occupies a lane
    for an instant. On a track of `Rule.STACK`, slices whose `row` is in `crossing` move from lane 0 to lanes from 1 on.
    """

    def __init__(self, rules: npt.NDArray[np.int8], crossing: Integers) -> None:
        self._rules, self._crossing = rules, crossing
        self._levels = np.zeros(len(rules), np.int64)
        self._free: dict[tuple[int, int], int] = {}
        nothing = np.zeros(0, np.int64)
        self._open = Open(nothing, nothing, nothing, nothing, nothing)

    def step(self, new: Slices, until: int | None) -> Events:
        """Process the next window, in which slices of `new` start; slices that end before `until` (None: all) end in
        it.
        """
        before, opened = self._open, len(self._open)
        every = Slices(*(np.concatenate((getattr(before, one.name), getattr(new, one.name))) for one in fields(Slices)))
        lane = np.concatenate((before.lane, np.zeros(len(new), np.int64)))
        rows, is_end = _in_order(every, np.zeros(len(every), np.int64), opened, until)
        flat = self._rules[every.track] == Rule.FLAT
        astray = np.isin(every.row, self._crossing) if len(self._crossing) else np.zeros(len(every), np.bool_)
        flat |= astray
        of_flat = flat[rows]
        if of_flat.any():
            self._lay(every, rows[of_flat], is_end[of_flat], lane, astray)
            if not _lanes_ascend(every, lane, rows[~is_end], opened):
                rows, is_end = _in_order(every, lane, opened, until)
        left = np.flatnonzero(_later(every.end, until) & (every.end > every.start))
        columns = (*(getattr(every, one.name) for one in fields(Slices)), lane)
        self._open = Open(*(column[left] for column in columns))
        return Events(rows, is_end, lane, opened, every)

    def _lay(self, every: Slices, rows: Integers, is_end: Mask, lane: Integers, astray: Mask) -> None:
        """Fill in the lanes of slices that may not overlap.

        A start raises the number of running slices to a level, an end lowers it from one. The slice that raises it
        takes the lane of the slice that last lowered it from there; following these predecessors leads to a known lane.
        """
        by_track, level = _open_after(every.track[rows], is_end, self._levels)
        rows, is_end = rows[by_track], is_end[by_track]
        level += is_end
        if level.max() == 1 and not astray.any():
            self._lay_one(every, rows, is_end, lane)
            return
        place = every.track[rows] * (int(level.max()) + 1) + level
        by_place = stable_order(place)
        rows, is_end, level, place = rows[by_place], is_end[by_place], level[by_place], place[by_place]
        same = place[1:] == place[:-1]
        again = np.flatnonzero(~is_end[1:] & same) + 1
        first = np.arange(len(every))
        first[rows[again]] = rows[again - 1]
        heads = np.flatnonzero(np.concatenate(([True], ~same)))
        tails = np.concatenate((heads[1:], [len(rows)])) - 1
        for at in heads[~is_end[heads]].tolist():
            row, high = int(rows[at]), int(level[at])
            lane[row] = self._free.get((int(every.track[row]), high), high - 1 + int(astray[row]))
        while not np.array_equal(further := first[first], first):
            first = further
        lane[:] = lane[first]
        for at in tails[is_end[tails]].tolist():
            self._free[int(every.track[rows[at]]), int(level[at])] = int(lane[rows[at]])

    def _lay_one(self, every: Slices, rows: Integers, is_end: Mask, lane: Integers) -> None:
        """Like `_lay` if no two slices overlap: a track's slices follow each other in one lane."""
        track = every.track[rows]
        heads = np.flatnonzero(np.diff(track, prepend=-1))
        for at, last in zip(heads.tolist(), np.append(heads[1:], len(rows)).tolist(), strict=True):
            one = int(lane[rows[at]]) if is_end[at] else self._free.get((int(track[at]), 1), 0)
            lane[rows[at:last]] = self._free[int(track[at]), 1] = one


def _open_after(track: Integers, is_end: Mask, levels: Integers) -> tuple[Integers, Integers]:
    """Order events by track, and count the track's open slices after each; `levels` is updated."""
    by_track = stable_order(track)
    track, step = track[by_track], 1 - 2 * is_end[by_track].astype(np.int64)
    after = np.cumsum(step)
    heads = np.flatnonzero(np.diff(track, prepend=-1))
    counts = np.diff(heads, append=len(track))
    after += np.repeat(levels[track[heads]] - (after[heads] - step[heads]), counts)
    levels[track[heads]] = after[heads + counts - 1]
    return by_track, after


def _in_order(every: Slices, lane: Integers, opened: int, until: int | None) -> tuple[Integers, Mask]:
    """Return the row of every start and end in order, and a mask of the ends.

    At the same time, earlier slices end first (inner before outer); then new slices start (outer before inner, equal
    ones by track, lane and row); slices without duration end immediately.
    """
    begins = opened + np.argsort(every.start[opened:], kind="stable")
    tied = np.flatnonzero(np.diff(every.start[begins]) == 0)
    if _out_of_order(every, lane, begins[tied], begins[tied + 1]):  # rare
        places = np.zeros(len(begins), np.bool_)
        places[tied] = places[tied + 1] = True
        begins[places] = _by_all(every, lane, begins[places])
    instant = (every.start == every.end)[begins]
    lasting = np.concatenate((_by_all(every, lane, np.arange(opened)), begins[~instant]))
    lasting = lasting[~_later(every.end[lasting], until)][::-1]
    ends = lasting[np.argsort(every.end[lasting], kind="stable")]
    twice = np.repeat(begins, 1 + instant)
    places = np.arange(len(ends)) + np.searchsorted(every.start[twice], every.end[ends], side="left")
    is_end = np.zeros(len(ends) + len(twice), np.bool_)
    is_end[places] = True
    rows = np.empty(len(is_end), np.int64)
    rows[places] = ends
    begun = ~is_end
    rows[begun] = twice
    is_end[begun] = np.diff(twice, prepend=-1) == 0
    return rows, is_end


def _by_all(every: Slices, lane: Integers, rows: Integers) -> Integers:
    """Sort the rows by start order."""
    keys = (every.row[rows], lane[rows], every.track[rows], -every.end[rows], every.start[rows])
    return rows[np.lexsort(keys)]


def _out_of_order(every: Slices, lane: Integers, before: Integers, after: Integers) -> bool:
    """Return whether a row of `before` wrongly precedes its simultaneous row of `after`."""
    wrong = np.zeros(len(before), np.bool_)
    for keys in (every.row, lane, every.track, -every.end):  # the most significant key comes last
        step = keys[after] - keys[before]
        wrong = np.where(step == 0, wrong, step < 0)
    return bool(wrong.any())


def _lanes_ascend(every: Slices, lane: Integers, begins: Integers, opened: int) -> bool:
    """Return whether the start order, determined without lanes, is also correct with them."""
    for rows in (_by_all(every, np.zeros_like(lane), np.arange(opened)), begins):
        tied = np.flatnonzero(np.diff(every.start[rows]) == 0)
        if _out_of_order(every, lane, rows[tied], rows[tied + 1]):
            return False
    return True


def crossing(events: Events, tracks: int) -> Slices:
    """Find slices that overlap another slice of their track without nesting, among those started so far.

    A slice does not nest if one that starts in it ends after it, or one that ends in it starts before it.
    """
    every = events.all
    carried = _by_all(every, np.zeros(len(every), np.int64), np.arange(events.opened))
    rows = np.concatenate((carried, events.rows))
    is_end = np.concatenate((np.zeros(len(carried), np.bool_), events.is_end))
    by_track = stable_order(every.track[rows])
    rows, is_end = rows[by_track], is_end[by_track]
    places, last = np.arange(len(rows)), np.searchsorted(every.track[rows], np.arange(tracks), side="right")
    begin, end = np.full((2, len(every)), len(rows))
    begin[rows[~is_end]], end[rows[is_end]] = places[~is_end], places[is_end]
    low, high = begin + 1, np.minimum(end, last[every.track])
    ends_of_begun = np.where(is_end, -1, end[rows])
    begins_of_ended = np.where(is_end, begin[rows], len(rows))
    found = _largest(ends_of_begun, low, high) > end
    found |= -_largest(-begins_of_ended, low, high) < begin
    return every.of(found)


def _largest(values: Integers, low: Integers, high: Integers) -> Integers:
    """Return the maximum of each half-open range from `low` to `high`; lower than any value for an empty range."""
    found = np.full(len(low), np.iinfo(np.int64).min + 1)
    width = np.maximum(high - low, 0)
    level, power = values, 1
    while power <= width.max(initial=0):
        own = np.flatnonzero((width >= power) & (width < 2 * power))
        found[own] = np.maximum(level[low[own]], level[high[own] - power])
        level = np.maximum(level[:-power], level[power:]) if len(level) > power else level
        power *= 2
    return found


def left_from_stack(slices: Slices) -> Integers:
    """Choose slices to move off lane 0, among all crossing slices, so that the remaining ones nest.

    Slices nest if and only if each ends with as many open slices on its track as it started with. Two crossing slices
    can hide a third, so the remaining ones are checked until nothing crosses.
    """
    left = [slices.row[:0]]
    while len(slices):
        rows, is_end = _in_order(slices, np.zeros(len(slices), np.int64), 0, None)
        by_track = stable_order(slices.track[rows])
        rows, is_end = rows[by_track], is_end[by_track]
        open_after = np.cumsum(1 - 2 * is_end.astype(np.int64))
        at_begin, at_end = np.empty((2, len(slices)), np.int64)
        at_begin[rows[~is_end]], at_end[rows[is_end]] = open_after[~is_end] - 1, open_after[is_end]
        goes = at_begin != at_end
        if not goes.any():
            break
        left.append(slices.row[goes])
        slices = slices.of(~goes)
    return np.sort(np.concatenate(left))


def _later(times: Integers, until: int | None) -> Mask:
    return np.zeros(len(times), np.bool_) if until is None else times >= until


def stable_order(values: Integers) -> Integers:
    """Return a stable argsort of non-negative values; 16-bit numbers sort fastest."""
    return np.argsort(values.astype(np.uint16) if values.max(initial=0) < 1 << 16 else values, kind="stable")
