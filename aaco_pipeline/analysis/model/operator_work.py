"""Work implied by model nodes: floating-point operations by formula, and minimum bytes moved.

`product_formulas` has the formulas for sums of products.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import polars as pl

from aaco_pipeline.analysis.model.node_mapping import TensorType
from aaco_pipeline.analysis.model.product_formulas import (
    BINARY,
    DEPENDS_ON_VALUES,
    EXP,
    GELU,
    GELU_BY_TANH,
    KNOWN_DOMAINS,
    LOG,
    MOVES_DATA,
    POW,
    UNARY,
    Operation,
    Tensor,
    Unknown,
    attention,
    broadcast,
    convolution,
    einsum,
    fused_convolution,
    general_matrix_product,
    grouped_query_attention,
    matrix_product,
    multi_head_attention,
    packed_matrix_product,
    projecting_attention,
    quantized_convolution,
    quantized_matrix_product,
    recurrent,
    transposed_convolution,
)

Formula = Callable[[Operation], int]


def has_formula(operation: Operation) -> bool:
    """Return whether the operator's type has a formula, whether or not its shapes are known."""
    return _formula(operation) is not None


def _formula(operation: Operation) -> Formula | None:
    if operation.domain not in KNOWN_DOMAINS:
        return None
    own = _MICROSOFT.get(operation.op_type) if operation.domain == "com.microsoft" else None
    return own or _FORMULAS.get(operation.op_type)


def flops(operation: Operation) -> int | None:
    """Operations of one execution; None without a formula for the type or without the required shapes."""
    formula = _formula(operation)
    if formula is None:
        return 0 if operation.op_type in MOVES_DATA and operation.domain in KNOWN_DOMAINS else None
    try:
        return formula(operation)
    except (Unknown, IndexError, ValueError, ZeroDivisionError):
        return None


# ---- element by element ------------------------------------------------------------------------------------------


def unary(operation: Operation) -> int:
    """The tabulated count for every element of the first input."""
    return operation.input(0).count * UNARY[operation.op_type]


def binary(operation: Operation) -> int:
    """The tabulated count for every output element; if the output shape is unknown, the inputs' broadcast shape."""
    return _output_count(operation) * BINARY[operation.op_type]


def variadic(operation: Operation) -> int:
    """Sum, Max, Min of n tensors: n − 1 operations per output element; Mean divides once more."""
    present = max(sum(tensor is not None for tensor in operation.inputs), 1)
    return _output_count(operation) * (present - 1 + (operation.op_type == "Mean"))


def gelu(operation: Operation) -> int:
    """The exact form with erf, or the tanh form if the attribute `approximate` selects it."""
    by_tanh = operation.attributes.get("approximate") == "tanh"
    return operation.input(0).count * (GELU_BY_TANH if by_tanh else GELU)


def fast_gelu(operation: Operation) -> int:
    """The tanh form, after adding a bias if the node has one."""
    return operation.input(0).count * (GELU_BY_TANH + operation.given(1))


def quantize(operation: Operation) -> int:
    """A division by the scale (or a product with it) per element, plus the zero point's addition if there is one."""
    return operation.input(0).count * (1 + operation.given(2))


def scatter(operation: Operation) -> int:
    """No operations, or one per update if updates are added, multiplied or compared."""
    reduces = operation.attributes.get("reduction", "none") != "none"
    return operation.input(2).count if reduces else 0


def resize(operation: Operation) -> int:
    """A weighted sum of 2 (linear) or 4 (cubic) neighbours along each resized axis: 2·taps^axes per output.

    Nearest-neighbour selection takes no operations. The count is an upper bound: separable implementations need fewer.
    """
    taps: int | None = {"linear": 2, "bilinear": 2, "cubic": 4}.get(str(operation.attributes.get("mode", "nearest")))
    if taps is None:
        return 0
    before, after = operation.input(0).known, operation.output().known
    axes = sum(a != b for a, b in zip(before, after, strict=True))
    return math.prod(after) * 2 * math.prod([taps] * axes) if axes else 0


# ---- reductions, normalizations, pooling ---------------------------------------------------------------------------


