"""The types of a model's tensors when its inputs have given shapes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import onnx

from aaco_pipeline.formats.onnx.collecting import CollectedGraph, Scope
from aaco_pipeline.formats.onnx.types import DTYPE_NUMBERS, TensorType
from aaco_pipeline.formats.onnx.weightless import parsed

#: Up to this many nodes shape inference also follows the values of small integer tensors; its cost is not bounded.
_VALUES_FOLLOWED_UP_TO: Final = 20_000
#: No tensor that is computed with to give a shape has more elements; a bias may have some ten thousand.
_LONGEST_VALUES_FOLLOWED: Final = 1 << 17


@dataclass(frozen=True)
class InferredShapes:
    """Types of the tensors by name, and in one line why some are missing when inference failed."""

    types: Mapping[str, TensorType]
    reason: str | None


def inferred_shapes(
    content: bytes,
    input_shapes: Mapping[str, Sequence[int]],
    known: Mapping[str, TensorType] | None = None,
) -> InferredShapes:
    """The tensors' types when the model's inputs have `input_shapes`; symbols of the inputs are bound to them.

    `known` are types seen at run time, by tensor: inference goes on from them where it cannot find a shape itself.
    When inference fails, what the model declares (with its symbols bound) is given, and the reason.
    """
    model = parsed(content, "the model")
    reason = _bind(model.graph, input_shapes)
    if known:
        _declare(model.graph, known)
    failure: str | None = None
    few = len(model.graph.node) <= _VALUES_FOLLOWED_UP_TO and not _has_long_vector(model.graph)
    for follow_values in (True, False) if few else (False,):
        try:
            model = onnx.shape_inference.infer_shapes(model, strict_mode=False, data_prop=follow_values)
        except Exception as error:  # noqa: BLE001 - onnx raises errors of several unrelated classes
            failure = " ".join(str(error).split()) or type(error).__name__
        else:
            failure = None
            break
    if failure is not None:
        reason = f"shape inference failed: {failure}"
    collected = CollectedGraph()
    collected.visit(model.graph, Scope(None), None, None)
    return InferredShapes(collected.types_by_name(), reason)


def _has_long_vector(graph: Any) -> bool:
    """Whether a tensor of one dimension is too long to be a shape; onnx follows such element by element."""
    values = (*graph.input, *graph.value_info)
    shapes = [value.type.tensor_type.shape.dim for value in values if value.type.HasField("tensor_type")]
    lengths = [dims[0].dim_value for dims in shapes if len(dims) == 1]
    lengths += [tensor.dims[0] for tensor in graph.initializer if len(tensor.dims) == 1]
    return max(lengths, default=0) > _LONGEST_VALUES_FOLLOWED


def _bind(graph: onnx.GraphProto, input_shapes: Mapping[str, Sequence[int]]) -> str | None:
    """Give the inputs their actual shapes and put the sizes of their symbols in everywhere; a reason if they clash."""
    sizes: dict[str, int] = {}
    reason = None
    for value in graph.input:
        actual = input_shapes.get(value.name)
        if actual is None or value.type.WhichOneof("value") != "tensor_type":
            continue
        shape = value.type.tensor_type.shape
        if len(shape.dim) == len(actual):
            for dim, size in zip(shape.dim, actual, strict=True):
                if dim.dim_param and sizes.setdefault(dim.dim_param, size) != size:
                    reason = f"the inputs give dimension {dim.dim_param!r} both {sizes[dim.dim_param]} and {size}"
                dim.dim_value = size
        else:
            if value.type.tensor_type.HasField("shape"):
                reason = (
                    f"input {value.name!r} has {len(shape.dim)} dimensions in the model and {len(actual)} in the run"
                )
            _set_shape(value.type.tensor_type, actual)
    if sizes:
        _bind_symbols(graph, sizes)
    return reason


def _bind_symbols(graph: onnx.GraphProto, sizes: Mapping[str, int]) -> None:
    for values in (graph.input, graph.output, graph.value_info):
        for value in values:
            if value.type.WhichOneof("value") == "tensor_type":
                for dim in value.type.tensor_type.shape.dim:
                    if dim.dim_param in sizes:
                        dim.dim_value = sizes[dim.dim_param]


def _declare(graph: onnx.GraphProto, known: Mapping[str, TensorType]) -> None:
    """Replace what the graph declares of the tensors it computes by the types seen at run time."""
    computed = {name for node in graph.node for name in node.output if name}
    outputs = {value.name: value for value in graph.output}
    declared = {value.name: value for value in graph.value_info}
    for name, (dtype, shape) in known.items():
        element = DTYPE_NUMBERS.get(dtype or "")
        if name not in computed or element is None or shape is None:
            continue
        value = outputs.get(name) or declared.get(name)
        if value is None:
            value = graph.value_info.add()
            value.name = name
        value.type.tensor_type.elem_type = element
        _set_shape(value.type.tensor_type, shape)


def _set_shape(tensor: onnx.TypeProto.Tensor, shape: Sequence[int | None]) -> None:
    tensor.ClearField("shape")
    tensor.shape.SetInParent()
    for size in shape:
        dim = tensor.shape.dim.add()
        if size is not None:
            dim.dim_value = size
