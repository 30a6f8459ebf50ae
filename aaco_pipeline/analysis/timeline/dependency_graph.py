"""The dependency network of host calls and device activities, with the minimum cost of each dependency.

A node is a device activity or an outermost host call; a blocking call is two nodes without weight, its entry and its
return, so that the awaited work explains it. An edge means that one node could not start before another one had started
or ended, plus a lag: `launch` from a call to the activity that it launched, `stream` and `queue` from one activity to
the next of the same stream or hardware queue, `event` between streams, `sync` from device work to the return of the
call that waited for it, `program` between the calls of one thread.

Lags are minimum delays. If the lag were the full observed distance, nothing could ever have started earlier and there
would be no slack. A lag is therefore the 5 % quantile of the distances observed where nothing else can have delayed the
activity, per device and class of edge, and at most the edge's own distance. The rest is the edge's wait.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from aaco_pipeline.analysis.timeline.activities import ACTIVITY_KINDS, HOST, LAUNCHING, before_in_group, group_codes
from aaco_pipeline.analysis.timeline.host_waits import Waits

#: Kinds of edges; if several bind equally, the first one is reported.
KINDS: Final = ("launch", "event", "stream", "queue", "sync", "program")
LAUNCH, EVENT, STREAM, QUEUE, SYNC, PROGRAM = range(6)
WHOLE: Final = "whole"
ENTRY: Final = "entry"
RETURN: Final = "return"
PARTS: Final = pl.Enum([WHOLE, ENTRY, RETURN])
FLOOR_QUANTILE: Final = 0.05
Numbers = npt.NDArray[np.int64]
Nodes = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Network:
    """Nodes and edges of one session, in columns; node numbers are row numbers of `nodes`.

    `nodes`: activity_kind, activity_id, part (whole, entry or return), device_id, kernel_id, category, start_ns,
    weight_ns. `source`, `target`, `kind` (index into KINDS), `from_start` (the edge leaves the source's start, not its
    end), `lag_ns`, `inferred`: one entry per edge, sorted by target, then kind. `left_out`: reason, edges: dependencies
    that contradict the timestamps.
    """

    nodes: pl.DataFrame
    source: Nodes
    target: Nodes
    kind: npt.NDArray[np.int8]
    from_start: Mask
    lag_ns: Numbers
    inferred: Mask
    left_out: pl.DataFrame

    @property
    def start_ns(self) -> Numbers:
        """The observed start of each node."""
        return self.nodes.get_column("start_ns").to_numpy()

    @property
    def weight_ns(self) -> Numbers:
        """The observed duration of each node; zero for the parts of a blocking call."""
        return self.nodes.get_column("weight_ns").to_numpy()


@dataclass(frozen=True)
class Edges:
    """Edges of one kind between node numbers, with the lag of each."""

    kind: int
    source: Numbers
    target: Numbers
    from_start: Mask
    lag_ns: Numbers
    inferred: Mask


def network(activities: pl.DataFrame, calls: pl.DataFrame, waits: Waits) -> Network:
    """Build the network of a session from `device_activities`, `host_calls` and `waits` of `aaco_pipeline.analysis`.

    Host calls are nodes if they are outermost on their thread. Between two calls of a thread the program ran: the full
    distance is the lag of their edge, because nothing recorded would let it shrink. If a launch found its stream empty
    and its activity began before the call returned, the call up to that point explains the start.
    """
    return _Builder(activities, calls, waits).build()


def assembled(nodes: pl.DataFrame, edges: Sequence[Edges], left_out: pl.DataFrame) -> Network:
    """Assemble a network from these parts, with its edges in order."""
    edges = sorted(edges, key=lambda part: part.kind)
    kind = np.concatenate([np.full(len(part.source), part.kind, np.int8) for part in edges])
    target = np.concatenate([part.target for part in edges])
    order = np.argsort(target, kind="stable")
    return Network(
        nodes=nodes,
        source=np.concatenate([part.source for part in edges])[order].astype(np.int32),
        target=target[order].astype(np.int32),
        kind=kind[order],
        from_start=np.concatenate([part.from_start for part in edges])[order],
        lag_ns=np.concatenate([part.lag_ns for part in edges])[order],
        inferred=np.concatenate([part.inferred for part in edges])[order],
        left_out=left_out,
    )


class _Builder:
    def __init__(self, activities: pl.DataFrame, calls: pl.DataFrame, waits: Waits) -> None:
        self.activities, self.waits = activities, waits
        self.device_count = activities.height
        outermost = calls.filter(pl.col("call_id") == pl.col("outermost_call_id"))
        self.outer = outermost.with_columns(end_ns=pl.max_horizontal("start_ns", "end_ns"))
        self.start = _numbers(activities, "start_ns")
        self.end = np.maximum(_numbers(activities, "end_ns"), self.start)
        self.device = _numbers(activities, "device_id")
        self.left_out: list[tuple[str, int]] = []
        self.blocking = np.isin(
            _numbers(self.outer, "call_id"), _numbers(waits.calls, "outermost_call_id"), kind="table"
        )
        self.call_node = _positions(self.outer, "call_id", self.device_count)
        returns = np.cumsum(self.blocking) - 1 + self.device_count + self.outer.height
        self.leaving = np.where(self.blocking, returns, np.arange(self.outer.height) + self.device_count)
        self.stream_before, self.queue_before = self._preceding()

    def build(self) -> Network:
        edges = [
            self._launches(),
            self._events(),
            *self._streams(),
            self._queues(),
            self._synchronizations(),
            *self._programs(),
        ]
        left_out = pl.DataFrame(self.left_out, schema={"reason": pl.String, "edges": pl.Int64}, orient="row")
        return assembled(self._nodes(), edges, left_out)

    def _nodes(self) -> pl.DataFrame:
        kinds = self.activities.schema["work"]
        called = np.zeros(len(self.call_node), np.bool_)
        launch = _numbers(self.activities, "outermost_call_id")
        called[launch[launch >= 0]] = True
        launching = pl.Series(called[_numbers(self.outer, "call_id")])
        own = self.activities.select(
            "activity_kind",
            "activity_id",
            part=pl.lit(WHOLE, PARTS),
            device_id="device_id",
            kernel_id="kernel_id",
            category="work",
            start_ns="start_ns",
            weight_ns=pl.Series(self.end - self.start),
        )
        calls = self.outer.select(
            activity_kind=pl.lit("api_call", ACTIVITY_KINDS),
            activity_id="call_id",
            part=pl.when(pl.Series(self.blocking)).then(pl.lit(ENTRY, PARTS)).otherwise(pl.lit(WHOLE, PARTS)),
            category=pl.when(launching).then(pl.lit(LAUNCHING, kinds)).otherwise(pl.lit(HOST, kinds)),
            start_ns="start_ns",
            weight_ns=pl.when(pl.Series(self.blocking)).then(0).otherwise(pl.col("end_ns") - pl.col("start_ns")),
        )
        returned = self.outer.filter(pl.Series(self.blocking)).select(
            activity_kind=pl.lit("api_call", ACTIVITY_KINDS),
            activity_id="call_id",
            part=pl.lit(RETURN, PARTS),
            category=pl.lit(HOST, kinds),
            start_ns="end_ns",
            weight_ns=pl.lit(0, pl.Int64),
        )
        return pl.concat([own, calls, returned], how="diagonal")

    def _preceding(self) -> tuple[Numbers, Numbers]:
        """For each activity, the previous one on its stream and on its hardware queue; -1 if there is none."""
        place = ("process_id", "device_id")
        known = {name: self.activities.get_column(name).is_not_null().to_numpy() for name in ("stream_id", "queue_id")}
        stream, queue = (self._before((*place, name), has) for name, has in known.items())
        return stream, queue

    def _before(self, by: tuple[str, ...], has: Mask) -> Numbers:
        before = before_in_group(group_codes(self.activities, by))
        return np.where(has & (before >= 0) & has[before], before, -1)

    def _launches(self) -> Edges:
        call = _numbers(self.activities, "outermost_call_id")
        target = np.flatnonzero(call >= 0)
        position = self.call_node[call[target]]
        called, returned = (_numbers(self.outer, name)[position - self.device_count] for name in ("start_ns", "end_ns"))
        start = self.start[target]
        kept = start >= called
        self._leave_out("starts before its launch", ~kept)
        target, position, called, returned, start = (part[kept] for part in (target, position, called, returned, start))
        before = self.stream_before[target]
        empty = (before < 0) | (self.end[np.maximum(before, 0)] <= called)
        blocking = self.blocking[position - self.device_count]
        inside = (start < returned) | blocking
        distance = start - np.where(inside, called, returned)
        lag = np.where(inside & empty & ~blocking, distance, 0)
        for anchored in (inside, ~inside):
            floor = self._floor(target, distance, anchored & empty)
            lag = np.where(anchored & (lag == 0), np.minimum(floor, distance), lag)
        return Edges(LAUNCH, position, target, inside, lag, np.zeros(len(target), np.bool_))

    def _streams(self) -> Iterable[Edges]:
        target = np.flatnonzero(self.stream_before >= 0)
        source = self.stream_before[target]
        distance = self.start[target] - self.end[source]
        ordered = distance >= 0
        floor = self._floor(target, distance, ordered & self._queued(source, target))
        lag = np.where(ordered, np.minimum(floor, distance), 0)
        self._note("overlaps the activity before it on its stream", ~ordered)
        yield Edges(STREAM, source, target, ~ordered, lag, np.zeros(len(target), np.bool_))
        # Activities without stream and queue ran on the host itself, in thread order.
        alone = self._before_on_thread()
        target = np.flatnonzero(alone >= 0)
        source = alone[target]
        ordered = self.start[target] >= self.end[source]
        yield Edges(PROGRAM, source, target, ~ordered, np.zeros(len(target), np.int64), np.zeros(len(target), np.bool_))

    def _queued(self, source: Numbers, target: Numbers) -> Mask:
        """Return whether the target's launch returned before the source ended: only the device can delay it then."""
        returned = _numbers(self.activities, "call_end_ns")[target]
        return (returned >= 0) & (returned <= self.end[source])

    def _before_on_thread(self) -> Numbers:
        columns = (self.activities.get_column(name) for name in ("stream_id", "queue_id", "call_id"))
        loose = np.logical_and.reduce([column.is_null().to_numpy() for column in columns])
        if not loose.any():
            return np.full(self.device_count, -1, np.int64)
        rows = np.flatnonzero(loose)
        before = before_in_group(group_codes(self.activities[rows], ("process_id", "device_id", "thread_id")))
        found = np.full(self.device_count, -1, np.int64)
        found[rows] = np.where(before >= 0, rows[before], -1)
        return found

    def _queues(self) -> Edges:
        source = self.queue_before
        target = np.flatnonzero((source >= 0) & (source != self.stream_before))
        source = source[target]
        distance = self.start[target] - self.end[source]
        ordered = distance >= 0
        self._note("overlaps the activity before it on its hardware queue", ~ordered)
        source, target, distance = source[ordered], target[ordered], distance[ordered]
        floor = self._floor(target, distance, self._queued(source, target))
        return Edges(QUEUE, source, target, _no(target), np.minimum(floor, distance), _no(target))

    def _events(self) -> Edges:
        handed = self.waits.handed_over
        source, target = _numbers(handed, "source"), _numbers(handed, "target")
        distance = self.start[target] - self.end[source]
        ordered = distance >= 0
        self._leave_out("starts before the end of the work it waited for", ~ordered)
        source, target = source[ordered], target[ordered]
        inferred = handed.get_column("inferred").to_numpy()[ordered]
        return Edges(EVENT, source, target, _no(target), np.zeros(len(target), np.int64), inferred)

    def _synchronizations(self) -> Edges:
        awaited = self.waits.awaited
        source = _numbers(awaited, "activity")
        position = self.call_node[_numbers(awaited, "outermost_call_id")] - self.device_count
        entered, returned = (_numbers(self.outer, name)[position] for name in ("start_ns", "end_ns"))
        distance = returned - self.end[source]
        kept = distance >= 0
        waited = kept & (self.end[source] > entered)
        floor = self._floor(source, distance, waited)
        lag = np.minimum(floor, np.maximum(distance, 0))[kept]
        inferred = awaited.get_column("inferred").to_numpy()[kept]
        return Edges(SYNC, source[kept], self.leaving[position][kept], _no(lag), lag, inferred)

    def _programs(self) -> Iterable[Edges]:
        threads = group_codes(self.outer, ("process_id", "thread_id"))
        following = np.flatnonzero(threads[1:] == threads[:-1]) + 1
        called, returned = _numbers(self.outer, "start_ns"), _numbers(self.outer, "end_ns")
        before = following - 1
        ordered = called[following] >= returned[before]
        source = np.where(ordered, self.leaving[before], before + self.device_count)
        lag = called[following] - np.where(ordered, returned[before], called[before])
        yield Edges(PROGRAM, source, following + self.device_count, ~ordered, lag, _no(lag))
        entry = np.flatnonzero(self.blocking)
        nothing = np.zeros(len(entry), np.int64)
        yield Edges(PROGRAM, entry + self.device_count, self.leaving[entry], _no(entry), nothing, _no(entry))

    def _floor(self, located: Numbers, distance: Numbers, chosen: Mask) -> Numbers:
        """Minimum delay of each edge: the 5 % quantile (nearest rank) of the selected device distances, else zero.

        It takes two observations: a single one cannot distinguish the minimum from a delay.
        """
        floor = np.zeros(len(distance), np.int64)
        device = self.device[located]
        for one in np.unique(device[chosen]):
            observed = np.sort(distance[chosen & (device == one)])
            if len(observed) >= 2:
                floor[device == one] = observed[max(int(np.ceil(FLOOR_QUANTILE * len(observed))) - 1, 0)]
        return floor

    def _leave_out(self, reason: str, which: Mask) -> None:
        self._note(f"left out: {reason}", which)

    def _note(self, reason: str, which: Mask) -> None:
        if which.any():
            self.left_out.append((reason, int(which.sum())))


def _no(like: npt.NDArray[np.generic]) -> Mask:
    return np.zeros(len(like), np.bool_)


def _numbers(frame: pl.DataFrame, column: str) -> Numbers:
    """The column as int64, -1 for null."""
    return frame.get_column(column).cast(pl.Int64).fill_null(-1).to_numpy()


def _positions(frame: pl.DataFrame, column: str, first: int) -> Numbers:
    """Return an array that maps each value of the column to its row number plus `first`."""
    values = _numbers(frame, column)
    positions = np.full(int(values.max(initial=-1)) + 1, -1, np.int64)
    positions[values] = np.arange(len(values)) + first
    return positions
