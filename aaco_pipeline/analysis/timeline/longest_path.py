"""The longest path through a network of activities, and the slack of every activity.

The critical path method needs longest paths. The observed schedule turns them into shortest paths: an edge's wait, the
target's observed start minus the earliest one that the edge allows, is never negative. Along any path, the waits add up
to the time between its ends minus the path's length. The longest path therefore has the least waiting, which Dijkstra's
algorithm finds in compiled code without a topological order: ES(v) = start(v) - window start - least waiting up to v,
and likewise backwards. `critical_path` converts it to frames.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from aaco_pipeline.analysis.timeline.dependency_graph import Network

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Numbers = npt.NDArray[np.int64]
Nodes = npt.NDArray[np.int32]
#: Integer nanoseconds up to this value are exact in float64, which the graph routines use.
_EXACT: Final = 2**53


@dataclass(frozen=True)
class Schedule:
    """Earliest times and slack of every node, in ns from the start of the window, and the longest path.

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
        """Return the time that no activity and no lag on the longest path explains."""
        return self.window_ns - self.path_ns


def edge_waits(network: Network, weights: Numbers | None = None, scale: int = 1) -> Numbers:
    """Return how long each edge's target waited beyond the edge, in ns, never negative; optionally with other weights.

    `scale` multiplies the observed schedule, so that waits stay non-negative with longer weights. Raises ValueError for
    a network whose edges contradict its times.
    """
    start = network.start_ns * scale
    weight = network.weight_ns if weights is None else weights
    left = start[network.source] + np.where(network.from_start, 0, weight[network.source])
    waits: Numbers = start[network.target] - left - network.lag_ns
    if len(waits) and waits.min() < 0:
        message = "an activity of the network starts before what it depends on is over"
        raise ValueError(message)
    return waits


def schedule_of(network: Network, waits: Numbers) -> Schedule:
    """Run the forward and the backward pass over the network with these edge waits."""
    ends = _Ends(network)
    graph = _Graph(network, ends, waits, network.weight_ns, 1)
    least, before = graph.forward(_Rows(ends.first, ends.second, ends.count + 2), predecessors=True)
    after = graph.backward()
    count = ends.count
    least_wait = int(least[ends.sink])
    slack = least[:count] + after[:count] - least_wait
    return Schedule(
        earliest_start_ns=network.start_ns - graph.window_start - least[:count],
        slack_ns=slack,
        free_slack_ns=graph.free_slack(least),
        window_ns=graph.window_ns,
        path_ns=graph.window_ns - least_wait,
        path=graph.path(before),
    )


