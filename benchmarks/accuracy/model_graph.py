"""Compare operation counts with onnx-tool's, by model and operator type, where onnx-tool is installed."""

import argparse
import importlib.util
import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from aaco_pipeline.analysis.model.operator_work import work
from aaco_pipeline.formats.onnx import TensorType, graph_only, inferred_shapes, read
from aaco_pipeline.resources.measure.models import resolve_model

LIGHT_MODELS: Final = ("bvlc_alexnet", "vgg19", "inception_v1", "inception_v2", "shufflenet", "zfnet512")
#: Operators whose work is a sum of products, where the two tools mean the same by a multiply-add.
SUMS_OF_PRODUCTS: Final = ("Conv", "ConvTranspose", "MatMul", "Gemm")


@dataclass(frozen=True)
class Count:
    """Operations of one operator type in one model: half of ours (a multiply-add is two) and onnx-tool's."""

    operators: int
    ours_halved: float
    onnx_tool: float


def comparisons() -> dict[str, dict[str, Count]]:
    """By model and operator type, the operations counted here and by onnx-tool; empty when it is not installed."""
    found: dict[str, dict[str, Count]] = {}
    for name in ("squeezenet", "resnet50", "densenet121", "gpt_tiny"):
        choice = resolve_model(name, {})
        shapes = dict(choice.input_shapes)
        if name == "gpt_tiny":
            found["gpt_tiny, decode"] = compare(choice.path, shapes)
            prefill = {key: (1, 64) if key == "input_ids" else (*size[:2], 0, size[3]) for key, size in shapes.items()}
            found["gpt_tiny, prefill"] = compare(choice.path, prefill)
        else:
            found[name] = compare(choice.path, shapes)
    light = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    for name in LIGHT_MODELS:
        path = light / f"light_{name}.onnx"
        found[name] = compare(path, {})
    return found


def compare(path: Path, input_shapes: Mapping[str, Sequence[int]]) -> dict[str, Count]:
    """Both tools' counts by operator type, over inferred shapes, or those that running shows where they do not do."""
    content = graph_only(path)
    graph = read(content, path.name)
    types = inferred_shapes(content, input_shapes).types
    if work(graph.nodes, graph.attributes, types).get_column("flops").null_count():
        types = inferred_shapes(content, input_shapes, observed_types(path, input_shapes)).types
    rows = work(graph.nodes, graph.attributes, types).join(graph.nodes.select("node_id", "op_type"), on="node_id")
    ours: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for op_type, flops in rows.select("op_type", "flops").iter_rows():
        ours[op_type] += flops or 0
        count[op_type] += 1
    theirs = multiply_adds_of_onnx_tool(path, input_shapes)
    return {kind: Count(count[kind], ours[kind] / 2, theirs[kind]) for kind in sorted(count)}


def observed_types(path: Path, input_shapes: Mapping[str, Sequence[int]]) -> dict[str, TensorType]:
    """Types of all tensors at the top level, seen by running the model with every one of them as an output."""
    import onnxruntime

    model = onnx.load(str(path))
    outputs = {value.name for value in model.graph.output}
    names = [name for node in model.graph.node for name in node.output if name]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in outputs)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    inputs = inputs_for(session.get_inputs(), input_shapes)
    values = session.run(None, inputs)
    return {
        output.name: (str(value.dtype), value.shape)
        for output, value in zip(session.get_outputs(), values, strict=True)
        if isinstance(value, np.ndarray)
    }


def inputs_for(declared: Sequence[Any], input_shapes: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """Ones for every input: valid as a float and as an index."""
    return {
        tensor.name: np.ones(
            tuple(input_shapes.get(tensor.name, tensor.shape)), np.int64 if "int64" in tensor.type else np.float32
        )
        for tensor in declared
    }


def multiply_adds_of_onnx_tool(path: Path, input_shapes: Mapping[str, Sequence[int]]) -> Counter[str]:
    """onnx-tool's count by operator type."""
    import onnx_tool

    proto = onnx.load(str(path))
    initialized = {tensor.name for tensor in proto.graph.initializer}
    inputs = {
        value.name: np.ones(
            tuple(input_shapes.get(value.name, [dim.dim_value for dim in value.type.tensor_type.shape.dim])),
            np.int64 if value.type.tensor_type.elem_type == TensorProto.INT64 else np.float32,
        )
        for value in proto.graph.input
        if value.name not in initialized
    }
    _put_in_partial_shapes(proto.graph, inputs)
    model = onnx_tool.Model(proto, {"verbose": False, "constant_folding": False})
    model.graph.shape_infer(inputs)
    model.graph.profile()
    counted: Counter[str] = Counter()
    for node in model.graph.nodemap.values():
        counted[node.op_type] += node.macs[0]
    return counted


def _put_in_partial_shapes(graph: onnx.GraphProto, inputs: Mapping[str, Any]) -> None:
    """Replace nodes that take a part of an input's shape by constants: onnx-tool takes all of it."""
    for node in list(graph.node):
        bounds = {attribute.name: attribute.i for attribute in node.attribute}
        if node.op_type == "Shape" and bounds:
            part = inputs[node.input[0]].shape[bounds.get("start", 0) : bounds.get("end")]
            graph.initializer.append(numpy_helper.from_array(np.array(part, np.int64), node.output[0]))
            graph.node.remove(node)


def print_comparisons(found: Mapping[str, Mapping[str, Count]]) -> None:
    """One table: sums of products by model, then every operator type over all models."""
    print(f"\n{'sums of products':20} {'ours / 2':>16} {'onnx-tool':>16} {'ratio':>8}")
    by_type: dict[str, list[Count]] = {}
    for model, counts in found.items():
        ours = sum(count.ours_halved for kind, count in counts.items() if kind in SUMS_OF_PRODUCTS)
        theirs = sum(count.onnx_tool for kind, count in counts.items() if kind in SUMS_OF_PRODUCTS)
        print(f"{model:20} {ours:16,.0f} {theirs:16,.0f} {ours / theirs:8.4f}")
        for kind, count in counts.items():
            by_type.setdefault(kind, []).append(count)
    print(f"\n{'all models, by type':20} {'ours / 2':>16} {'onnx-tool':>16} {'ratio':>8}")
    for kind, rows in sorted(by_type.items()):
        ours, theirs = sum(row.ours_halved for row in rows), sum(row.onnx_tool for row in rows)
        print(f"{kind:20} {ours:16,.0f} {theirs:16,.0f} {ours / theirs if theirs else math.nan:8.3f}")


def main() -> int:
    argparse.ArgumentParser(description=__doc__).parse_args()
    if importlib.util.find_spec("onnx_tool") is None:
        print("onnx-tool is not installed: nothing to compare with")
        return 2
    print_comparisons(comparisons())
    return 0


if __name__ == "__main__":
    sys.exit(main())
