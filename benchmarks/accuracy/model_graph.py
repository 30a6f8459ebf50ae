"""What reading a large model costs, and how the operations counted here compare with another tool's.

`python benchmarks/accuracy/model_graph.py` makes two models of many nodes (one with its weights in the file, one with more than
two gigabytes of them beside it), reads each in a fresh process and exits with 1 above the budget of time or memory.
Then it prints, where onnx-tool is installed, both counts by model and by operator type.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from aaco_pipeline.analysis.model.operator_work import work
from aaco_pipeline.formats.onnx import TensorType, graph_only, inferred_shapes, read
from aaco_pipeline.resources.measure.models import resolve_model

#: For reading without weights, reading as frames, and the work; shape inference is onnx's and given beside it.
CPU_SECONDS: Final = 1.5
PEAK_MEGABYTES: Final = 400
WIDTH: Final = 256
WEIGHT_MEGABYTES: Final = 78
EXTERNAL_BYTES: Final = 2_300_000_000
LIGHT_MODELS: Final = ("bvlc_alexnet", "vgg19", "inception_v1", "inception_v2", "shufflenet", "zfnet512")
#: Operators whose work is a sum of products, where the two tools mean the same by a multiply-add.
SUMS_OF_PRODUCTS: Final = ("Conv", "ConvTranspose", "MatMul", "Gemm")


@dataclass(frozen=True)
class Count:
    """Operations of one operator type in one model: half of ours (a multiply-add is two) and onnx-tool's."""

    operators: int
    ours_halved: float
    onnx_tool: float


def large_model(folder: Path, node_count: int, *, external: bool) -> Path:
    """A chain of blocks of MatMul, Add, Relu and Add; the products share weights of the size asked for."""
    weights = math.ceil(WEIGHT_MEGABYTES * 2**20 / (WIDTH * WIDTH * 4))
    rng = np.random.default_rng(1)
    path = folder / ("external.onnx" if external else "inline.onnx")
    initializers = []
    for index in range(weights):
        if external:
            tensor = TensorProto(name=f"w{index}", data_type=TensorProto.FLOAT, dims=[WIDTH, WIDTH])
            tensor.data_location = TensorProto.EXTERNAL
            size = WIDTH * WIDTH * 4
            entries = {"location": "external.bin", "offset": EXTERNAL_BYTES - size * (index + 1), "length": size}
            for key, value in entries.items():
                tensor.external_data.add(key=key, value=str(value))
        else:
            tensor = numpy_helper.from_array(rng.standard_normal((WIDTH, WIDTH)).astype(np.float32), f"w{index}")
        initializers.append(tensor)
    initializers.append(numpy_helper.from_array(np.zeros(WIDTH, np.float32), "bias"))
    nodes = []
    current = "x"
    for block in range(node_count // 4):
        product, sum_, active, following = (f"block_{block}/{part}" for part in ("product", "sum", "active", "out"))
        nodes.append(helper.make_node("MatMul", [current, f"w{block % weights}"], [product], f"{product}_node"))
        nodes.append(helper.make_node("Add", [product, "bias"], [sum_], f"{sum_}_node"))
        nodes.append(helper.make_node("Relu", [sum_], [active], f"{active}_node"))
        nodes.append(helper.make_node("Add", [active, current], [following], f"{following}_node"))
        current = following
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "large",
        [value("x", TensorProto.FLOAT, ["rows", WIDTH])],
        [value(current, TensorProto.FLOAT, ["rows", WIDTH])],
        initializers,
    )
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString())
    if external:
        with (folder / "external.bin").open("wb") as file:
            file.truncate(EXTERNAL_BYTES)  # one hole: whoever reads it is seen in the peak
    return path


def measure(path: Path) -> dict[str, float]:
    """CPU seconds of each step in this process, and the peak of its memory after it."""
    figures = {"imported_megabytes": _peak_megabytes()}
    started = time.process_time()

    def step(name: str) -> None:
        nonlocal started
        figures[f"{name}_seconds"] = time.process_time() - started
        figures[f"{name}_megabytes"] = _peak_megabytes()
        started = time.process_time()

    content = graph_only(path)
    step("graph_only")
    graph = read(content, str(path))
    step("read")
    # Only one type per tensor is needed here, and inference has a peak of its own that would hide this one's.
    types: dict[str, TensorType] = {
        name: ("float32", (32, WIDTH)) for names in graph.nodes.get_column("outputs").to_list() for name in names
    }
    types = {**graph.types, **types, "x": ("float32", (32, WIDTH))}
    step("types")
    flops = work(graph.nodes, graph.attributes, types).get_column("flops")
    step("work")
    figures["flops"] = float(flops.sum())
    figures["unknown"] = flops.null_count()
    figures["nodes"] = graph.nodes.height
    figures["edges"] = graph.edges.height
    figures["stripped_bytes"] = len(content)
    inferred_shapes(content, {"x": (32, WIDTH)})
    step("inference")
    return figures


def _peak_megabytes() -> float:
    """The most memory this process held since it began; getrusage would include what its parent held."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def within_budget(folder: Path, node_count: int) -> bool:
    """Measure both models in processes of their own, print what they took, and say whether it is within budget."""
    good = True
    for external in (False, True):
        path = large_model(folder, node_count, external=external)
        arguments = [sys.executable, __file__, "--measure", str(path)]
        done = subprocess.run(arguments, capture_output=True, text=True, check=True)
        figures: dict[str, float] = json.loads(done.stdout)
        seconds = sum(figures[f"{step}_seconds"] for step in ("graph_only", "read", "work"))
        peak = figures["work_megabytes"]
        good = good and seconds <= CPU_SECONDS and peak <= PEAK_MEGABYTES
        file_bytes = path.stat().st_size + (EXTERNAL_BYTES if external else 0)
        print(f"{path.name}: {file_bytes / 2**20:.0f} MB, {figures['nodes']:.0f} nodes, {figures['edges']:.0f} edges")
        for step in ("graph_only", "read", "work", "inference"):
            print(f"  {step:10} {figures[f'{step}_seconds']:6.2f} s   peak {figures[f'{step}_megabytes']:6.0f} MB")
        print(
            f"  together   {seconds:6.2f} s (budget {CPU_SECONDS}), peak {peak:.0f} MB (budget {PEAK_MEGABYTES}), of "
            f"which {figures['imported_megabytes']:.0f} MB are the libraries; {figures['unknown']:.0f} nodes unknown"
        )
    return good


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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=100_000, help="0 to compare only")
    parser.add_argument("--measure", type=Path, help="measure one model in this process and print JSON")
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.measure)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        good = within_budget(Path(folder), arguments.nodes) if arguments.nodes else True
        try:
            import onnx_tool  # noqa: F401
        except ImportError:
            print("onnx-tool is not installed: nothing to compare with")
        else:
            print_comparisons(comparisons())
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
