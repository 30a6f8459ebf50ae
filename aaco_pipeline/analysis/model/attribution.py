"""Attribute kernel time to model nodes or framework operators, with the attributed fraction.

`graph_provenance` traces node names back through rewritten graphs.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import polars as pl

from aaco_pipeline.analysis.kernels.grammar import fused_operators
from aaco_pipeline.analysis.model.graph_provenance import BY_MANGLED_NAME, BY_NAME, BY_ORDER, Graph
from aaco_pipeline.analysis.model.launching_operators import (
    OPERATOR_DOMAIN,
    launching_operators,
    operator_kernels,
    operators_of_dispatches,
)
from aaco_pipeline.analysis.model.node_mapping import (
    Chains,
    TensorType,
    map_kernels,
    non_constant_node_count,
    runtime_types,
)
from aaco_pipeline.analysis.sessions.metrics import METRICS, amplification_metrics, kernels_per_iteration
from aaco_pipeline.lake.evidence import Evidence

#: Operator implied by a family if a library kernel does not name its operators: only order can match it.
_OPERATOR_OF_FAMILY: Final[Mapping[str, str]] = {
    "attention": "attention",
    "conv": "convolution",
    "gemm": "dot",
    "norm": "layernorm",
    "pool": "pooling",
    "softmax": "softmax",
}
#: Prefix of migraphx-driver's marker texts (MIGraphX, Developer documentation: roctx).
_MARKER_PREFIX: Final = "Marker start: "
_WHOLE: Final = ""


@dataclass(frozen=True)
class DeviceTrace:
    """Canonical tables of the profiled pass: its counted dispatches and their launch data."""

    dispatches: pl.DataFrame
    kernels: pl.DataFrame
    api_calls: pl.DataFrame
    markers: pl.DataFrame


@dataclass(frozen=True)
class DeviceMapping:
    """Result of mapping a device's kernels.

    `operator_kernels`: the table's rows. `covered`: kernel_id and node_id of every node that a kernel executed.
    `nodes_per_kernel`: mean number of nodes covered by an attributed dispatch; None if there is none.
    """

    operator_kernels: pl.DataFrame
    covered: pl.DataFrame
    nodes_per_kernel: float | None


@dataclass(frozen=True)
class _Found:
    """The chain executed at a position of a sequence, and the evidence."""

    chain: tuple[int, ...]
    match: str
    score: float


@dataclass
class _Sequence:
    """Launches of one iteration in one partition: their operator lists by position, and the named nodes."""

    lists: Sequence[tuple[str, ...]]
    inferred: Sequence[bool]
    named: Mapping[int, int]
    found: dict[int, _Found] = field(default_factory=dict)


def map_device_kernels(
    trace: DeviceTrace,
    nodes: pl.DataFrame,
    initializers: Collection[str] = (),
    partitions: Mapping[str, Sequence[str]] | None = None,
) -> DeviceMapping:
    """Attribute a GPU's dispatches to nodes of the model's graph, or to none.

    Args:
        trace: The profiled pass.
        nodes: The nodes of a `ModelGraph`.
        initializers: Names of the model's weights.
        partitions: The names of each partition's nodes in order, by partition name, if the runtime dumped its
            partitions; a marker of that name around a launch links it to the partition.
    """
    graph = Graph.of(nodes, initializers)
    pools = _pools(graph, partitions or {})
    asked = _asked(trace, graph, pools)
    places, sequences = _sequences(asked)
    chains = Chains(graph)
    for partition, sequence in sequences:
        _align(sequence, chains, pools.get(partition, pools[_WHOLE]))
    return _mapping(asked, places, [sequence for _, sequence in sequences], chains)


def _pools(graph: Graph, partitions: Mapping[str, Sequence[str]]) -> dict[str, list[int]]:
    """Return the nodes that can have run, in order, per partition and in total; constants were computed beforehand."""

    def known(names: Sequence[str]) -> list[int]:
        found = [graph.by_name.get(name, ()) for name in names]
        return [nodes[0] for nodes in found if len(nodes) == 1 and nodes[0] not in graph.constant]

    pools = {name: known(names) for name, names in partitions.items()}
    together = [node for pool in pools.values() for node in pool]
    everything = [node for node in range(len(graph.op_types)) if node not in graph.constant]
    return {**pools, _WHOLE: together or everything}


def _asked(trace: DeviceTrace, graph: Graph, pools: Collection[str]) -> pl.DataFrame:
    """Return the dispatches in execution order, with the evidence from names and from markers around launches.

    Additional columns: node (named by a marker), partition, list (operators, separated by spaces) and inferred (whether
    the list comes from the kernel's family).
    """
    texts = trace.markers.select("name").unique(maintain_order=True).get_column("name").to_list()
    named = {text: node for text in texts if (node := _node_named(text, graph)) is not None}
    instructions = {text: operators for text in texts if (operators := tuple(fused_operators(_plain(text))))}
    around = trace.dispatches.select("dispatch_id", "iteration", "kernel_id", "self_ns", "start_ns")
    for column, wanted in (("node", named), ("instruction", instructions), ("partition", set(pools) - {_WHOLE})):
        around = around.join(_around(trace, wanted, column), on="dispatch_id", how="left")
    listed = [_listed(row) for row in trace.kernels.select("short_name", "family", "role").iter_rows(named=True)]
    by_kernel = trace.kernels.select(
        "kernel_id",
        of_kernel=pl.Series([" ".join(operators) for operators, _ in listed], dtype=pl.String),
        inferred=pl.Series([inferred for _, inferred in listed], dtype=pl.Boolean),
    )
    lists = {text: " ".join(operators) for text, operators in instructions.items()}
    return (
        around.join(by_kernel, on="kernel_id", how="left")
        .with_columns(
            node=pl.col("node").replace_strict(named, default=None, return_dtype=pl.Int64),
            partition=pl.col("partition").fill_null(_WHOLE),
            of_marker=pl.col("instruction").replace_strict(lists, default=None, return_dtype=pl.String),
        )
        .with_columns(
            list=pl.coalesce("of_marker", "of_kernel").fill_null(""),
            inferred=pl.col("inferred") & pl.col("of_marker").is_null(),
        )
        .sort("iteration", "partition", "start_ns", "dispatch_id")
    )


def _around(trace: DeviceTrace, wanted: Collection[str], column: str) -> pl.DataFrame:
    """Columns dispatch_id and `column`: the innermost of the wanted ranges that was open at the launch."""
    ranges = trace.markers.filter(pl.col("name").is_in(list(wanted))).select(
        "process_id",
        "thread_id",
        "name",
        "start_ns",
        "end_ns",
        domain=pl.lit(OPERATOR_DOMAIN),
        call_id="marker_id",
        correlation_id=pl.lit(None, pl.UInt64),
    )
    calls = trace.api_calls.filter(pl.col("domain") != OPERATOR_DOMAIN).select(ranges.columns)
    found = launching_operators(trace.dispatches, pl.concat([calls, ranges]))
    return found.select("dispatch_id", pl.col("operator").alias(column))


def _plain(text: str) -> str:
    return text.removeprefix(_MARKER_PREFIX).strip()


def _node_named(text: str, graph: Graph) -> int | None:
    nodes = graph.by_name.get(_plain(text), ())
    return nodes[0] if len(nodes) == 1 else None


def _listed(kernel: Mapping[str, str | None]) -> tuple[tuple[str, ...], bool]:
    """Return a kernel's operators, and whether they were inferred from its family."""
    operators = tuple(fused_operators(kernel["short_name"] or ""))
    if operators or kernel["role"] == "auxiliary":
        return operators, False
    operator = _OPERATOR_OF_FAMILY.get(kernel["family"] or "")
    return ((operator,), True) if operator else ((), False)


def _sequences(asked: pl.DataFrame) -> tuple[pl.DataFrame, list[tuple[str, _Sequence]]]:
    """Return the sequence and position of each dispatch (in order), and each distinct sequence with its partition.

    Iterations run the same kernels for the same nodes, so a result for one applies to all equal ones.
    """
    codes = asked.select(
        pl.col("list").cast(pl.Categorical).to_physical().cast(pl.Int64),
        pl.col("node").fill_null(-1),
        pl.col("inferred").fill_null(False).cast(pl.Int64),
    ).to_numpy()
    groups = asked.select(group=pl.struct("iteration", "partition").rle_id().cast(pl.Int64)).to_series()
    bounds = np.flatnonzero(np.diff(groups.to_numpy(), prepend=-1, append=-1))
    known: dict[tuple[str, bytes], int] = {}
    sequences: list[tuple[str, _Sequence]] = []
    number, position = np.zeros(asked.height, np.int64), np.zeros(asked.height, np.int64)
    for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        partition = asked.item(first, "partition")
        key = (partition, codes[first:last].tobytes())
        if key not in known:
            known[key] = len(sequences)
            sequences.append((partition, _sequence(asked[first:last])))
        number[first:last] = known[key]
        position[first:last] = np.arange(last - first)
    return pl.DataFrame({"sequence": number, "position": position}), sequences


def _sequence(part: pl.DataFrame) -> _Sequence:
    nodes = part.select("node").with_row_index("position").drop_nulls()
    return _Sequence(
        [tuple(text.split()) for text in part.get_column("list").to_list()],
        part.get_column("inferred").fill_null(False).to_list(),
        dict(nodes.iter_rows()),
    )


def _align(sequence: _Sequence, chains: Chains, pool: Sequence[int]) -> None:
    """Assign nodes to the positions of a sequence: named ones first, then lists of operators, longest first."""
    taken: set[int] = set()
    for position, node in sequence.named.items():
        # A range names one node; the marker does not show the other work of the kernel inside it.
        sequence.found[position] = _Found((node,), "marker", BY_NAME)
        taken.add(node)
    positions: dict[tuple[str, ...], list[int]] = defaultdict(list)
    inferred: dict[tuple[str, ...], bool] = defaultdict(bool)
    for position, operators in enumerate(sequence.lists):
        needed = chains.needed(operators)
        if needed and position not in sequence.found:
            positions[needed].append(position)
            inferred[needed] |= sequence.inferred[position]
    for needed in sorted(positions, key=lambda one: (-len(one), one)):
        there = chains.disjoint(needed, pool, taken)
        if len(there) != len(positions[needed]):
            continue
        alone = len(there) == 1 and not inferred[needed]
        match, score = ("name", BY_MANGLED_NAME) if alone else ("order", BY_ORDER)
        for position, chain in zip(positions[needed], there, strict=True):
            sequence.found[position] = _Found(chain, match, score)
            taken.update(chain)
    _drop_contradictions(sequence, chains)


def _drop_contradictions(sequence: _Sequence, chains: Chains) -> None:
    """Remove matches in which a kernel runs before one whose result it reads, on both sides, except markers."""
    ran: dict[int, int] = {}
    for position, found in sorted(sequence.found.items()):
        for node in found.chain:
            ran.setdefault(node, position)
    wrong: set[int] = set()
    for node, position in ran.items():
        for reader in chains.followers(node):
            if ran.get(reader, position) < position:
                wrong |= {position, ran[reader]}
    lists = {chains.needed(sequence.lists[position]) for position in wrong}
    for position in list(sequence.found):
        if sequence.found[position].match != "marker" and chains.needed(sequence.lists[position]) in lists:
            del sequence.found[position]


def _mapping(
    asked: pl.DataFrame, places: pl.DataFrame, sequences: Sequence[_Sequence], chains: Chains
) -> DeviceMapping:
    rows = [
        (number, position, chains.main_node(found.chain), found.match, found.score, list(found.chain))
        for number, sequence in enumerate(sequences)
        for position, found in sorted(sequence.found.items())
    ]
    parts = asked.hstack(places).select("kernel_id", "self_ns", "iteration", "sequence", "position")
    parts = parts.join(pl.DataFrame(rows, schema=_FOUND, orient="row"), on=("sequence", "position"), how="left")
    parts = parts.with_columns(
        pl.col("match").fill_null("unattributed"),
        operator=pl.lit(None, pl.String),
        outermost_operator=pl.lit(None, pl.String),
    )
    attributed = parts.drop_nulls("node_id")
    covered = attributed.select("kernel_id", node_id="covered").unique().explode("node_id").unique()
    nodes = int(attributed.get_column("covered").list.len().sum())
    return DeviceMapping(
        operator_kernels(parts),
        covered.sort("kernel_id", "node_id"),
        nodes / attributed.height if attributed.height else None,
    )


_FOUND: Final = pl.Schema(
    {
        **{"sequence": pl.Int64(), "position": pl.Int64(), "node_id": pl.Int32(), "match": pl.String()},
        **{"score": pl.Float64(), "covered": pl.List(pl.Int32())},
    }
)


@dataclass(frozen=True)
class Attribution:
    """Return `operator_kernels` with the table's columns. `types`: tensor types as the kernels saw them, by name."""

    operator_kernels: pl.DataFrame
    evidence: tuple[Evidence, ...] = ()
    types: Mapping[str, TensorType] = field(default_factory=dict)
    nodes_per_kernel: float | None = None

    @property
    def time_ratio(self) -> float | None:
        """Return the fraction of kernel time that has an operator; None without time."""
        total = int(self.operator_kernels.get_column("total_ns").sum())
        found = self.operator_kernels.filter(pl.col("match") != "unattributed")
        return int(found.get_column("total_ns").sum()) / total if total else None


def by_profile(
    tables: Mapping[str, pl.DataFrame],
    nodes: pl.DataFrame,
    weights: Collection[str],
    executed: pl.DataFrame | None,
    kernel_shapes: pl.DataFrame | None,
    *,
    source: str,
) -> Attribution:
    """Attribute the kernels of a runtime whose profile names its nodes, from the tables kernels and kernel_stats.

    Args:
        tables: kernels and kernel_stats.
        nodes: The model's nodes.
        weights: Names of the model's initializers.
        executed: Nodes of the runtime's optimized graph; None if it saved none.
        kernel_shapes: The detail of that name from the profile's reader.
        source: The model's file, cited as evidence.
    """
    mapping = map_kernels(tables["kernels"], tables["kernel_stats"], executed, nodes, weights)
    seen: Mapping[str, TensorType] = {}
    if executed is not None and kernel_shapes is not None:
        seen = runtime_types(mapping, kernel_shapes, executed, nodes)
    items = []
    if mapping.inserted.height:
        names = ", ".join(mapping.inserted.get_column("op_type").unique().sort().to_list())
        reason = f"kernels the runtime put in have no node: {names}"
        items.append(Evidence("inserted kernels", "partial", reason, source))
    lost = mapping.operator_kernels.filter(pl.col("node_id").is_null()).height - mapping.inserted.height
    if lost:
        items.append(Evidence("kernels to nodes", "partial", f"{lost} kernels could not be traced to a node", source))
    return Attribution(mapping.operator_kernels, tuple(items), seen)


def by_device(
    trace: DeviceTrace, nodes: pl.DataFrame, weights: Collection[str], partitions: Mapping[str, Sequence[str]]
) -> Attribution:
    """Attribute a GPU's kernels that its compiler named; the runtime's profile has no shapes within a partition."""
    mapping = map_device_kernels(trace, nodes, weights, partitions)
    rows = mapping.operator_kernels
    total = int(rows.get_column("dispatch_count").sum())
    lost = int(rows.filter(pl.col("match") == "unattributed").get_column("dispatch_count").sum())
    reason = f"{lost} of {total} dispatches could not be traced to a node by markers, names or order"
    item = Evidence("kernels to nodes", "partial" if lost else "present", reason if lost else None, None, total - lost)
    return Attribution(rows, (item,), nodes_per_kernel=mapping.nodes_per_kernel)


def by_operators(dispatches: pl.DataFrame, api_calls: pl.DataFrame) -> Attribution:
    """Attribute the kernels of a framework whose operators were recorded, without a model."""
    parts = operators_of_dispatches(dispatches, api_calls)
    unknown = parts.filter(pl.col("match") == "unattributed").height
    if api_calls.filter(pl.col("domain") == OPERATOR_DOMAIN).is_empty():
        item = Evidence("operators", "absent", "the capture holds no calls of a framework's operators")
    elif unknown:
        reason = f"{unknown} of {parts.height} dispatches have no known launch, or one outside every operator"
        item = Evidence("operators", "partial", reason, "api_calls", parts.height - unknown)
    else:
        item = Evidence("operators", "present", None, "api_calls", parts.height)
    return Attribution(operator_kernels(parts), (item,))


def model_metrics(
    dispatches: pl.DataFrame,
    iterations: pl.DataFrame,
    model: tuple[pl.DataFrame, Collection[str]],
    executed: tuple[pl.DataFrame, Collection[str]] | None,
    nodes_per_kernel: float | None,
) -> pl.DataFrame:
    """Rows of `session_metrics`: kernels per node, and on a GPU the nodes per kernel.

    `model` and `executed` are a graph's nodes with the names of its weights; None if the runtime saved no graph.
    """
    rows = amplification_metrics(
        kernels_per_iteration(dispatches, iterations),
        dispatches.height,
        None if executed is None else non_constant_node_count(*executed),
        non_constant_node_count(*model),
        model[0].height,
    )
    if nodes_per_kernel is None:
        return rows
    fused = {"metric": "nodes_per_kernel", "pass": "trace", "phase": "measure", "unit": "ratio"}
    return pl.concat([rows, pl.DataFrame([{**fused, "value": nodes_per_kernel}], schema=METRICS)])
