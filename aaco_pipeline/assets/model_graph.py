"""The stage `model_graph`: the model's nodes with their work, its edges, and which kernel ran for which node.

Reading the graph is `aaco_pipeline.formats.onnx`, work per node `aaco_pipeline.analysis.model.operator_work`. The
mapping is `aaco_pipeline.analysis.model.node_mapping` for what the runtime's profile names, `device_kernel_nodes` for
the kernels of a GPU, and `operator_kernels` for the operators of a framework, where there is no model.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import dagster as dg
import polars as pl

from aaco_pipeline.analysis.model.device_kernel_nodes import DeviceTrace, map_device_kernels
from aaco_pipeline.analysis.model.node_mapping import TensorType, map_kernels, non_constant_node_count, runtime_types
from aaco_pipeline.analysis.model.operator_kernels import operator_kernels, operators_of_dispatches
from aaco_pipeline.analysis.model.operator_work import work
from aaco_pipeline.analysis.sessions.metrics import METRICS, amplification_metrics, kernels_per_iteration
from aaco_pipeline.analysis.timeline.launching_operators import OPERATOR_DOMAIN
from aaco_pipeline.assets.kernel_trace import kernel_trace
from aaco_pipeline.assets.partitions import session_partitions
from aaco_pipeline.assets.stage import OWNERS, Outcome, expected_errors, publish_outcome, stage_metadata
from aaco_pipeline.assets.timeline import counted_dispatches, timeline
from aaco_pipeline.capture import ingested as ingested_capture
from aaco_pipeline.capture import profiled as profiled_capture
from aaco_pipeline.formats import native as inference_capture
from aaco_pipeline.formats import ort_profile
from aaco_pipeline.formats.native import InferenceCapture
from aaco_pipeline.lake.evidence import Evidence, evidence_frame
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.validation import empty_table, to_contract
from aaco_pipeline.resources.dagster_resources import LakeResource

if TYPE_CHECKING:
    from aaco_pipeline.formats.onnx import ModelGraph

STAGE: Final = "model_graph"
TABLES: Final = ("model_nodes", "model_edges", "operator_kernels", "session_metrics", "evidence")


@dataclass(frozen=True)
class _Attributed:
    """Where the kernels' time went, what the evidence tells of it, and tensors' types as the kernels saw them."""

    operator_kernels: pl.DataFrame
    evidence: tuple[Evidence, ...]
    types: Mapping[str, TensorType]
    nodes_per_kernel: float | None = None

    @property
    def time_ratio(self) -> float | None:
        """The share of the kernels' time that has an operator; None without time."""
        total = int(self.operator_kernels.get_column("total_ns").sum())
        found = self.operator_kernels.filter(pl.col("match") != "unattributed")
        return int(found.get_column("total_ns").sum()) / total if total else None


def read_model_graph(lake: TraceLake, session: str) -> Outcome:
    """The model's graph with work per node on run-time shapes where the trace has them, and its kernels' time."""
    from aaco_pipeline.formats import onnx as onnx_model

    if ingested_capture.probe(lake.raw(session)):
        return _without_model(lake, session)
    raw = inference_capture.read(lake.raw(session))
    content = (raw.folder / inference_capture.MODEL_FILE).read_bytes()
    graph = onnx_model.read(content, inference_capture.MODEL_FILE)
    optimized_file = raw.folder / inference_capture.OPTIMIZED_FILE
    optimized = onnx_model.read(optimized_file.read_bytes(), optimized_file.name) if optimized_file.exists() else None
    on_device = profiled_capture.base_pass(raw) is not None
    attribute = _by_device if on_device else _by_profile
    attributed = attribute(lake, session, raw, graph, optimized)
    shapes = {name: one["shape"] for name, one in raw.passes["latency"]["inputs"].items()}
    inferred = onnx_model.inferred_shapes(content, shapes, attributed.types)
    types = {**inferred.types, **attributed.types}
    nodes = graph.nodes.join(work(graph.nodes, graph.attributes, inferred.types, attributed.types), on="node_id")
    made_up = pl.concat_str("op_type", pl.lit("_"), "node_id")
    nodes = nodes.with_columns(pl.coalesce("name", made_up))
    columns = ("node_id", "name", "op_type", "domain", "inputs", "outputs", "flops", "read_bytes", "written_bytes")
    metrics = _metrics(lake, session, graph, optimized, attributed)
    evidence = [*_evidence(nodes, inferred.reason, optimized is not None), *attributed.evidence]
    return Outcome(
        {
            "model_nodes": to_contract("model_nodes", nodes.select(*columns, "shape_source")),
            "model_edges": to_contract("model_edges", onnx_model.typed_edges(graph.edges, types)),
            "operator_kernels": to_contract("operator_kernels", attributed.operator_kernels),
            "session_metrics": metrics,
            "evidence": evidence_frame(STAGE, evidence),
        },
        {
            "nodes": graph.nodes.height,
            "flops": float(nodes.get_column("flops").sum()),
            "mapped_kernel_time_ratio": attributed.time_ratio,
            **{row["metric"]: row["value"] for row in metrics.iter_rows(named=True)},
        },
        nodes.group_by(operator="op_type")
        .agg(nodes=pl.len(), flops=pl.col("flops").sum(), read_bytes=pl.col("read_bytes").sum())
        .sort("flops", descending=True),
        "operators",
    )


