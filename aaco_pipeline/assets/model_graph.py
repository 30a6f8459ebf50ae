"""The stage `model_graph`: the model's nodes and their work, its edges, and the kernels of each node.

The model is read in `aaco_pipeline.capture.measured`, work per node is computed in
`aaco_pipeline.analysis.model.operator_work`, and kernels are mapped to nodes in
`aaco_pipeline.analysis.model.attribution`.
"""

from typing import TYPE_CHECKING, Final

import polars as pl

from aaco_pipeline.analysis.model.attribution import (
    Attribution,
    DeviceTrace,
    by_device,
    by_operators,
    by_profile,
    model_metrics,
)
from aaco_pipeline.analysis.sessions import invariants
from aaco_pipeline.analysis.timeline.activities import counted_dispatches
from aaco_pipeline.assets.stage import Check, Outcome, Session, stage
from aaco_pipeline.lake.evidence import Evidence
from aaco_pipeline.lake.validation import empty_table, in_contract, to_contract

if TYPE_CHECKING:
    from aaco_pipeline.capture.face import Model

_READ: Final = ("kernels", "dispatches", "iterations", "api_calls", "markers", "kernel_stats")


@stage(
    reads=_READ,
    publishes=("model_nodes", "model_edges", "operator_kernels", "session_metrics"),
    group="analysis",
    kinds=("onnx", "rocm", "parquet"),
    checks=(
        Check(
            "conservation",
            "Operators' kernel time and the unattributed rest are the kernels' time, to the nanosecond.",
            lambda tables: invariants.operator_time_is_conserved(tables["operator_kernels"], tables["kernel_stats"]),
            ("operator_kernels", "kernel_stats"),
        ),
    ),
)
def model_graph(session: Session) -> Outcome:
    """What does the model compute, how much work is each node, and how much kernel time did each node take?"""
    tables = session.tables(*_READ)
    dispatches, _ = counted_dispatches(tables["dispatches"], tables["iterations"])
    model = session.capture.model()
    if model is None:
        return _without_model(by_operators(dispatches, tables["api_calls"]))
    # Imported only if there is a model.
    from aaco_pipeline.analysis.model.operator_work import work

    graph, optimized = model.graph, model.optimized
    weights = graph.weights
    if session.capture.facts().kernels_named_by == "compiler":
        trace = DeviceTrace(dispatches, tables["kernels"], tables["api_calls"], tables["markers"])
        found = by_device(trace, graph.nodes, weights, model.partitions)
    else:
        executed = None if optimized is None else optimized.nodes
        found = by_profile(tables, graph.nodes, weights, executed, model.kernel_shapes, source=model.file.name)
    inferred = model.inferred(found.types)
    nodes = graph.nodes.join(work(graph.nodes, graph.attributes, inferred.types, found.types), on="node_id")
    nodes = nodes.with_columns(pl.coalesce("name", pl.concat_str("op_type", pl.lit("_"), "node_id")))
    ran = None if optimized is None else (optimized.nodes, optimized.weights)
    metrics = model_metrics(dispatches, tables["iterations"], (graph.nodes, weights), ran, found.nodes_per_kernel)
    return Outcome(
        {
            "model_nodes": in_contract("model_nodes", nodes),
            "model_edges": to_contract("model_edges", inferred.edges),
            "operator_kernels": to_contract("operator_kernels", found.operator_kernels),
            "session_metrics": metrics,
        },
        [*_evidence(model, nodes, inferred.reason), *found.evidence],
        {
            "nodes": graph.nodes.height,
            "flops": float(nodes.get_column("flops").sum()),
            "mapped_kernel_time_ratio": found.time_ratio,
            **{row["metric"]: row["value"] for row in metrics.iter_rows(named=True)},
        },
        nodes.group_by(operator="op_type")
        .agg(nodes=pl.len(), flops=pl.col("flops").sum(), read_bytes=pl.col("read_bytes").sum())
        .sort("flops", "operator", descending=[True, False]),
        "operators",
    )


def _without_model(found: Attribution) -> Outcome:
    """Build the outcome for a session without a model: framework operators if recorded, and no graph."""
    absent = Evidence("model graph", "absent", "the capture holds no model")
    return Outcome(
        {
            **{name: empty_table(name) for name in ("model_nodes", "model_edges", "session_metrics")},
            "operator_kernels": to_contract("operator_kernels", found.operator_kernels),
        },
        [absent, *found.evidence],
        {"mapped_kernel_time_ratio": found.time_ratio},
        found.operator_kernels.drop_nulls("operator")
        .group_by("operator")
        .agg(dispatches=pl.col("dispatch_count").sum(), total_ns=pl.col("total_ns").sum())
        .sort("total_ns", "operator", descending=[True, False]),
        "operators",
    )


def _evidence(model: "Model", nodes: pl.DataFrame, reason: str | None) -> list[Evidence]:
    source = model.file.name
    items = [Evidence("model graph", "present", None, source, nodes.height)]
    unknown = nodes.filter(pl.col("flops").is_null()).get_column("op_type").unique().sort().to_list()
    if unknown:
        items.append(Evidence("work of nodes", "partial", f"no figure for {', '.join(unknown)}", source, len(unknown)))
    if reason is not None:
        items.append(Evidence("inferred shapes", "partial", reason, source))
    if model.optimized is None:
        lost = (
            "the runtime did not leave its graph; kernels are mapped by name, and how many each of its nodes took is "
            "unknown"
        )
        items.append(Evidence("executed graph", "absent", lost, source))
    return items
