"""The longest path through a network of activities, what every activity could be delayed by, and what a change saves.

The critical path method needs longest paths. The observed schedule turns them into shortest ones: an edge's wait,
the target's observed start minus the earliest one the edge allows, is never negative, and along any path the waits
are exactly what the path is shorter than the time between its ends. The longest path is the one with the least
waiting, which Dijkstra's algorithm finds in compiled code without a topological order: ES(v) = start(v) - window start
- least waiting up to v, and backwards alike.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, connected_components, dijkstra

from aaco_pipeline.analysis.timeline.dependency_graph import (
    ENTRY,
    EVENT,
    KINDS,
    LAUNCH,
    PROGRAM,
    QUEUE,
    RETURN,
    STREAM,
    SYNC,
    Network,
)

Numbers = npt.NDArray[np.int64]
Nodes = npt.NDArray[np.int32]
#: What the lag of an edge is time of, by kind.
LAG_CATEGORIES: Final = {
    LAUNCH: "launch",
    EVENT: "handover",
    STREAM: "handover",
    QUEUE: "handover",
    SYNC: "synchronisation",
    PROGRAM: "host",
}
SESSION: Final = "session"
NO_EDGE: Final = "none"
_EDGE_NAMES: Final = pl.Series([*KINDS, NO_EDGE], dtype=pl.Enum([*KINDS, NO_EDGE]))
_LAG_NAMES: Final = [*(LAG_CATEGORIES[number] for number in range(len(KINDS))), NO_EDGE]
#: Whole numbers of ns up to here are exact in the float64 that the graph routines compute in.
_EXACT: Final = 2**53


@dataclass(frozen=True)
class Schedule:
    """Earliest and latest times of every node, in ns from the start of the window, and the longest path.

    `window_ns` is the observed makespan; `path_ns` the longest path, own times and lags; path_ns + unexplained_ns is
    window_ns, exactly. `path`: the nodes of one longest path in order.
    """

    earliest_start_ns: Numbers
    slack_ns: Numbers
    free_slack_ns: Numbers
    window_ns: int
    path_ns: int
    path: Numbers

    @property
    def unexplained_ns(self) -> int:
        """What no activity and no lag on the longest path explains."""
        return self.window_ns - self.path_ns


@dataclass(frozen=True)
class CriticalPath:
    """The frames of the analysis.

    `activities`: rows of the table `critical_path` without the session and criticality, and beside them
    earliest_start_ns, earliest_finish_ns (from the window's start), binding_activity_kind, binding_activity_id and
    binding_inferred. `summary`: rows of `critical_path_summary` without the session. `kernels`: kernel_id, total_ns,
    critical_ns, criticality (the share of the kernel's time that lies on a longest path). `steps`: the path, one row
    per node with the edge it was reached by, its lag, its wait and the node's own time. `checks`: check, value.
    """

    activities: pl.DataFrame
    summary: pl.DataFrame
    kernels: pl.DataFrame
    steps: pl.DataFrame
    checks: pl.DataFrame


def critical_path(network: Network) -> CriticalPath:
    """Slack, binding edges and the longest path of the whole session.

    An activity's binding edge is the dependency that was met last, as observed. An activity is critical when its
    slack is zero; there may be more than one longest path, of which `steps` holds one.
    """
    waits = edge_waits(network)
    schedule = schedule_of(network, waits)
    steps = _steps(network, schedule, waits)
    binding = _least_wait(network.target, waits, len(network.start_ns))
    kernels = _kernel_criticality(network, schedule)
    checks = _checks(network, schedule, steps, binding)
    # The largest frame comes last, when nothing else is in the making.
    rows = _rows(network, schedule, waits, binding)
    return CriticalPath(rows, _summary(schedule, steps), kernels, steps, checks)


def edge_waits(network: Network, weights: Numbers | None = None, stretch: int = 1) -> Numbers:
    """What each edge's target waited beyond the edge, ns, never negative; by other weights, the waits that leaves.

    `stretch` multiplies the observed schedule, which keeps the waits of longer weights from becoming negative.
    Raises ValueError for a network whose edges contradict its times.
    """
    start = network.start_ns * stretch
    weight = network.weight_ns if weights is None else weights
    left = start[network.source] + np.where(network.from_start, 0, weight[network.source])
    waits: Numbers = start[network.target] - left - network.lag_ns
    if len(waits) and waits.min() < 0:
        message = "an activity of the network starts before what it depends on is over"
        raise ValueError(message)
    return waits


def schedule_of(network: Network, waits: Numbers) -> Schedule:
    """The forward and the backward pass over the network, whose edges have these waits."""
    graph = _Graph(network, waits, network.weight_ns, 1)
    least, before = graph.forward(predecessors=True)
    after = graph.backward()
    count = len(network.start_ns)
    least_wait = int(least[graph.sink])
    slack = least[:count] + after[:count] - least_wait
    return Schedule(
        earliest_start_ns=network.start_ns - graph.window_start - least[:count],
        slack_ns=slack,
        free_slack_ns=graph.free_slack(least),
        window_ns=graph.window_ns,
        path_ns=graph.window_ns - least_wait,
        path=graph.path(before),
    )


def what_if(network: Network, speedups: Mapping[int, float]) -> int:
    """How much shorter, in ns, the longest path becomes when each kernel runs `speedup` times as fast.

    `speedups` maps kernel_id to a factor above zero; below 1 the kernel is slower and the result negative. New
    durations are rounded to whole ns; everything else stays, and the forward pass is made again.
    """
    if any(not factor > 0 for factor in speedups.values()):
        message = "a speed-up is a factor above zero"
        raise ValueError(message)
    factor = network.nodes.get_column("kernel_id").replace_strict(
        list(speedups), list(speedups.values()), default=1.0, return_dtype=pl.Float64
    )
    weights = np.rint(network.weight_ns / factor.fill_null(1.0).to_numpy()).astype(np.int64)
    return longest_path(network, network.weight_ns) - longest_path(network, weights)


def largest_savings(network: Network, kernels: pl.DataFrame, count: int, speedup: float) -> pl.DataFrame:
    """Rows of the table `what_if` for the `count` kernels with most time on the path, each `speedup` times as fast.

    `kernels` is what `critical_path` gives; the forward pass is made once for each row.
    """
    window = int((network.start_ns + network.weight_ns).max(initial=0)) - _first(network)
    top = kernels.filter(pl.col("critical_ns") > 0).top_k(count, by=["critical_ns", "kernel_id"])
    saved = [what_if(network, {kernel: speedup}) for kernel in top.get_column("kernel_id")]
    return top.select(
        "kernel_id",
        "critical_ns",
        speedup_ratio=pl.lit(speedup),
        saved_ns=pl.Series(saved, dtype=pl.Int64),
        saved_ratio=pl.Series(saved, dtype=pl.Float64) / window if window else pl.lit(None, pl.Float64),
    ).sort("kernel_id")


def longest_path(network: Network, weights: Numbers) -> int:
    """The length in ns of the longest path when the nodes have these weights (>= 0), own times and lags."""
    longer = weights > network.weight_ns
    if np.any(longer & (network.weight_ns == 0)):
        # It would need a stretch without bound.
        message = "a node without weight cannot become longer"
        raise ValueError(message)
    stretch = int((-(-weights[longer] // network.weight_ns[longer])).max(initial=1))
    graph = _Graph(network, edge_waits(network, weights, stretch), weights, stretch)
    least, _ = graph.forward(predecessors=False)
    return graph.window_ns - int(least[graph.sink])


def is_acyclic(network: Network) -> bool:
    """Whether no activity depends on itself; edges never go back in time, so only edges within an instant matter."""
    within = network.start_ns[network.source] == network.start_ns[network.target]
    if not within.any():
        return True
    if np.any(network.source[within] == network.target[within]):
        return False
    own, numbered = np.unique(np.concatenate([network.source[within], network.target[within]]), return_inverse=True)
    half = int(within.sum())
    ones = np.ones(half)
    graph = csr_array((ones, (numbered[:half], numbered[half:])), shape=(len(own), len(own)))
    parts, _ = connected_components(graph, directed=True, connection="strong")
    return int(parts) == len(own)


class _Graph:
    """The network between a source (the window's start) and a sink (its end), each edge as long as its wait."""

    def __init__(self, network: Network, waits: Numbers, weights: Numbers, stretch: int) -> None:
        start = network.start_ns * stretch
        count = len(start)
        end = start + weights
        self.count, self.source, self.sink = count, count, count + 1
        self.window_start = _first(network) * stretch
        last = int(end.max()) if count else 0
        self.window_ns = last - self.window_start
        if self.window_ns >= _EXACT:
            message = f"a window of {self.window_ns} ns is too long to be computed exactly"
            raise ValueError(message)
        rooted = np.ones(count, np.bool_)
        rooted[network.target] = False
        roots = np.flatnonzero(rooted)
        ending = np.ones(count, np.bool_)
        ending[network.source[~network.from_start]] = False
        leaves = np.flatnonzero(ending)
        self.first = np.concatenate([network.source, np.full(len(roots), self.source), leaves]).astype(np.int32)
        self.second = np.concatenate([network.target, roots, np.full(len(leaves), self.sink)]).astype(np.int32)
        self.wait = np.concatenate([waits, start[roots] - self.window_start, last - end[leaves]])

    def forward(self, *, predecessors: bool) -> tuple[Numbers, npt.NDArray[np.int32]]:
        """The least waiting from the source to each node, and each node's predecessor on such a path."""
        found: Any = dijkstra(
            _rows_of(self.first, self.second, self.wait, self.count + 2),
            indices=self.source,
            return_predecessors=predecessors,
        )
        least, before = found if predecessors else (found, np.empty(0, np.int32))
        return _whole(least), before

    def backward(self) -> Numbers:
        """The least waiting from each node to the sink."""
        return _whole(dijkstra(_rows_of(self.second, self.first, self.wait, self.count + 2), indices=self.sink))

    def free_slack(self, least: Numbers) -> Numbers:
        """How much later each node could end without a successor's earliest start moving."""
        room = self.wait + least[self.first] - least[self.second]
        free = np.full(self.count + 2, np.iinfo(np.int64).max)
        np.minimum.at(free, self.first, room)
        return free[: self.count]

    def path(self, before: npt.NDArray[np.int32]) -> Numbers:
        """The nodes from the source to the sink by their predecessors; walked in compiled code."""
        linked = before >= 0
        pointers = np.concatenate([[0], np.cumsum(linked)])
        size = self.count + 2
        chain = csr_array((np.ones(int(pointers[-1])), before[linked], pointers), shape=(size, size))
        order = breadth_first_order(chain, self.sink, directed=True, return_predecessors=False)
        inner: Numbers = order[::-1].astype(np.int64)
        found: Numbers = inner[(inner != self.source) & (inner != self.sink)]
        return found


def _rows_of(first: Nodes, second: Nodes, wait: Numbers, count: int) -> csr_array:
    """The graph with an entry per edge, parallel ones and those of length zero included."""
    order = np.argsort(first, kind="stable")
    pointers = np.concatenate([[0], np.cumsum(np.bincount(first, minlength=count))])
    return csr_array((wait[order].astype(np.float64), second[order], pointers.astype(np.int32)), shape=(count, count))


def _whole(distances: npt.NDArray[np.float64]) -> Numbers:
    """Distances as int64; the source reaches every node, only it and the sink may be out of reach of each other."""
    return np.where(np.isfinite(distances), distances, 0).astype(np.int64)


def _at(values: npt.NDArray[Any], index: Numbers, otherwise: int) -> npt.NDArray[Any]:
    """The values at these places; `otherwise` at place -1."""
    return np.append(values, np.array([otherwise], values.dtype))[index]


def _first(network: Network) -> int:
    return int(network.start_ns.min()) if network.nodes.height else 0


def _least_wait(target: Nodes, waits: Numbers, count: int) -> Numbers:
    """For each node the edge into it with the least wait, the first of equals; -1 where there is none."""
    binding = np.full(count, -1, np.int64)
    if not len(target):
        return binding
    firsts = np.flatnonzero(np.diff(target, prepend=-1))
    lengths = np.diff(firsts, append=len(target))
    least = np.repeat(np.minimum.reduceat(waits, firsts), lengths)
    among = np.flatnonzero(waits == least)
    # Written backwards, so that the first edge of equals stays.
    binding[target[among[::-1]]] = among[::-1]
    return binding


def _rows(network: Network, schedule: Schedule, waits: Numbers, binding: Numbers) -> pl.DataFrame:
    """One row per activity; a blocking call's stands for its return or, when no awaited work bound that, its entry."""
    nodes = network.nodes
    part = nodes.get_column("part")
    shown = np.flatnonzero((part != ENTRY).to_numpy())
    bound = binding[shown]
    waited = np.where(bound >= 0, _at(waits, bound, 0), network.start_ns[shown] - _first(network))
    predecessor = _at(network.source, bound, -1)
    begun = schedule.earliest_start_ns[shown].copy()
    if (part == RETURN).any():
        returned = np.flatnonzero((part.gather(shown) == RETURN).to_numpy())
        entry = _entries(network, shown[returned])
        begun[returned] = schedule.earliest_start_ns[entry]
        by_entry = predecessor[returned] == entry
        own, inner = returned[by_entry], entry[by_entry]
        bound[own] = binding[inner]
        alone = network.start_ns[inner] - _first(network)
        waited[own] += np.where(bound[own] >= 0, _at(waits, bound[own], 0), alone)
    predecessor = _at(network.source, bound, -1)
    kinds = _EDGE_NAMES.gather(_at(network.kind, bound, len(KINDS)))
    before = pl.Series(predecessor)
    before = before.set(before < 0, None)
    slack = schedule.slack_ns[shown]
    named = nodes.select("activity_kind", "activity_id", "kernel_id")
    return named.filter(part != ENTRY).select(
        pl.col("activity_kind").cast(pl.String),
        "activity_id",
        "kernel_id",
        earliest_start_ns=begun,
        earliest_finish_ns=(schedule.earliest_start_ns + network.weight_ns)[shown],
        slack_ns=slack,
        free_slack_ns=schedule.free_slack_ns[shown],
        is_critical=slack == 0,
        binding_edge=kinds.cast(pl.String),
        binding_activity_kind=named.get_column("activity_kind").gather(before),
        binding_activity_id=named.get_column("activity_id").gather(before),
        binding_inferred=_at(network.inferred, bound, False),
        unexplained_wait_ns=waited,
    )


def _entries(network: Network, returns: Numbers) -> Numbers:
    """The entry node of each of these return nodes."""
    calls = network.nodes.with_row_index("node").filter(pl.col("part").is_in([ENTRY, RETURN]))
    pairs = calls.pivot("part", index=["activity_kind", "activity_id"], values="node")
    of_return = np.full(network.nodes.height, -1, np.int64)
    of_return[pairs.get_column(RETURN).to_numpy()] = pairs.get_column(ENTRY).to_numpy()
    return of_return[returns]


def _steps(network: Network, schedule: Schedule, waits: Numbers) -> pl.DataFrame:
    """The path with what led to each node; a node that is left by its start counts none of its own time."""
    path = schedule.path
    before = np.full(len(network.start_ns), -1, np.int64)
    before[path[1:]] = path[:-1]
    used = np.flatnonzero(before[network.target] == network.source)
    edge = _at(used, _least_wait(network.target[used], waits[used], len(network.start_ns))[path], -1)
    left_by_start = np.append(_at(network.from_start, edge[1:], False), False)[: len(path)]
    kind = _at(network.kind, edge, len(KINDS))
    return network.nodes[path].select(
        "activity_kind",
        "activity_id",
        "part",
        "kernel_id",
        "category",
        "start_ns",
        edge=_EDGE_NAMES.gather(kind),
        lag_category=pl.Series(_LAG_NAMES, dtype=pl.Categorical).gather(kind),
        lag_ns=_at(network.lag_ns, edge, 0),
        wait_ns=np.where(edge >= 0, _at(waits, edge, 0), network.start_ns[path] - _first(network)),
        own_ns=np.where(left_by_start, 0, network.weight_ns[path]),
    )


def _summary(schedule: Schedule, steps: pl.DataFrame) -> pl.DataFrame:
    parts = pl.concat(
        [
            steps.group_by(pl.col(name).cast(pl.String).alias("category")).agg(category_ns=pl.col(time).sum())
            for name, time in (("category", "own_ns"), ("lag_category", "lag_ns"))
        ]
    )
    by_category = parts.filter(pl.col("category_ns") > 0).group_by("category").agg(pl.col("category_ns").sum())
    return by_category.sort("category").select(
        scope=pl.lit(SESSION),
        window_ns=pl.lit(schedule.window_ns, pl.Int64),
        path_ns=pl.lit(schedule.path_ns, pl.Int64),
        unexplained_ns=pl.lit(schedule.unexplained_ns, pl.Int64),
        category="category",
        category_ns="category_ns",
        category_ratio=pl.col("category_ns") / schedule.path_ns,
    )


def _kernel_criticality(network: Network, schedule: Schedule) -> pl.DataFrame:
    own = network.nodes.select("kernel_id", "weight_ns", critical=pl.Series(schedule.slack_ns == 0))
    critical = pl.col("weight_ns").filter(pl.col("critical")).sum()
    return (
        own.drop_nulls("kernel_id")
        .group_by("kernel_id")
        .agg(total_ns=pl.col("weight_ns").sum(), critical_ns=critical)
        .with_columns(criticality=pl.when(pl.col("total_ns") > 0).then(pl.col("critical_ns") / pl.col("total_ns")))
        .sort("kernel_id")
    )


def _checks(network: Network, schedule: Schedule, steps: pl.DataFrame, binding: Numbers) -> pl.DataFrame:
    """Figures that hold by construction when nothing is wrong, and the share of device work with a binding edge."""
    count = len(network.start_ns)
    own = int(steps.get_column("own_ns").sum()) + int(steps.get_column("lag_ns").sum())
    last = int((network.start_ns + network.weight_ns).max()) if count else 0
    final = steps.select(pl.col("start_ns") + pl.col("own_ns")).to_series()
    tail = last - int(final[-1]) if steps.height else 0
    on_device = (network.nodes.get_column("activity_kind") != "api_call").to_numpy()
    bound = (binding >= 0)[on_device]
    figures = {
        "path_within_window": float(schedule.path_ns <= schedule.window_ns),
        "path_is_sum_of_steps": float(own == schedule.path_ns),
        "unexplained_is_sum_of_waits": float(int(steps.get_column("wait_ns").sum()) + tail == schedule.unexplained_ns),
        "acyclic": float(is_acyclic(network)),
        "bound_start_ratio": float(bound.mean()) if len(bound) else 1.0,
    }
    return pl.DataFrame({"check": list(figures), "value": list(figures.values())})
