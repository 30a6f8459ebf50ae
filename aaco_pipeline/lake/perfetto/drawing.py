"""How gathered slices are drawn: their lanes, the order of all begins and ends, and which flows join two of them.

It goes through time twice, here and where bytes are made; what was found for a stretch waits in the spool.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from aaco_pipeline.lake.perfetto.gathering import CAUSE, EFFECT, Gathering, Stretch, Texts
from aaco_pipeline.lake.perfetto.lanes import (
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
from aaco_pipeline.lake.perfetto.spool import Spool, Stored

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
