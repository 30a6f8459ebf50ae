"""The critical path: slack and binding edges of activities, its steps, and the savings from a faster kernel.

`dependency_graph` builds the network; `longest_path` searches it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from aaco_pipeline.analysis.timeline.activities import Recorded
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
    network,
)
from aaco_pipeline.analysis.timeline.device_timeline import bounds, coverage, covered_by
from aaco_pipeline.analysis.timeline.longest_path import (
    LongestPaths,
    Nodes,
    Numbers,
    Schedule,
    earliest_finish,
    edge_waits,
    first_start,
    schedule_of,
)
from aaco_pipeline.lake.contracts import polars_types
from aaco_pipeline.lake.validation import empty_table, to_contract

#: Categories of an edge's lag, by kind.
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


@dataclass(frozen=True)
class CriticalPath:
    """Frames of the analysis.

    `activities`: rows of the table `critical_path` without the session and criticality, with the kernel_id. `summary`:
    rows of `critical_path_summary` without the session. `kernels`: kernel_id, total_ns, critical_ns, criticality (the
    fraction of the kernel's time on a longest path). `steps`: the path, one row per node with the edge that led to it,
    its lag, its wait and the node's own time. `bound_start_ratio`: the fraction of device activities with a binding
    edge.
    """

    activities: pl.DataFrame
    summary: pl.DataFrame
    kernels: pl.DataFrame
    steps: pl.DataFrame
    bound_start_ratio: float


def critical_path(network: Network) -> CriticalPath:
    """Compute slack, binding edges and the longest path of the complete session.

    An activity's binding edge is the dependency that was observed to be met last. An activity is critical if its slack
    is zero; there may be several longest paths, one of which is in `steps`.
    """
    waits = edge_waits(network)
    schedule = schedule_of(network, waits)
    steps = _steps(network, schedule, waits)
    binding = _least_wait(network.target, waits, len(network.start_ns))
    kernels = _kernel_criticality(network, schedule)
    on_device = (network.nodes.get_column("activity_kind") != "api_call").to_numpy()
    bound = float((binding >= 0)[on_device].mean()) if on_device.any() else 1.0
    # The largest frame is built last, when no other intermediate results are alive.
    rows = _rows(network, schedule, waits, binding)
    return CriticalPath(rows, _summary(schedule, steps), kernels, steps, bound)


def path_by_iteration(steps: pl.DataFrame, iterations: pl.DataFrame) -> pl.DataFrame:
    """Rows of `critical_path_summary` with the scope `iteration <n>`, for every iteration that has times.

    The path of the complete session is cut rather than recomputed: otherwise an iteration that waits for work of the
    previous one would seem to start independently. category_ns is the time within the iteration that the path spent in
    the category, in ns; the rest of the window is unexplained_ns. An iteration outside the path has one row, category
    `none` with zero.

    Args:
        steps: From `critical_path`.
        iterations: Rows of `iterations` for the pass to split by.
    """
    windows = iterations.filter(pl.col("end_ns") > pl.col("start_ns")).sort("iteration")
    if windows.is_empty():
        return pl.DataFrame(schema=polars_types("critical_path_summary"))
    parts = [
        windows.select(
            "iteration",
            pl.Series("category_ns", coverage(own).between(*bounds(windows)), pl.Int64),
            category=pl.lit(category, pl.String),
        )
        for (category,), own in _observed(steps).group_by("category")
    ]
    empty = pl.DataFrame(schema={"iteration": pl.Int32, "category_ns": pl.Int64, "category": pl.String})
    found = pl.concat([empty, *parts], how="vertical_relaxed").filter(pl.col("category_ns") > 0)
    rows = windows.select("iteration", window_ns=pl.col("end_ns") - pl.col("start_ns")).join(
        found, on="iteration", how="left"
    )
    path = pl.col("category_ns").sum().over("iteration")
    schema = polars_types("critical_path_summary")
    return (
        rows.with_columns(pl.col("category_ns").fill_null(0), pl.col("category").fill_null("none"))
        .with_columns(path_ns=path, unexplained_ns=pl.col("window_ns") - path)
        .with_columns(
            scope=pl.concat_str(pl.lit("iteration "), pl.col("iteration").cast(pl.String)),
            category_ratio=pl.when(pl.col("path_ns") > 0).then(pl.col("category_ns") / pl.col("path_ns")),
        )
        .select(pl.col(name).cast(dtype) for name, dtype in schema.items())
        .sort("scope", "category")
    )


def what_if(network: Network, speedups: Mapping[int, float]) -> int:
    """Return the reduction of the longest path, in ns, if each kernel runs `speedup` times as fast.

    `speedups` maps kernel_id to a factor above zero; below 1 the kernel is slower and the result negative. New
    durations are rounded to whole ns; everything else stays, and the forward pass is repeated.
    """
    return _saved(network, [speedups])[0]


def _saved(network: Network, asked: Sequence[Mapping[int, float]]) -> list[int]:
    """Return the saving of each of these speed-ups, as in `what_if`; the original path is computed once."""
    if any(not factor > 0 for speedups in asked for factor in speedups.values()):
        message = "a speed-up is a factor above zero"
        raise ValueError(message)
    paths = LongestPaths(network)
    whole = paths.length(network.weight_ns)
    return [whole - paths.length(faster_weights(network, speedups)) for speedups in asked]


def faster_weights(network: Network, speedups: Mapping[int, float]) -> Numbers:
    """Return the nodes' own times in whole ns if each kernel runs `speedup` times as fast, by kernel_id."""
    factor = network.nodes.get_column("kernel_id").replace_strict(
        list(speedups), list(speedups.values()), default=1.0, return_dtype=pl.Float64
    )
    weights: Numbers = np.rint(network.weight_ns / factor.fill_null(1.0).to_numpy()).astype(np.int64)
    return weights


def largest_savings(network: Network, kernels: pl.DataFrame, count: int, speedup: float) -> pl.DataFrame:
    """Rows of the table `what_if` for the `count` kernels with the most path time, each `speedup` times as fast.

    `kernels` comes from `critical_path`.
    """
    window = int((network.start_ns + network.weight_ns).max(initial=0)) - first_start(network)
    top = kernels.filter(pl.col("critical_ns") > 0).top_k(count, by=["critical_ns", "kernel_id"])
    saved = _saved(network, [{kernel: speedup} for kernel in top.get_column("kernel_id")]) if top.height else []
    return top.select(
        "kernel_id",
        "critical_ns",
        speedup_ratio=pl.lit(speedup),
        saved_ns=pl.Series(saved, dtype=pl.Int64),
        saved_ratio=pl.Series(saved, dtype=pl.Float64) / window if window else pl.lit(None, pl.Float64),
    ).sort("kernel_id")


def _at(values: npt.NDArray[Any], index: Numbers, otherwise: int) -> npt.NDArray[Any]:
    """Return the values at these positions; `otherwise` at position -1."""
    return np.append(values, np.array([otherwise], values.dtype))[index]


def _least_wait(target: Nodes, waits: Numbers, count: int) -> Numbers:
    """For each node, the incoming edge with the least wait (ties: the first); -1 if there is none."""
    binding = np.full(count, -1, np.int64)
    if not len(target):
        return binding
    firsts = np.flatnonzero(np.diff(target, prepend=-1))
    least = np.repeat(np.minimum.reduceat(waits, firsts), np.diff(firsts, append=len(target)))
    among = np.flatnonzero(waits == least)
    # Written backwards, so that the first of equal edges remains.
    binding[target[among[::-1]]] = among[::-1]
    return binding


def _rows(network: Network, schedule: Schedule, waits: Numbers, binding: Numbers) -> pl.DataFrame:
    """One row per activity; a blocking call's row describes its return, or its entry if no awaited work bound that."""
    nodes = network.nodes
    part = nodes.get_column("part")
    shown = np.flatnonzero((part != ENTRY).to_numpy())
    bound = binding[shown]
    waited = np.where(bound >= 0, _at(waits, bound, 0), network.start_ns[shown] - first_start(network))
    if (part == RETURN).any():
        returned = np.flatnonzero((part.gather(shown) == RETURN).to_numpy())
        entry = _entries(network, shown[returned])
        by_entry = _at(network.source, bound[returned], -1) == entry
        own, inner = returned[by_entry], entry[by_entry]
        bound[own] = binding[inner]
        alone = network.start_ns[inner] - first_start(network)
        waited[own] += np.where(bound[own] >= 0, _at(waits, bound[own], 0), alone)
    slack = schedule.slack_ns[shown]
    return nodes.filter(part != ENTRY).select(
        pl.col("activity_kind").cast(pl.String),
        "activity_id",
        "kernel_id",
        slack_ns=slack,
        free_slack_ns=schedule.free_slack_ns[shown],
        is_critical=slack == 0,
        binding_edge=_EDGE_NAMES.gather(_at(network.kind, bound, len(KINDS))).cast(pl.String),
        unexplained_wait_ns=waited,
    )


def _entries(network: Network, returns: Numbers) -> Numbers:
    """Return the entry node of each of these return nodes."""
    calls = network.nodes.with_row_index("node").filter(pl.col("part").is_in([ENTRY, RETURN]))
    pairs = calls.pivot("part", index=["activity_kind", "activity_id"], values="node")
    of_return = np.full(network.nodes.height, -1, np.int64)
    of_return[pairs.get_column(RETURN).to_numpy()] = pairs.get_column(ENTRY).to_numpy()
    return of_return[returns]


def _steps(network: Network, schedule: Schedule, waits: Numbers) -> pl.DataFrame:
    """Return the path with the edge that led to each node; a node that is left at its start counts no own time."""
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
        wait_ns=np.where(edge >= 0, _at(waits, edge, 0), network.start_ns[path] - first_start(network)),
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


def _observed(steps: pl.DataFrame) -> pl.DataFrame:
    """Return the observed time of the path: category, start_ns, end_ns; disjoint, without unexplained waits.

    A step's lag begins where the previous step was left; the wait follows the lag.
    """
    begun = pl.col("start_ns") - pl.col("wait_ns") - pl.col("lag_ns")
    lags = steps.select(pl.col("lag_category").cast(pl.String).alias("category"), begun.alias("start_ns"), "lag_ns")
    own = steps.select(pl.col("category").cast(pl.String), "start_ns", "own_ns")
    found = pl.concat([lags.rename({"lag_ns": "length_ns"}), own.rename({"own_ns": "length_ns"})])
    return (
        found.with_columns(end_ns=pl.col("start_ns") + pl.col("length_ns"))
        .filter(pl.col("length_ns") > 0)
        .select("category", "start_ns", "end_ns")
    )


Scope = Literal["iteration", "recording"]


def saving_of_kernel(run: Recorded, kernel: int, speedup: float) -> pl.DataFrame:
    """Return the row of `what_if` for one kernel and any speed-up above zero; none if the session has no activities."""
    if not run.activities.height:
        return empty_table("what_if")
    graph = network(run.activities, run.calls, run.waits)
    kernels = critical_path(graph).kernels.filter(pl.col("kernel_id") == kernel)
    found = largest_savings(graph, kernels, 1, speedup)
    if found.is_empty():
        nothing = {"kernel_id": kernel, "speedup_ratio": speedup, "critical_ns": 0, "saved_ns": 0, "saved_ratio": 0.0}
        found = pl.DataFrame([nothing])
    return to_contract("what_if", found)


@dataclass(frozen=True)
class Effect:
    """One kernel's effect on the length of an iteration, or of the recording if none is marked, as ratios.

    `share_ratio` is the kernel's time on the longest path, an upper bound on the gain. `shorter_ratios` is the
    reduction of the iteration for each speed-up: less than Amdahl's share x (1 - 1 / speed-up) if parallel work then
    becomes the longest path. Medians over the measured iterations.
    """

    scope: Scope
    share_ratio: float
    shorter_ratios: tuple[float, ...]


def effect_of_kernel(run: Recorded, iterations: pl.DataFrame, kernel: int, speedups: Sequence[float]) -> Effect | None:
    """Return the kernel's share of an iteration and its savings at each speed-up of 1 or more; None if no activities.

    `iterations` is the table. Raises ValueError for a speed-up below 1.
    """
    if not run.activities.height:
        return None
    return effect_in(network(run.activities, run.calls, run.waits), iterations, kernel, speedups)


def effect_in(graph: Network, iterations: pl.DataFrame, kernel: int, speedups: Sequence[float]) -> Effect | None:
    """Return `effect_of_kernel` for a network; None if its windows have no length.

    The path is recomputed for each speed-up. An iteration's reduction is the amount by which everything that had ended
    by its end would have ended earlier, minus the same at its beginning. Unexplained waits do not change.
    """
    if any(not factor >= 1 for factor in speedups):
        raise ValueError("an effect is asked of speed-ups of 1 or more")
    scope, starts, ends = _windows(graph, iterations)
    lengths = ends - starts
    if not lengths.any():
        return None
    own = critical_path(graph).steps.filter(pl.col("kernel_id") == kernel, pl.col("own_ns") > 0)
    begun = own.get_column("start_ns").to_numpy()
    on_path = covered_by(begun, begun + own.get_column("own_ns").to_numpy()).between(starts, ends)
    ended = graph.start_ns + graph.weight_ns
    order = np.argsort(ended, kind="stable")
    before = np.maximum.accumulate(earliest_finish(graph, graph.weight_ns)[order])
    shorter = []
    for factor in speedups:
        after = np.maximum.accumulate(earliest_finish(graph, faster_weights(graph, {kernel: factor}))[order])
        # How much earlier everything that had ended by each position of the order would have ended.
        saved = np.concatenate([[0], before - after])
        by_then = [saved[np.searchsorted(ended[order], times, side="right")] for times in (starts, ends)]
        shorter.append(float(np.median((by_then[1] - by_then[0]) / lengths)))
    return Effect(scope, float(np.median(on_path / lengths)), tuple(shorter))


def _windows(graph: Network, iterations: pl.DataFrame) -> tuple[Scope, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Starts and ends of the traced pass's measured iterations, in ns; the recording's if none has times."""
    marked = iterations.filter(
        pl.col("pass") == "trace", pl.col("phase") == "measure", pl.col("end_ns") > pl.col("start_ns")
    )
    if marked.height:
        return "iteration", marked.get_column("start_ns").to_numpy(), marked.get_column("end_ns").to_numpy()
    last = int((graph.start_ns + graph.weight_ns).max())
    return "recording", np.array([first_start(graph)]), np.array([last])
