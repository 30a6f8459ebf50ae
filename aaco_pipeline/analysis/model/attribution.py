"""Where the kernels' time went in the model, or among a framework's operators, and how much of it found a place.

How a kernel is traced to a node is `node_mapping` for kernels that the runtime's profile names, `device_kernel_nodes`
for kernels that a compiler named, and `operator_kernels` for the operators of a framework.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl

from aaco_pipeline.analysis.model.device_kernel_nodes import DeviceTrace, map_device_kernels
from aaco_pipeline.analysis.model.launching_operators import OPERATOR_DOMAIN
from aaco_pipeline.analysis.model.node_mapping import (
    TensorType,
    map_kernels,
    non_constant_node_count,
    runtime_types,
)
from aaco_pipeline.analysis.model.operator_kernels import operator_kernels, operators_of_dispatches
from aaco_pipeline.analysis.sessions.metrics import METRICS, amplification_metrics, kernels_per_iteration
from aaco_pipeline.lake.evidence import Evidence


@dataclass(frozen=True)
class Attribution:
    """`operator_kernels`: the table's columns. `types`: tensors' types as the kernels saw them, by name."""

    operator_kernels: pl.DataFrame
    evidence: tuple[Evidence, ...] = ()
    types: Mapping[str, TensorType] = field(default_factory=dict)
    nodes_per_kernel: float | None = None

    @property
    def time_ratio(self) -> float | None:
        """The share of the kernels' time that has an operator; None without time."""
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
    """The kernels of a runtime whose profile names its nodes, from the tables kernels and kernel_stats.

    `nodes` are the model's, `executed` those of the graph that the runtime made of it, None where it left none;
    `weights` names of the model's initializers. `source` is the model's file, for the evidence.
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
    """A GPU's kernels, named by whoever compiled them; the runtime's profile has no shapes within a partition."""
    mapping = map_device_kernels(trace, nodes, weights, partitions)
    rows = mapping.operator_kernels
    total = int(rows.get_column("dispatch_count").sum())
    lost = int(rows.filter(pl.col("match") == "unattributed").get_column("dispatch_count").sum())
    reason = f"{lost} of {total} dispatches could not be traced to a node by markers, names or order"
    item = Evidence("kernels to nodes", "partial" if lost else "present", reason if lost else None, None, total - lost)
    return Attribution(rows, (item,), nodes_per_kernel=mapping.nodes_per_kernel)


def by_operators(dispatches: pl.DataFrame, api_calls: pl.DataFrame) -> Attribution:
    """The kernels of a framework whose operators were recorded, and no model."""
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
    """Rows of `session_metrics`: kernels for each node, and on a GPU the nodes for each kernel.

    `model` and `executed` are a graph's nodes with the names of its weights; None where the runtime left no graph.
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