class LongestPaths:
    """The longest path of one network with other node weights; quantities that depend only on edges are cached."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._ends = _Ends(network)
        self._by_first = _Rows(self._ends.first, self._ends.second, self._ends.count + 2)

    def length(self, weights: Numbers) -> int:
        """Return the length in ns of the longest path with these node weights (>= 0), including lags."""
        longer = weights > self._network.weight_ns
        if np.any(longer & (self._network.weight_ns == 0)):
            # This would need an unbounded scale.
            message = "a node without weight cannot become longer"
            raise ValueError(message)
        scale = int((-(-weights[longer] // self._network.weight_ns[longer])).max(initial=1))
        waits = edge_waits(self._network, weights, scale)
        graph = _Graph(self._network, self._ends, waits, weights, scale)
        least, _ = graph.forward(self._by_first, predecessors=False)
        return graph.window_ns - int(least[self._ends.sink])


def earliest_finish(network: Network, weights: Numbers) -> Numbers:
    """When each node would end, in ns from the window's start, if it waited only for its dependencies.

    `weights` are the nodes' own times, none above the observed one.
    """
    ends = _Ends(network)
    graph = _Graph(network, ends, edge_waits(network, weights), weights, 1)
    least, _ = graph.forward(_Rows(ends.first, ends.second, ends.count + 2), predecessors=False)
    return network.start_ns - graph.window_start - least[: ends.count] + weights


def first_start(network: Network) -> int:
    """Start of the first node; zero without nodes."""
    return int(network.start_ns.min()) if network.nodes.height else 0


class _Ends:
    """Return the edges of the network, plus those to a source (the window's start) and a sink (its end).

    The source leads to the `roots`, which have no predecessor; `leaves`, for whose end nothing waits, lead to the sink.
    """

    def __init__(self, network: Network) -> None:
        count = network.nodes.height
        self.count, self.source, self.sink = count, count, count + 1
        rooted = np.ones(count, np.bool_)
        rooted[network.target] = False
        self.roots = np.flatnonzero(rooted)
        ending = np.ones(count, np.bool_)
        ending[network.source[~network.from_start]] = False
        self.leaves = np.flatnonzero(ending)
        sources, sinks = (np.full(len(own), one) for own, one in ((self.roots, count), (self.leaves, count + 1)))
        self.first = np.concatenate([network.source, sources, self.leaves]).astype(np.int32)
        self.second = np.concatenate([network.target, self.roots, sinks]).astype(np.int32)


class _Rows:
    """Edges by their first node, as the graph routines expect them: one entry each, including parallel edges."""

    def __init__(self, first: Nodes, second: Nodes, count: int) -> None:
        self._count = count
        self._order = np.argsort(first, kind="stable").astype(np.int32)
        self._pointers = np.concatenate([[0], np.cumsum(np.bincount(first, minlength=count))]).astype(np.int32)
        self._second = second[self._order]

    def graph(self, wait: Numbers) -> "csr_array":
        """Return the graph with these edge lengths, including those of length zero."""
        from scipy.sparse import csr_array

        lengths = wait[self._order].astype(np.float64)
        return csr_array((lengths, self._second, self._pointers), shape=(self._count, self._count))


class _Graph:
    """The network between its source and its sink, with each edge as long as its wait."""

    def __init__(self, network: Network, ends: _Ends, waits: Numbers, weights: Numbers, scale: int) -> None:
        start = network.start_ns * scale
        end = start + weights
        self._ends = ends
        self.window_start = first_start(network) * scale
        last = int(end.max()) if ends.count else 0
        self.window_ns = last - self.window_start
        if self.window_ns >= _EXACT:
            message = f"a window of {self.window_ns} ns is too long to be computed exactly"
            raise ValueError(message)
        self.wait = np.concatenate([waits, start[ends.roots] - self.window_start, last - end[ends.leaves]])

    def forward(self, rows: _Rows, *, predecessors: bool) -> tuple[Numbers, npt.NDArray[np.int32]]:
        """The least waiting from the source to each node, and each node's predecessor on such a path."""
        from scipy.sparse.csgraph import dijkstra

        found: Any = dijkstra(rows.graph(self.wait), indices=self._ends.source, return_predecessors=predecessors)
        least, before = found if predecessors else (found, np.empty(0, np.int32))
        return _whole(least), before

    def backward(self) -> Numbers:
        """The least waiting from each node to the sink."""
        from scipy.sparse.csgraph import dijkstra

        rows = _Rows(self._ends.second, self._ends.first, self._ends.count + 2)
        return _whole(dijkstra(rows.graph(self.wait), indices=self._ends.sink))

    def free_slack(self, least: Numbers) -> Numbers:
        """Return the largest delay of each node's end that does not move a successor's earliest start."""
        ends = self._ends
        room = self.wait + least[ends.first] - least[ends.second]
        free = np.full(ends.count + 2, np.iinfo(np.int64).max)
        np.minimum.at(free, ends.first, room)
        return free[: ends.count]

    def path(self, before: npt.NDArray[np.int32]) -> Numbers:
        """The nodes from the source to the sink by their predecessors; followed in compiled code."""
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import breadth_first_order

        linked = before >= 0
        pointers = np.concatenate([[0], np.cumsum(linked)])
        ends, size = self._ends, self._ends.count + 2
        chain = csr_array((np.ones(int(pointers[-1])), before[linked], pointers), shape=(size, size))
        order = breadth_first_order(chain, ends.sink, directed=True, return_predecessors=False)
        inner: Numbers = order[::-1].astype(np.int64)
        found: Numbers = inner[(inner != ends.source) & (inner != ends.sink)]
        return found


def _whole(distances: npt.NDArray[np.float64]) -> Numbers:
    """Return distances as int64; the source reaches every node, and only source and sink may be disconnected."""
    return np.where(np.isfinite(distances), distances, 0).astype(np.int64)
