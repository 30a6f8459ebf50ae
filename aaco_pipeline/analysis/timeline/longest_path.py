"""The longest path through a network of activities, and what every activity could be delayed by.

The critical path method needs longest paths. The observed schedule turns them into shortest ones: an edge's wait,
the target's observed start minus the earliest one the edge allows, is never negative, and along any path the waits
are exactly what the path is shorter than the time between its ends. The longest path is the one with the least
waiting, which Dijkstra's algorithm finds in compiled code without a topological order: ES(v) = start(v) - window start
- least waiting up to v, and backwards alike. The frames made of it are `critical_path`'s.
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


def earliest_finish(network: Network, weights: Numbers) -> Numbers:
    """When each node would end, ns from the window's start, if nothing waited but for what it depends on.

    The nodes have these weights, none above the observed one.
    """
    graph = _Graph(network, edge_waits(network, weights), weights, 1)
    least, _ = graph.forward(predecessors=False)
    return network.start_ns - graph.window_start - least[: graph.count] + weights


def is_acyclic(network: Network) -> bool:
    """Whether no activity depends on itself; edges never go back in time, so only edges within an instant matter."""
    within = network.start_ns[network.source] == network.start_ns[network.target]
    if not within.any():
        return True
    if np.any(network.source[within] == network.target[within]):
        return False
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    own, numbered = np.unique(np.concatenate([network.source[within], network.target[within]]), return_inverse=True)
    half = int(within.sum())
    graph = csr_array((np.ones(half), (numbered[:half], numbered[half:])), shape=(len(own), len(own)))
    parts, _ = connected_components(graph, directed=True, connection="strong")
    return int(parts) == len(own)


def first_start(network: Network) -> int:
    """When the first node started; zero without nodes."""
    return int(network.start_ns.min()) if network.nodes.height else 0


class _Graph:
    """The network between a source (the window's start) and a sink (its end), each edge as long as its wait."""

    def __init__(self, network: Network, waits: Numbers, weights: Numbers, stretch: int) -> None:
        start = network.start_ns * stretch
        count = len(start)
        end = start + weights
        self.count, self.source, self.sink = count, count, count + 1
        self.window_start = first_start(network) * stretch
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
        from scipy.sparse.csgraph import dijkstra

        found: Any = dijkstra(
            _rows_of(self.first, self.second, self.wait, self.count + 2),
            indices=self.source,
            return_predecessors=predecessors,
        )
        least, before = found if predecessors else (found, np.empty(0, np.int32))
        return _whole(least), before

    def backward(self) -> Numbers:
        """The least waiting from each node to the sink."""
        from scipy.sparse.csgraph import dijkstra

        return _whole(dijkstra(_rows_of(self.second, self.first, self.wait, self.count + 2), indices=self.sink))

    def free_slack(self, least: Numbers) -> Numbers:
        """How much later each node could end without a successor's earliest start moving."""
        room = self.wait + least[self.first] - least[self.second]
        free = np.full(self.count + 2, np.iinfo(np.int64).max)
        np.minimum.at(free, self.first, room)
        return free[: self.count]

    def path(self, before: npt.NDArray[np.int32]) -> Numbers:
        """The nodes from the source to the sink by their predecessors; walked in compiled code."""
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import breadth_first_order

        linked = before >= 0
        pointers = np.concatenate([[0], np.cumsum(linked)])
        size = self.count + 2
        chain = csr_array((np.ones(int(pointers[-1])), before[linked], pointers), shape=(size, size))
        order = breadth_first_order(chain, self.sink, directed=True, return_predecessors=False)
        inner: Numbers = order[::-1].astype(np.int64)
        found: Numbers = inner[(inner != self.source) & (inner != self.sink)]
        return found


def _rows_of(first: Nodes, second: Nodes, wait: Numbers, count: int) -> "csr_array":
    """The graph with an entry per edge, parallel ones and those of length zero included."""
    from scipy.sparse import csr_array

    order = np.argsort(first, kind="stable")
    pointers = np.concatenate([[0], np.cumsum(np.bincount(first, minlength=count))])
    return csr_array((wait[order].astype(np.float64), second[order], pointers.astype(np.int32)), shape=(count, count))


def _whole(distances: npt.NDArray[np.float64]) -> Numbers:
    """Distances as int64; the source reaches every node, only it and the sink may be out of reach of each other."""
    return np.where(np.isfinite(distances), distances, 0).astype(np.int64)
