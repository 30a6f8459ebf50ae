"""Collect slices piece by piece, spill them to disk, and assign lanes and flows.

Laying overlapping slices into lanes is `lanes`, their bytes are `records`.
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
#: What a slice has to do with its flow.
CAUSE, EFFECT = 1, 2
#: About as many slices are looked at at once.
_STRETCH_SLICES: Final = 1 << 17
_EVERY: Final = 64  # the starts by which time is divided
_MOST_WITH_NULLS: Final = 62
_FLOW_FIELDS: Final = 2
Values = npt.NDArray[Any]


class Texts:
    """The different strings of a column, numbered from 1 as they come; 0 is null."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def all(self) -> list[str]:
        return list(self._numbers)

    def codes(self, values: pl.Series) -> npt.NDArray[np.uint32]:
        """The number of each value."""
        if isinstance(values.dtype, pl.Enum):
            names = values.dtype.categories
        else:
            names = values.drop_nulls().unique(maintain_order=True)
            values = values.cast(pl.Enum(names))
        places = values.to_physical()
        numbers = np.zeros(len(names) + 1, np.uint32)  # the last is null's
        for place in places.drop_nulls().unique(maintain_order=True).to_list():
            numbers[place] = self._numbers.setdefault(names[place], len(self._numbers) + 1)
        codes: npt.NDArray[np.uint32] = numbers[places.cast(pl.Int64).fill_null(-1).to_numpy()]
        return codes


@dataclass
class Annotation:
    """A column of annotations: of what `kind`, how wide its largest number, on how many slices, and where it first is.

    `at` are the first track and the place among that piece's columns; by it columns are ordered.
    """

    kind: str
    at: tuple[int, int]
    most: int = 0
    count: int = 0
    texts: Texts = field(default_factory=Texts)


@dataclass(frozen=True)
class Stretch:
    """The slices that begin in a stretch of time; what ends before `until` ends in it, in the last one (None) all do.

    `columns` hold name and category (numbers of texts), flow and role, and annotations by their names; `present` says
    which slices have an annotation, where not all do.
    """

    slices: Slices
    until: int | None
    columns: dict[str, Values]
    present: dict[str, Mask]


class Gathering:
    """What is known of slices before the first byte is written.

    `uuids` of tracks ascend; a track of `closed` holds no slices. ValueError names the first offending row of `add`.
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
        """The next slices; of one track those that came before stand first where nothing else tells their order."""
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
        self._starts.append(columns["start"][::_EVERY].copy())  # a view would hold all of them
        self.count += piece.height
        first = int(start.min())
        self.first_ns = first if self.first_ns is None else min(first, self.first_ns)
        self.most_start, self.most_end = max(self.most_start, int(start.max())), max(self.most_end, int(end.max()))

    def check(self) -> None:
        """ValueError where more may be absent than can be told apart; after all pieces."""
        absent = [one.count < self.count for one in self.annotations.values()]
        count = sum(absent) + (0 < self.categorized < self.count) + _FLOW_FIELDS * self.has_flows
        if count > _MOST_WITH_NULLS:
            raise ValueError(f"{count} columns have nulls; at most {_MOST_WITH_NULLS} may")

    def stretches(self, names: Sequence[str]) -> Iterator[Stretch]:
        """All slices, the earliest stretch first, with the columns `names`."""
        at = [0] * len(self._runs)
        for until in self._bounds():
            parts = []
            for number, run in enumerate(self._runs):
                first = at[number]
                last = run["start"].count if until is None else self._below(number, until)
                if last > first:
                    parts.append((number, first, last))
                    at[number] = last
            yield self._stretch(parts, until, names)

    def _below(self, number: int, until: int) -> int:
        """How many slices of a run begin before `until`: what lies between two starts that are held is looked at."""
        stored, known = self._runs[number]["start"], int(np.searchsorted(self._starts[number], until))
        first, last = max(known - 1, 0) * _EVERY, min(known * _EVERY, stored.count)
        return first + int(np.searchsorted(self._spool.get(stored, first, last), until))

    def _bounds(self) -> list[int | None]:
        """Where stretches end."""
        if self.count <= _STRETCH_SLICES:
            return [None]
        starts = np.sort(np.concatenate(self._starts))
        return [*np.unique(starts[:: _STRETCH_SLICES // _EVERY][1:]).tolist(), None]

    def _stretch(self, parts: Sequence[tuple[int, int, int]], until: int | None, names: Sequence[str]) -> Stretch:
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
        return Stretch(slices, until, columns, present)

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
    """The two columns of times `named`, checked; so many rows came `before` the frame's."""
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
    """Which track each row is on. `tracks` are their uuids, which of them take no such rows, and why."""
    uuids, closed, why = tracks
    wanted = frame["track"].cast(pl.UInt64).to_numpy()
    indices = np.searchsorted(uuids, wanted)
    known = indices < len(uuids)
    known[known] = uuids[indices[known]] == wanted[known]
    refuse(what, frame, ~known, "track is not among the tracks", before)
    refuse(what, frame, closed[indices], f"track {why}", before)
    return indices


def refuse(what: str, frame: pl.DataFrame, wrong: Mask, reason: str, before: int = 0) -> None:
    """ValueError for the first row that is `wrong`."""
    if wrong.any():
        row = int(wrong.argmax())
        raise ValueError(f"{what} row {before + row} {frame.row(row, named=True)}: {reason}")


#: As many ends of flows are joined at once.
_JOINED_AT_ONCE: Final = 1 << 19