def reduction(operation: Operation) -> int:
    """n − 1 operations for n elements; forms that map each element first or divide last add those."""
    elements, results = operation.input(0).count, operation.output().count
    folding = max(elements - results, 0)
    kind = operation.op_type
    before: int = {"ReduceL1": 1, "ReduceL2": 1, "ReduceSumSquare": 1, "ReduceLogSumExp": 1 + EXP}.get(kind, 0)
    after: int = {"ReduceMean": 1, "ReduceL2": 1, "ReduceLogSum": LOG, "ReduceLogSumExp": LOG + 1}.get(kind, 0)
    maximum_first = folding if kind == "ReduceLogSumExp" else 0
    return folding + maximum_first + elements * before + results * after


def layer_normalization(operation: Operation) -> int:
    """Per element: sum for the mean, subtraction, square, sum for the variance, product, scale; an optional shift.

    InstanceNormalization and GroupNormalization differ only in the averaged axes.
    """
    return operation.input(0).count * (6 + operation.given(2))


def root_mean_square_normalization(operation: Operation) -> int:
    """Per element: square, sum, product with the inverse root, scale."""
    return operation.input(0).count * 4


def skip_normalization(operation: Operation) -> int:
    """The sum of input and skip (and an optional bias), then the normalization of that sum.

    SkipLayerNormalization(input, skip, gamma, beta, bias); SkipSimplifiedLayerNormalization(input, skip, gamma, bias).
    """
    simplified = operation.op_type.startswith("SkipSimplified")
    shift, bias = (False, operation.given(3)) if simplified else (operation.given(3), operation.given(4))
    return operation.input(0).count * (1 + bias + (4 if simplified else 6 + shift))


def local_response_normalization(operation: Operation) -> int:
    """Per element: `size` multiply-adds of squares, a multiply-add for the base, a power, a division."""
    return operation.input(0).count * (2 * operation.integer("size", 1) + 2 + POW + 1)


def maximum_pooling(operation: Operation) -> int:
    """k taps take k − 1 comparisons per output; taps in the padding count too."""
    return operation.output().count * max(_taps(operation) - 1, 0)


def average_pooling(operation: Operation) -> int:
    """k taps take k − 1 additions and a division per output; taps in the padding count too."""
    return operation.output().count * _taps(operation)


def norm_pooling(operation: Operation) -> int:
    """A power per tap, their sum, and a root; LpPool with p = 2 squares, which is one operation."""
    power = 1 if operation.integer("p", 2) in (1, 2) else POW
    return operation.output().count * _taps(operation) * (power + 1)


def global_pooling(operation: Operation) -> int:
    """Reduce the n elements of a channel to one: n − 1 operations, and a division for the average."""
    elements = operation.input(0).count
    if operation.op_type == "GlobalMaxPool":
        return max(elements - operation.output().count, 0)
    return elements


# ---- helpers and tables -------------------------------------------------------------------------------------------


def _output_count(operation: Operation) -> int:
    try:
        return operation.output().count
    except Unknown:
        return math.prod(broadcast(*(tensor.known for tensor in operation.inputs if tensor is not None)))


def _taps(operation: Operation) -> int:
    kernel = operation.attributes.get("kernel_shape")
    if not isinstance(kernel, tuple):
        raise Unknown
    return math.prod(kernel)


