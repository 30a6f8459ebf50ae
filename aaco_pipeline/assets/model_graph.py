"""The stage `model_graph`: the model's nodes with their work, its edges, and which kernel ran for which node.

Reading the graph is `aaco_pipeline.formats.onnx_model`, work per node `aaco_pipeline.analysis.operator_work`, and the
mapping `aaco_pipeline.analysis.node_mapping`.
"""

from typing import Final

import dagster as dg
import polars as pl

from aaco_pipeline.analysis.metrics import METRICS, kernels_per_iteration
from aaco_pipeline.analysis.node_mapping import (
    KernelMapping,
    kernel_activity_ratio,
    map_kernels,
    non_constant_node_count,
    runtime_types,
)
from aaco_pipeline.analysis.operator_work import work
from aaco_pipeline.assets.kernel_trace import kernel_trace
from aaco_pipeline.assets.partitions import session_partitions
from aaco_pipeline.assets.stage import OWNERS, Outcome, expected_errors, publish_outcome, stage_metadata
from aaco_pipeline.assets.timeline import timeline
from aaco_pipeline.formats import inference_capture, ingested_capture, ort_profile
from aaco_pipeline.formats.reading import canonical, no_rows
from aaco_pipeline.lake.evidence import Evidence, evidence_frame
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.dagster_resources import LakeResource

STAGE: Final = "model_graph"
TABLES: Final = ("model_nodes", "model_edges", "operator_kernels", "session_metrics", "evidence")


def read_model_graph(lake: TraceLake, session: str) -> Outcome:
    """The model's graph with work per node on run-time shapes where the trace has them, and its kernels' time."""
    from aaco_pipeline.formats import onnx_model

    if ingested_capture.probe(lake.raw(session)):
        missing = Evidence("model graph", "absent", "the capture was made elsewhere and holds no model")
        tables = {name: no_rows(name) for name in TABLES if name != "evidence"}
        return Outcome({**tables, "evidence": evidence_frame(STAGE, [missing])})
    raw = inference_capture.read(lake.raw(session))
    content = (raw.folder / inference_capture.MODEL_FILE).read_bytes()
    graph = onnx_model.read(content, inference_capture.MODEL_FILE)
    weights = graph.initializers.get_column("name").to_list()
    optimized_file = raw.folder / inference_capture.OPTIMIZED_FILE
    optimized = (
        onnx_model.read(optimized_file.read_bytes(), optimized_file.name).nodes if optimized_file.exists() else None
    )
    kernels, stats = lake.read("kernels", session), lake.read("kernel_stats", session)
    mapping = map_kernels(kernels, stats, optimized, graph.nodes, weights)
    seen = {}
    if optimized is not None and raw.passes["trace"]["profile"] is not None:
        profile = ort_profile.read(raw.folder / inference_capture.PROFILE_FILE, axis_start_ns=0)
        seen = runtime_types(mapping, profile.details["kernel_shapes"], optimized, graph.nodes)
    shapes = {name: one["shape"] for name, one in raw.passes["latency"]["inputs"].items()}
    inferred = onnx_model.inferred_shapes(content, shapes, seen)
    types = {**inferred.types, **seen}
    nodes = graph.nodes.join(work(graph.nodes, graph.attributes, inferred.types, seen), on="node_id")
    made_up = pl.concat_str("op_type", pl.lit("_"), "node_id")
    nodes = nodes.with_columns(pl.coalesce("name", made_up))
    columns = ("node_id", "name", "op_type", "domain", "inputs", "outputs", "flops", "read_bytes", "written_bytes")
    counted = non_constant_node_count(graph.nodes, weights)
    launched = kernels_per_iteration(lake.read("dispatches", session), lake.read("iterations", session))
    ratio = kernel_activity_ratio(launched, counted) if launched is not None else None
    metric = {"metric": "kernel_amplification_ratio", "pass": "trace", "phase": "measure", "unit": "ratio"}
    mapped = mapping.operator_kernels.filter(pl.col("node_id").is_not_null())
    total = int(mapping.operator_kernels.get_column("total_ns").sum())
    return Outcome(
        {
            "model_nodes": canonical("model_nodes", nodes.select(*columns, "shape_source")),
            "model_edges": canonical("model_edges", onnx_model.typed_edges(graph.edges, types)),
            "operator_kernels": canonical("operator_kernels", mapping.operator_kernels),
            "session_metrics": pl.DataFrame([{**metric, "value": ratio, "n": counted}], schema=METRICS),
            "evidence": evidence_frame(STAGE, _evidence(mapping, nodes, inferred.reason, optimized is not None)),
        },
        {
            "nodes": graph.nodes.height,
            "flops": float(nodes.get_column("flops").sum()),
            "mapped_kernel_time_ratio": int(mapped.get_column("total_ns").sum()) / total if total else None,
            "kernel_amplification_ratio": ratio,
        },
        nodes.group_by(operator="op_type")
        .agg(nodes=pl.len(), flops=pl.col("flops").sum(), read_bytes=pl.col("read_bytes").sum())
        .sort("flops", descending=True),
        "operators",
    )


def _evidence(mapping: KernelMapping, nodes: pl.DataFrame, reason: str | None, has_optimized: bool) -> list[Evidence]:
    source = inference_capture.MODEL_FILE
    items = [Evidence("model graph", "present", None, source, nodes.height)]
    unknown = nodes.filter(pl.col("flops").is_null()).get_column("op_type").unique().sort().to_list()
    if unknown:
        items.append(Evidence("work of nodes", "partial", f"no figure for {', '.join(unknown)}", source, len(unknown)))
    if reason is not None:
        items.append(Evidence("inferred shapes", "partial", reason, source))
    if not has_optimized:
        items.append(
            Evidence(
                "executed graph", "absent", "the runtime did not leave its graph; kernels are mapped by name", source
            )
        )
    if mapping.inserted.height:
        names = ", ".join(mapping.inserted.get_column("op_type").unique().sort().to_list())
        items.append(
            Evidence("inserted kernels", "partial", f"kernels the runtime put in have no node: {names}", source)
        )
    lost = mapping.operator_kernels.filter(pl.col("node_id").is_null()).height - mapping.inserted.height
    if lost:
        items.append(Evidence("kernels to nodes", "partial", f"{lost} kernels could not be traced to a node", source))
    return items


@dg.asset(
    partitions_def=session_partitions,
    group_name="analysis",
    kinds={"onnx", "parquet"},
    owners=OWNERS,
    deps=[kernel_trace, timeline],
    metadata=stage_metadata(TABLES),
)
def model_graph(context: dg.AssetExecutionContext, lake: LakeResource) -> dg.MaterializeResult[None]:
    """What does the model compute, how much work is each node, and which node did each kernel's time go to?"""
    with expected_errors():
        store = lake.open()
        return publish_outcome(store, context.partition_key, STAGE, read_model_graph(store, context.partition_key))