class FirstUses:
    """Where each text of a column is first used: in the lowest lane of the lowest track, there on the first row."""

    def __init__(self, texts: Texts) -> None:
        self._texts = texts
        self._used = np.full((3, len(texts) + 1), np.iinfo(np.int64).max)

    def look(self, codes: npt.NDArray[Any], lane: Integers, stretch: Stretch, in_order: Integers) -> None:
        """Look at a stretch's codes; `in_order` are its rows by track, lane and row."""
        backwards = in_order[::-1]
        first = np.full(self._used.shape[1], -1, np.int64)
        first[codes[backwards]] = backwards  # what is written last stays
        first[0] = -1
        used = np.flatnonzero(first >= 0)
        rows = first[used]
        found = np.stack((stretch.slices.track[rows], lane[rows], stretch.slices.row[rows]))
        known = self._used[:, used]
        differs = found != known
        at = np.argmax(differs, axis=0)  # the first key that differs decides
        columns = np.arange(len(used))
        better = found[at, columns] < known[at, columns]
        self._used[:, used[better]] = found[:, better]

    def ranks(self) -> tuple[list[str], Integers]:
        """The texts in the order of their first use, and the place in it of each code."""
        track, lane, row = self._used[:, 1:]
        order = np.lexsort((row, lane, track))
        ranks = np.zeros(len(order) + 1, np.int64)
        ranks[1 + order] = np.arange(len(order))
        texts = self._texts.all()
        return [texts[place] for place in order.tolist()], ranks


@dataclass(frozen=True)
class DrawnStretch:
    """What was found for a stretch: its events, lanes, and the rows whose flows are drawn, in the order they begin."""

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
    """The same in the spool: events are rows, of ends ~row; of what was open before there is track, lane and end."""

    events: Stored
    lane: Stored
    open: tuple[Stored, Stored, Stored]


class Drawing:
    """`lanes` are those that each track has, `uses` the first uses of texts by column, `flows` the pairs drawn.

    ValueError for a slice that overlaps another on a track of `Rule.REFUSE`.
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

    def stretch(self, number: int) -> DrawnStretch:
        """What was found for a stretch."""
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
        return DrawnStretch(
            rows, is_end, track, np.concatenate((lane, get(kept.lane))), end, len(track), causes, effects
        )

    def _sweep(self, left: Integers) -> None:
        """Once through all slices, of which those `left` are not in lane 0."""
        self.uses = {name: FirstUses(texts) for name, texts in self._texts.items()}
        self.lanes = [set() for _ in self._rules]
        self._kept: list[_Kept] = []
        self._begun = [0]
        partitions = 1 + self._gathering.flows // _JOINED_AT_ONCE
        self._flows: list[list[tuple[Stored, Stored, Stored]]] = [[] for _ in range(partitions)]
        sweep = Sweep(self._rules, left)
        for stretch in self._gathering.stretches(("flow", "role", *self._texts)):
            events = sweep.step(stretch.slices, stretch.until)
            self._keep(events)
            self._look(stretch, events.lane[events.opened :])
            self._part_flows(stretch, events, partitions)
            self._begun.append(self._begun[-1] + len(stretch.slices))

    def _left_from_stacks(self) -> Integers:
        """The slices that leave lane 0 of their tracks; ValueError where one may not."""
        sweep = Sweep(self._rules, np.zeros(0, np.int64))
        found = [Slices(*np.zeros((4, 0), np.int64))]
        for stretch in self._gathering.stretches(()):
            nesting = stretch.slices.of(self._rules[stretch.slices.track] != Rule.FLAT)
            found.append(crossing(sweep.step(nesting, stretch.until), len(self._rules)))
        start, end, track, row = (np.concatenate([getattr(one, key.name) for one in found]) for key in fields(Slices))
        row, first = np.unique(row, return_index=True)  # one is found again while it is open
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

    def _look(self, stretch: Stretch, lane: Integers) -> None:
        track, row = stretch.slices.track, stretch.slices.row
        if not len(track):
            return
        places = track * (int(lane.max()) + 1) + lane
        in_order = np.arange(len(row)) if (np.diff(row) > 0).all() else np.argsort(row, kind="stable")
        in_order = in_order[stable_order(places[in_order])]
        for one in in_order[np.flatnonzero(np.diff(places[in_order], prepend=-1))].tolist():
            self.lanes[int(track[one])].add(int(lane[one]))
        for name, uses in self.uses.items():
            uses.look(stretch.columns[name], lane, stretch, in_order)

    def _part_flows(self, stretch: Stretch, events: Events, partitions: int) -> None:
        """Put aside the ends of flows in the order they begin, by flow, so that a part can be joined at a time."""
        if not self._gathering.flows:
            return
        begins = events.rows[~events.is_end] - events.opened
        role = stretch.columns["role"][begins]
        places = np.flatnonzero(role)
        role, flow = role[places], stretch.columns["flow"][begins[places]]
        part = flow % np.uint64(partitions)
        for number in range(partitions):
            own = part == number
            kept = (flow[own], role[own], places[own] + self._begun[-1])
            self._flows[number].append(tuple(map(self._spool.put, kept)))  # type: ignore[arg-type]

    def _join(self) -> tuple[int, int, list[tuple[list[Stored], list[Stored]]]]:
        """How many flows are drawn, how many of their ends are not, and by stretch the places of causes and effects."""
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
    """Of every track the place of its first lane among all, and its lanes; a track of its own without slices is one."""
    held = [sorted(own) if rule != Rule.REFUSE else [0] for own, rule in zip(lanes, rules, strict=True)]
    counts = np.array([len(own) for own in held], np.int64)
    return np.cumsum(counts) - counts, held