_FORMULAS: Final[Mapping[str, Formula]] = {
    **dict.fromkeys(UNARY, unary),
    **dict.fromkeys(BINARY, binary),
    **dict.fromkeys(("Sum", "Max", "Min", "Mean"), variadic),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), quantize),
    **dict.fromkeys(("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1"), reduction),
    **dict.fromkeys(("ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp", "ArgMax", "ArgMin"), reduction),
    **dict.fromkeys(("ScatterElements", "ScatterND"), scatter),
    **dict.fromkeys(("Resize", "Upsample"), resize),
    "Gelu": gelu,
    "FastGelu": fast_gelu,
    **dict.fromkeys(("LayerNormalization", "InstanceNormalization", "GroupNormalization"), layer_normalization),
    "GroupNorm": layer_normalization,
    **dict.fromkeys(("RMSNormalization", "SimplifiedLayerNormalization"), root_mean_square_normalization),
    **dict.fromkeys(("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), skip_normalization),
    "LRN": local_response_normalization,
    "MaxPool": maximum_pooling,
    "AveragePool": average_pooling,
    "LpPool": norm_pooling,
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool"), global_pooling),
    **dict.fromkeys(("Conv", "FusedConv", "NhwcConv", "NhwcFusedConv"), fused_convolution),
    "ConvInteger": partial(convolution, bias=None),
    "ConvTranspose": transposed_convolution,
    "QLinearConv": quantized_convolution,
    **dict.fromkeys(("MatMul", "FusedMatMul", "MatMulInteger", "MatMulIntegerToFloat"), matrix_product),
    "DynamicQuantizeMatMul": matrix_product,
    "QLinearMatMul": quantized_matrix_product,
    **dict.fromkeys(("MatMulNBits", "MatMulFpQ4", "MatMulBnb4"), packed_matrix_product),
    **dict.fromkeys(("Gemm", "FusedGemm"), general_matrix_product),
    "QGemm": partial(general_matrix_product, right=3, addend=6),
    "Einsum": einsum,
    **dict.fromkeys(("LSTM", "GRU", "RNN"), recurrent),
    "Attention": attention,
    "MultiHeadAttention": multi_head_attention,
    "GroupQueryAttention": grouped_query_attention,
}
_MICROSOFT: Final[Mapping[str, Formula]] = {
    "Attention": projecting_attention,
    "QAttention": partial(projecting_attention, past=8),
}


_BITS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("uint2", "int2"), 2),
    **dict.fromkeys(("uint4", "int4", "float4e2m1"), 4),
    **dict.fromkeys(("float6e2m3", "float6e3m2"), 6),
    **dict.fromkeys(("uint8", "int8", "bool"), 8),
    **dict.fromkeys(("float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz", "float8e8m0"), 8),
    **dict.fromkeys(("uint16", "int16", "float16", "bfloat16"), 16),
    **dict.fromkeys(("uint32", "int32", "float32", "float"), 32),
    **dict.fromkeys(("uint64", "int64", "float64", "double", "complex64"), 64),
    "complex128": 128,
}
"""Bits per element; types below eight bits are packed. ONNX Runtime's profile uses the names float and double."""

#: Views of the same bytes: nothing has to be moved, though a runtime may copy if it cannot alias.
_VIEWS: Final = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Dropout", "Constant"})
#: Only the shape is read.
_READ_NOTHING: Final = frozenset({"Shape", "Size"})
#: Reads as many elements of the first input as it writes, whatever its size, and all of the other inputs.
_READ_WHAT_THEY_WRITE: Final = frozenset({"Gather", "GatherElements", "GatherND", "Slice"})
_OMITTED: Final[TensorType] = ("omitted", None)
_UNKNOWN: Final[TensorType] = (None, None)
_NO_ATTRIBUTES: Final[Mapping[str, Any]] = {}
_FIGURES: Final = {"flops": pl.Float64, "read_bytes": pl.Int64, "written_bytes": pl.Int64}
_MOST_BYTES: Final = 2**63 - 1
_MOST_FLOPS: Final = 2**1000
"""Beyond the columns' range; only a damaged model has such shapes."""

_Work = tuple[float | None, int | None, int | None]


