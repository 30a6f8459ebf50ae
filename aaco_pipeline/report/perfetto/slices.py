"""Collect slices in batches, spill them to disk, and assign lanes and flows.

`lanes` assigns lanes to overlapping slices, `records` encodes them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from aaco_pipeline.report.perfetto.lanes import (
    Events,
    Integers,
    Mask,
    Rule,
    Slices,
    Sweep,
    crossing,
    left_from_stack,
    stable_order,
)
from aaco_pipeline.report.perfetto.records import Spool, Stored, largest

SLICE_COLUMNS: Final = ("track", "start_ns", "end_ns", "name")
OPTIONAL_SLICE_COLUMNS: Final = ("category", "flow_id", "flow_role")
#: The role of a slice in its flow.
CAUSE, EFFECT = 1, 2
#: Approximate number of slices per window.
_WINDOW_SLICES: Final = 1 << 17
_EVERY: Final = 64  # every 64th start is kept in memory, to divide time into windows
_MOST_WITH_NULLS: Final = 62
_FLOW_FIELDS: Final = 2
Values = npt.NDArray[Any]


class Texts:
    """The distinct strings of a column, numbered from 1 in order of arrival; 0 is null."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def all(self) -> list[str]:
        return list(self._numbers)

    def codes(self, values: pl.Series) -> npt.NDArray[np.uint32]:
        """Return the number of each value."""
        if isinstance(values.dtype, pl.Enum):
            names = values.dtype.categories
        else:
            names = values.drop_nulls().unique(maintain_order=True)
            values = values.cast(pl.Enum(names))
        places = values.to_physical()
        numbers = np.zeros(len(names) + 1, np.uint32)  # the last entry is null
        for place in places.drop_nulls().unique(maintain_order=True).to_list():
            numbers[place] = self._numbers.setdefault(names[place], len(self._numbers) + 1)
        codes: npt.NDArray[np.uint32] = numbers[places.cast(pl.Int64).fill_null(-1).to_numpy()]
        return codes


@dataclass
class Annotation:
    """A column of annotations: its kind, its largest number as a varint, and the number of slices with it.

    `at`, the first track and the position among that batch's columns, orders the annotations.
    """

    kind: str
    at: tuple[int, int]
    most: int = 0
    count: int = 0
    texts: Texts = field(default_factory=Texts)


@dataclass(frozen=True)
class Window:
    """Slices that start in a time window. Slices that end before `until` (None: all) end in it.

    `columns` are name and category (numbers of texts), flow and role, and annotations by name; `present` masks the
    slices that have an annotation, if some do not.
    """

    slices: Slices
    until: int | None
    columns: dict[str, Values]
    present: dict[str, Mask]