def _without_model(lake: TraceLake, session: str) -> Outcome:
    """A capture that was made elsewhere: the framework's operators, where it recorded them, and no graph."""
    dispatches, calls = _dispatches(lake, session), lake.read("api_calls", session)
    parts = operators_of_dispatches(dispatches, calls)
    attributed = _Attributed(operator_kernels(parts), (), {})
    unknown = parts.filter(pl.col("match") == "unattributed").height
    items = [Evidence("model graph", "absent", "the capture was made elsewhere and holds no model")]
    if calls.filter(pl.col("domain") == OPERATOR_DOMAIN).is_empty():
        items.append(Evidence("operators", "absent", "the capture holds no calls of a framework's operators"))
    elif unknown:
        reason = f"{unknown} of {parts.height} dispatches have no known launch, or one outside every operator"
        items.append(Evidence("operators", "partial", reason, "api_calls", parts.height - unknown))
    else:
        items.append(Evidence("operators", "present", None, "api_calls", parts.height))
    empty = {name: empty_table(name) for name in ("model_nodes", "model_edges", "session_metrics")}
    return Outcome(
        {
            **empty,
            "operator_kernels": to_contract("operator_kernels", attributed.operator_kernels),
            "evidence": evidence_frame(STAGE, items),
        },
        {"mapped_kernel_time_ratio": attributed.time_ratio},
        attributed.operator_kernels.drop_nulls("operator")
        .group_by("operator")
        .agg(dispatches=pl.col("dispatch_count").sum(), total_ns=pl.col("total_ns").sum())
        .sort("total_ns", "operator", descending=[True, False]),
        "operators",
    )


def _dispatches(lake: TraceLake, session: str) -> pl.DataFrame:
    return counted_dispatches(lake.read("dispatches", session), lake.read("iterations", session))[0]


def _by_profile(
    lake: TraceLake, session: str, raw: InferenceCapture, graph: "ModelGraph", optimized: "ModelGraph | None"
) -> _Attributed:
    """The runtime's own profile names its nodes."""
    executed = None if optimized is None else optimized.nodes
    kernels, stats = lake.read("kernels", session), lake.read("kernel_stats", session)
    mapping = map_kernels(kernels, stats, executed, graph.nodes, _weights(graph))
    seen: Mapping[str, TensorType] = {}
    if executed is not None and raw.passes["trace"]["profile"] is not None:
        profile = ort_profile.read(raw.folder / inference_capture.PROFILE_FILE, axis_start_ns=0)
        seen = runtime_types(mapping, profile.details["kernel_shapes"], executed, graph.nodes)
    items = []
    source = inference_capture.MODEL_FILE
    if mapping.inserted.height:
        names = ", ".join(mapping.inserted.get_column("op_type").unique().sort().to_list())
        items.append(
            Evidence("inserted kernels", "partial", f"kernels the runtime put in have no node: {names}", source)
        )
    lost = mapping.operator_kernels.filter(pl.col("node_id").is_null()).height - mapping.inserted.height
    if lost:
        items.append(Evidence("kernels to nodes", "partial", f"{lost} kernels could not be traced to a node", source))
    return _Attributed(mapping.operator_kernels, tuple(items), seen)


def _by_device(
    lake: TraceLake, session: str, raw: InferenceCapture, graph: "ModelGraph", optimized: "ModelGraph | None"
) -> _Attributed:
    """A GPU's kernels are named by whoever compiled them; the runtime's profile has no shapes within a partition."""
    tables = [lake.read(name, session) for name in ("kernels", "api_calls", "markers")]
    trace = DeviceTrace(_dispatches(lake, session), *tables)
    mapping = map_device_kernels(trace, graph.nodes, _weights(graph), _partitions(raw))
    rows = mapping.operator_kernels
    total = int(rows.get_column("dispatch_count").sum())
    lost = int(rows.filter(pl.col("match") == "unattributed").get_column("dispatch_count").sum())
    reason = f"{lost} of {total} dispatches could not be traced to a node by markers, names or order"
    item = Evidence("kernels to nodes", "partial" if lost else "present", reason if lost else None, None, total - lost)
    return _Attributed(rows, (item,), {}, mapping.nodes_per_kernel)


def _partitions(raw: InferenceCapture) -> dict[str, list[str]]:
    """Names of the nodes of each partition that the runtime dumped as a model beside the base pass, by its name."""
    from aaco_pipeline.formats import onnx as onnx_model

    base = profiled_capture.base_pass(raw)
    files = sorted(base.folder.glob("*.onnx")) if base is not None else []
    return {
        file.stem: onnx_model.read(file.read_bytes(), file.name).nodes.get_column("name").drop_nulls().to_list()
        for file in files
    }


def _weights(graph: "ModelGraph") -> list[str]:
    names: list[str] = graph.initializers.get_column("name").to_list()
    return names


def _metrics(
    lake: TraceLake, session: str, graph: "ModelGraph", optimized: "ModelGraph | None", attributed: _Attributed
) -> pl.DataFrame:
    """Kernels for each node, and on a GPU the nodes for each kernel."""
    dispatches = _dispatches(lake, session)
    executed = None if optimized is None else non_constant_node_count(optimized.nodes, _weights(optimized))
    computing = non_constant_node_count(graph.nodes, _weights(graph))
    launched = kernels_per_iteration(dispatches, lake.read("iterations", session))
    rows = amplification_metrics(launched, dispatches.height, executed, computing, graph.nodes.height)
    if attributed.nodes_per_kernel is None:
        return rows
    fused = {"metric": "nodes_per_kernel", "pass": "trace", "phase": "measure", "unit": "ratio"}
    return pl.concat([rows, pl.DataFrame([{**fused, "value": attributed.nodes_per_kernel}], schema=METRICS)])


def _evidence(nodes: pl.DataFrame, reason: str | None, has_optimized: bool) -> list[Evidence]:
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
                "executed graph",
                "absent",
                "the runtime did not leave its graph; kernels are mapped by name, and how many each of its nodes took "
                "is unknown",
                source,
            )
        )
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