def work(
    nodes: pl.DataFrame,
    attributes: Mapping[int, Mapping[str, Any]],
    inferred: Mapping[str, TensorType],
    runtime: Mapping[str, TensorType] | None = None,
) -> pl.DataFrame:
    """Compute flops, read_bytes, written_bytes and shape_source of each node.

    Bytes are a lower bound on traffic: each input is read once, even if it is broadcast or passed twice, and each
    output is written once, with their actual element sizes. Repeated reads due to small caches are not included. All
    three figures are null for control flow (its work is in its body) and for operators without a formula; a single
    figure is null if a required shape is unknown. shape_source is `runtime` if the types of all outputs are, `inferred`
    if any is known, else null.

    Args:
        nodes: node_id, op_type, domain, inputs and outputs.
        attributes: Attributes by node.
        inferred: Inferred types of tensors.
        runtime: Types seen by the runtime, which take precedence.
    """
    seen = runtime or {}
    # Equal types share one number, which keeps the nodes' keys short; 0 is an omitted tensor, 1 an unknown one.
    numbers: dict[TensorType, int] = {_OMITTED: 0, _UNKNOWN: 1}
    number_of = {name: numbers.setdefault(type_, len(numbers)) for name, type_ in inferred.items()}
    number_of |= {name: numbers.setdefault(type_, len(numbers)) for name, type_ in seen.items()}
    number_of[""] = 0
    types = tuple(numbers)
    known: dict[tuple[Any, ...], tuple[_Work, bool]] = {}
    rows: list[_Work] = []
    sources: list[str | None] = []
    columns = (nodes.get_column(name).to_list() for name in ("node_id", "op_type", "domain", "inputs", "outputs"))
    for node_id, op_type, domain, inputs, outputs in zip(*columns, strict=True):
        own = attributes.get(node_id, _NO_ATTRIBUTES)
        read = tuple([number_of.get(name, 1) for name in inputs])
        written = tuple([number_of.get(name, 1) for name in outputs])
        repeated = () if len(inputs) < 2 or len(set(inputs)) == len(inputs) else _repeated(inputs)
        # Equal attributes are one object in a graph read from a file; others are computed once each.
        key = (op_type, domain, id(own), read, written, repeated)
        found = known.get(key)
        if found is None:
            tensors = [tuple(Tensor(*types[number]) if number else None for number in side) for side in (read, written)]
            operation = Operation(op_type, domain, tensors[0], tensors[1], own)
            some_shape = any(types[number][1] is not None for number in (*read, *written))
            found = known[key] = (_work(operation, set(repeated)), some_shape)
        rows.append(found[0])
        if seen and outputs and all(name in seen for name in outputs if name):
            sources.append("runtime")
        else:
            sources.append("inferred" if found[1] else None)
    figures = zip(*rows, strict=True) if rows else ((), (), ())
    return pl.DataFrame(
        [
            nodes.get_column("node_id").cast(pl.Int32),
            *(
                pl.Series(name, list(values), dtype)
                for (name, dtype), values in zip(_FIGURES.items(), figures, strict=True)
            ),
            pl.Series("shape_source", sources, pl.String),
        ]
    )


def tensor_bytes(tensor: Tensor) -> int | None:
    """Tensor size by element type, packed below a byte; None if the type or a dimension is unknown."""
    bits = _BITS.get(tensor.dtype or "")
    if bits is None:
        return None
    try:
        return math.ceil(tensor.count * bits / 8) if bits < 8 else tensor.count * (bits // 8)
    except Unknown:
        return None


def _repeated(names: Sequence[str]) -> tuple[int, ...]:
    """Positions of tensors that already occurred under the same name."""
    return tuple(position for position, name in enumerate(names) if name and name in names[:position])


def _work(operation: Operation, repeated: set[int]) -> _Work:
    kind = operation.op_type
    if operation.domain not in KNOWN_DOMAINS or not (
        kind in MOVES_DATA or kind in DEPENDS_ON_VALUES or has_formula(operation)
    ):
        return None, None, None
    if kind in _VIEWS:
        return 0.0, 0, 0
    inputs = [None if position in repeated else tensor for position, tensor in enumerate(operation.inputs)]
    written = _bytes(operation.outputs)
    if kind in _READ_NOTHING:
        read: int | None = 0
    elif kind in _READ_WHAT_THEY_WRITE:
        others = _bytes(inputs[1:])
        read = None if others is None or written is None else written + others
    else:
        read = _bytes(inputs)
    operations = flops(operation)
    return (
        None if operations is None or operations > _MOST_FLOPS else float(operations),
        None if read is None or read > _MOST_BYTES else read,
        None if written is None or written > _MOST_BYTES else written,
    )


def _bytes(tensors: Iterable[Tensor | None]) -> int | None:
    """Sum of the sizes of the present tensors; None if one is unknown."""
    total = 0
    for tensor in tensors:
        if tensor is not None:
            size = tensor_bytes(tensor)
            if size is None:
                return None
            total += size
    return total