class Gathering:
    """Collect and check all slices before the first byte is written.

    `uuids` of tracks ascend; tracks of `closed` take no slices. ValueError names the first offending row of `add`.
    """

    def __init__(self, uuids: npt.NDArray[np.uint64], closed: Mask, spool: Spool) -> None:
        self._uuids, self._closed, self._spool = uuids, closed, spool
        self._runs: list[dict[str, Stored]] = []
        self._first_rows: list[int] = []
        self._starts: list[Integers] = []
        self.names, self.categories = Texts(), Texts()
        self.annotations: dict[str, Annotation] = {}
        self.count = self.categorized = self.flows = 0
        self.first_ns: int | None = None
        self.most_start = self.most_end = 0
        self.has_flows = False

    def add(self, piece: pl.DataFrame) -> None:
        """Add slices. Of equal slices of one track, those added earlier come first."""
        if not piece.height:
            return
        start, end = times("slices", piece, SLICE_COLUMNS, ("start_ns", "end_ns"), self.count)
        track = track_indices("slices", piece, (self._uuids, self._closed, "is a counter's"), self.count)
        columns: dict[str, Values] = {"start": start, "end": end, "track": track.astype(np.int32)}
        columns["name"] = self.names.codes(piece["name"])
        if "category" in piece.columns:
            columns["category"] = self.categories.codes(piece["category"])
            self.categorized += int(np.count_nonzero(columns["category"]))
        if "flow_id" in piece.columns:
            columns |= self._flow(piece)
        for place, name in enumerate(piece.columns):
            if name not in (*SLICE_COLUMNS, *OPTIONAL_SLICE_COLUMNS):
                columns |= self._annotation(piece[name], (int(track.min()), place))
        if (np.diff(start) < 0).any():
            order = np.argsort(start, kind="stable")
            columns = {name: values[order] for name, values in columns.items()} | {"row": self.count + order}
        self._runs.append({name: self._spool.put(values) for name, values in columns.items()})
        self._first_rows.append(self.count)
        self._starts.append(columns["start"][::_EVERY].copy())  # a view would keep all of them
        self.count += piece.height
        first = int(start.min())
        self.first_ns = first if self.first_ns is None else min(first, self.first_ns)
        self.most_start, self.most_end = max(self.most_start, int(start.max())), max(self.most_end, int(end.max()))

    def check(self) -> None:
        """Raise ValueError if too many columns contain nulls. Call it after all batches were added."""
        absent = [one.count < self.count for one in self.annotations.values()]
        count = sum(absent) + (0 < self.categorized < self.count) + _FLOW_FIELDS * self.has_flows
        if count > _MOST_WITH_NULLS:
            raise ValueError(f"{count} columns have nulls; at most {_MOST_WITH_NULLS} may")

    def windows(self, names: Sequence[str]) -> Iterator[Window]:
        """Yield all slices window by window in time order, with the columns `names`."""
        at = [0] * len(self._runs)
        for until in self._bounds():
            parts = []
            for number, run in enumerate(self._runs):
                first = at[number]
                last = run["start"].count if until is None else self._below(number, until)
                if last > first:
                    parts.append((number, first, last))
                    at[number] = last
            yield self._window(parts, until, names)

    def _below(self, number: int, until: int) -> int:
        """Count the slices of a run that start before `until`, reading only between two starts kept in memory."""
        stored, known = self._runs[number]["start"], int(np.searchsorted(self._starts[number], until))
        first, last = max(known - 1, 0) * _EVERY, min(known * _EVERY, stored.count)
        return first + int(np.searchsorted(self._spool.get(stored, first, last), until))

    def _bounds(self) -> list[int | None]:
        """Return the ends of the windows."""
        if self.count <= _WINDOW_SLICES:
            return [None]
        starts = np.sort(np.concatenate(self._starts))
        return [*np.unique(starts[:: _WINDOW_SLICES // _EVERY][1:]).tolist(), None]

    def _window(self, parts: Sequence[tuple[int, int, int]], until: int | None, names: Sequence[str]) -> Window:
        count = sum(last - first for _, first, last in parts)

        def column(name: str, dtype: npt.DTypeLike, absent: int = 0) -> Values:
            values, place = np.full(count, absent, dtype), 0
            for number, first, last in parts:
                if name in self._runs[number]:
                    values[place : place + last - first] = self._spool.get(self._runs[number][name], first, last)
                place += last - first
            return values

        rows = column("row", np.int64, -1)
        counted = [np.arange(first, last) + self._first_rows[number] for number, first, last in parts]
        rows = np.where(rows < 0, np.concatenate(counted) if counted else rows, rows)
        slices = Slices(column("start", np.int64), column("end", np.int64), column("track", np.int64), rows)
        types = {"name": np.uint32, "category": np.uint32, "flow": np.uint64, "role": np.uint8}
        columns = {name: column(name, types[name]) for name in names if name in types}
        present = {}
        for name, one in self.annotations.items():
            if (key := f"={name}") in names:
                columns[key] = column(key, _TYPES[one.kind])
                held = column(f"?{name}", np.bool_)
                if not held.all():
                    present[key] = held
        return Window(slices, until, columns, present)

    def _flow(self, piece: pl.DataFrame) -> dict[str, Values]:
        role = piece["flow_role"]
        wrong = (~role.is_in(["out", "in"])).fill_null(False).to_numpy()
        refuse("slices", piece, wrong, "flow_role is not out or in", self.count)
        takes_part = (role.is_not_null() & piece["flow_id"].is_not_null()).to_numpy()
        is_cause = (role == "out").fill_null(False).to_numpy()
        self.has_flows = True
        self.flows += int(takes_part.sum())
        roles = np.where(takes_part, np.where(is_cause, CAUSE, EFFECT), 0).astype(np.uint8)
        return {"flow": piece["flow_id"].cast(pl.UInt64).fill_null(0).to_numpy(), "role": roles}

    def _annotation(self, values: pl.Series, at: tuple[int, int]) -> dict[str, Values]:
        kind = _kind(values)
        one = self.annotations.setdefault(values.name, Annotation(kind, at))
        if one.kind != kind:
            raise ValueError(f"slices: annotation {values.name} is {values.dtype}, and was a column of {one.kind}")
        one.at = min(one.at, at)
        count = len(values) - values.null_count()
        one.count += count
        if not count:
            return {}
        if kind == "text":
            held: Values = one.texts.codes(values)
        else:
            held = (
                values.cast(pl.Float64).fill_null(0).to_numpy() if kind == "float" else values.fill_null(0).to_numpy()
            )
            one.most = max(one.most, largest(held)) if kind != "float" else 0
        return {f"={values.name}": held, f"?{values.name}": values.is_not_null().to_numpy()}


_TYPES: Final[dict[str, npt.DTypeLike]] = {
    "text": np.uint32,
    "float": np.float64,
    "signed": np.int64,
    "unsigned": np.uint64,
}


def _kind(values: pl.Series) -> str:
    dtype = values.dtype
    if dtype == pl.String or isinstance(dtype, pl.Enum):
        return "text"
    if dtype.is_float():
        return "float"
    if dtype.is_integer():
        return "unsigned" if dtype.is_unsigned_integer() else "signed"
    raise ValueError(f"slices: annotation {values.name} is {dtype}, not a string or number")


def times(
    what: str, frame: pl.DataFrame, required: Sequence[str], named: tuple[str, str], before: int = 0
) -> tuple[Integers, Integers]:
    """Check and return the two columns of times `named`; `before` rows preceded the frame."""
    first, last = named
    for name in required:
        refuse(what, frame, frame[name].is_null().to_numpy(), f"{name} is null", before)
    start, end = (frame[name].cast(pl.Int64).to_numpy() for name in (first, last))
    refuse(what, frame, start < 0, f"{first} is negative; shift the axis, for Perfetto's times begin at 0", before)
    refuse(what, frame, end < start, f"{last} lies before {first}", before)
    return start, end


def track_indices(
    what: str, frame: pl.DataFrame, tracks: tuple[npt.NDArray[np.uint64], Mask, str], before: int = 0
) -> Integers:
    """Look up each row's track. `tracks` are the uuids, a mask of tracks closed to such rows, and the reason."""
    uuids, closed, why = tracks
    wanted = frame["track"].cast(pl.UInt64).to_numpy()
    indices = np.searchsorted(uuids, wanted)
    known = indices < len(uuids)
    known[known] = uuids[indices[known]] == wanted[known]
    refuse(what, frame, ~known, "track is not among the tracks", before)
    refuse(what, frame, closed[indices], f"track {why}", before)
    return indices


def refuse(what: str, frame: pl.DataFrame, wrong: Mask, reason: str, before: int = 0) -> None:
    """Raise ValueError for the first row that is `wrong`."""
    if wrong.any():
        row = int(wrong.argmax())
        raise ValueError(f"{what} row {before + row} {frame.row(row, named=True)}: {reason}")


#: Number of flow ends joined at once.
_JOINED_AT_ONCE: Final = 1 << 19


class FirstUses:
    """The first use of each text of a column, by track, lane and row."""

    def __init__(self, texts: Texts) -> None:
        self._texts = texts
        self._used = np.full((3, len(texts) + 1), np.iinfo(np.int64).max)

    def look(self, codes: npt.NDArray[Any], lane: Integers, window: Window, in_order: Integers) -> None:
        """Process a window's codes; `in_order` are its rows sorted by track, lane and row."""
        backwards = in_order[::-1]
        first = np.full(self._used.shape[1], -1, np.int64)
        first[codes[backwards]] = backwards  # the last assignment wins
        first[0] = -1
        used = np.flatnonzero(first >= 0)
        rows = first[used]
        found = np.stack((window.slices.track[rows], lane[rows], window.slices.row[rows]))
        known = self._used[:, used]
        differs = found != known
        at = np.argmax(differs, axis=0)  # the first differing key decides
        columns = np.arange(len(used))
        better = found[at, columns] < known[at, columns]
        self._used[:, used[better]] = found[:, better]

    def ranks(self) -> tuple[list[str], Integers]:
        """Return the texts in order of first use, and the rank of each code."""
        track, lane, row = self._used[:, 1:]
        order = np.lexsort((row, lane, track))
        ranks = np.zeros(len(order) + 1, np.int64)
        ranks[1 + order] = np.arange(len(order))
        texts = self._texts.all()
        return [texts[place] for place in order.tolist()], ranks


@dataclass(frozen=True)
class DrawnWindow:
    """The drawing of a window: events, lanes, and rows whose flows are drawn, in start order."""

    rows: Integers
    is_end: Mask
    track: Integers
    lane: Integers
    end: Integers
    opened: int
    causes: Integers
    effects: Integers


@dataclass(frozen=True)
class _Kept:
    """A drawn window in the spool: events are rows, ends ~row; `open` is track, lane and end of open slices."""

    events: Stored
    lane: Stored
    open: tuple[Stored, Stored, Stored]


class Drawing:
    """Assign lanes, order all starts and ends, and join flows.

    `lanes` are the lanes of each track, `uses` the first uses of texts by column, `flows` the number of drawn pairs.
    Time is swept twice, here and during encoding; each window's results wait in the spool. ValueError for a slice that
    overlaps another on a track of `Rule.REFUSE`.
    """

    def __init__(
        self, gathering: Gathering, rules: npt.NDArray[np.int8], uuids: npt.NDArray[np.uint64], spool: Spool
    ) -> None:
        self._gathering, self._rules, self._uuids, self._spool = gathering, rules, uuids, spool
        texts = {"name": gathering.names, "category": gathering.categories}
        texts |= {f"={name}": one.texts for name, one in gathering.annotations.items() if one.kind == "text"}
        self._texts = texts
        self.uses: dict[str, FirstUses] = {}
        self.lanes: list[set[int]] = []
        self._sweep(self._left_from_stacks())
        self.flows, self.flow_ends_left_out, self._joined = self._join()

    def __len__(self) -> int:
        return len(self._kept)

    def window(self, number: int) -> DrawnWindow:
        """Read the drawing of a window."""
        kept, get = self._kept[number], self._spool.get
        events = get(kept.events).astype(np.int64)
        is_end = events < 0
        rows = np.where(is_end, ~events, events)
        track, lane, end = map(get, kept.open)
        begins = rows[~is_end] - len(track)
        causes, effects = (
            begins[np.concatenate([get(one) for one in ends]) - self._begun[number]] if ends else begins[:0]
            for ends in self._joined[number]
        )
        return DrawnWindow(
            rows, is_end, track, np.concatenate((lane, get(kept.lane))), end, len(track), causes, effects
        )

    def _sweep(self, left: Integers) -> None:
        """Sweep through all slices; those of `left` are not in lane 0."""
        self.uses = {name: FirstUses(texts) for name, texts in self._texts.items()}
        self.lanes = [set() for _ in self._rules]
        self._kept: list[_Kept] = []
        self._begun = [0]
        partitions = 1 + self._gathering.flows // _JOINED_AT_ONCE
        self._flows: list[list[tuple[Stored, Stored, Stored]]] = [[] for _ in range(partitions)]
        sweep = Sweep(self._rules, left)
        for window in self._gathering.windows(("flow", "role", *self._texts)):
            events = sweep.step(window.slices, window.until)
            self._keep(events)
            self._look(window, events.lane[events.opened :])
            self._part_flows(window, events, partitions)
            self._begun.append(self._begun[-1] + len(window.slices))

    def _left_from_stacks(self) -> Integers:
        """Return the rows that leave lane 0 of their tracks; ValueError if one may not."""
        sweep = Sweep(self._rules, np.zeros(0, np.int64))
        found = [Slices(*np.zeros((4, 0), np.int64))]
        for window in self._gathering.windows(()):
            nesting = window.slices.of(self._rules[window.slices.track] != Rule.FLAT)
            found.append(crossing(sweep.step(nesting, window.until), len(self._rules)))
        start, end, track, row = (np.concatenate([getattr(one, key.name) for one in found]) for key in fields(Slices))
        row, first = np.unique(row, return_index=True)  # open slices are found repeatedly
        crosses = Slices(start[first], end[first], track[first], row)
        refused = np.flatnonzero(self._rules[crosses.track] == Rule.REFUSE)
        if len(refused):
            at = refused[0]
            where = f"from {crosses.start[at]} to {crosses.end[at]} on track {self._uuids[crosses.track[at]]}"
            raise ValueError(
                f"slices row {row[at]} {where}: overlaps a slice of its track without nesting; give it another lane"
            )
        return left_from_stack(crosses)

    def _keep(self, events: Events) -> None:
        put, opened = self._spool.put, events.opened
        coded = np.where(events.is_end, ~events.rows, events.rows).astype(np.int32)
        carried = (events.all.track[:opened], events.lane[:opened], events.all.end[:opened])
        track, lane, end = map(put, carried)
        self._kept.append(_Kept(put(coded), put(events.lane[opened:]), (track, lane, end)))

    def _look(self, window: Window, lane: Integers) -> None:
        track, row = window.slices.track, window.slices.row
        if not len(track):
            return
        places = track * (int(lane.max()) + 1) + lane
        in_order = np.arange(len(row)) if (np.diff(row) > 0).all() else np.argsort(row, kind="stable")
        in_order = in_order[stable_order(places[in_order])]
        for one in in_order[np.flatnonzero(np.diff(places[in_order], prepend=-1))].tolist():
            self.lanes[int(track[one])].add(int(lane[one]))
        for name, uses in self.uses.items():
            uses.look(window.columns[name], lane, window, in_order)

    def _part_flows(self, window: Window, events: Events, partitions: int) -> None:
        """Spill the ends of flows, partitioned by flow, so that one partition can be joined at a time."""
        if not self._gathering.flows:
            return
        begins = events.rows[~events.is_end] - events.opened
        role = window.columns["role"][begins]
        places = np.flatnonzero(role)
        role, flow = role[places], window.columns["flow"][begins[places]]
        part = flow % np.uint64(partitions)
        for number in range(partitions):
            own = part == number
            kept = (flow[own], role[own], places[own] + self._begun[-1])
            self._flows[number].append(tuple(map(self._spool.put, kept)))  # type: ignore[arg-type]

    def _join(self) -> tuple[int, int, list[tuple[list[Stored], list[Stored]]]]:
        """Join flows: number drawn, number of ends left out, and the positions of causes and effects by window."""
        joined: list[tuple[list[Stored], list[Stored]]] = [([], []) for _ in self._kept]
        drawn = 0
        for partition in self._flows:
            if not partition:
                continue
            flow, role, place = (
                np.concatenate([self._spool.get(one) for one in column]) for column in zip(*partition, strict=True)
            )
            order = np.argsort(flow, kind="stable")
            flow, role, place = flow[order], role[order], place[order]
            pairs = np.flatnonzero((role[:-1] == CAUSE) & (role[1:] == EFFECT) & (flow[:-1] == flow[1:]))
            drawn += len(pairs)
            for which, rows in enumerate((pairs, pairs + 1)):
                ends = np.sort(place[rows])
                bounds = np.searchsorted(ends, self._begun)
                for number, (first, last) in enumerate(pairwise(bounds.tolist())):
                    if last > first:
                        joined[number][which].append(self._spool.put(ends[first:last]))
        return drawn, self._gathering.flows - 2 * drawn, joined


def final_tracks(lanes: Sequence[set[int]], rules: npt.NDArray[np.int8]) -> tuple[Integers, list[list[int]]]:
    """Return the position of each track's first lane, and its lanes; a `Rule.REFUSE` track always has one."""
    held = [sorted(own) if rule != Rule.REFUSE else [0] for own, rule in zip(lanes, rules, strict=True)]
    counts = np.array([len(own) for own in held], np.int64)
    return np.cumsum(counts) - counts, held
