"""How many floating-point operations one execution of an operator takes, by formula from its tensors' shapes.

One function per family is here, with its derivation, sums of products aside, which are `product_formulas`. What one
element of a function costs is `aaco_pipeline.analysis.model.operator_counts`, the walk over a model's nodes
`aaco_pipeline.analysis.model.operator_work`.

Terms of one operation per row or channel (the root in a normalization, the logarithm in LogSoftmax) are left out.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from aaco_pipeline.analysis.model.operator_counts import (
    BINARY,
    EXP,
    GELU,
    GELU_BY_TANH,
    KNOWN_DOMAINS,
    LOG,
    MOVES_DATA,
    POW,
    UNARY,
    Operation,
    Unknown,
)
from aaco_pipeline.analysis.model.product_formulas import (
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
    """Whether there is a formula for the operator's type, be the shapes known or not."""
    return _formula(operation) is not None


def _formula(operation: Operation) -> Formula | None:
    if operation.domain not in KNOWN_DOMAINS:
        return None
    own = _MICROSOFT.get(operation.op_type) if operation.domain == "com.microsoft" else None
    return own or _FORMULAS.get(operation.op_type)


def flops(operation: Operation) -> int | None:
    """Operations of one execution; None without a formula for the type or without the shapes it needs."""
    formula = _formula(operation)
    if formula is None:
        return 0 if operation.op_type in MOVES_DATA and operation.domain in KNOWN_DOMAINS else None
    try:
        return formula(operation)
    except (Unknown, IndexError, ValueError, ZeroDivisionError):
        return None


# ---- element by element ------------------------------------------------------------------------------------------


def unary(operation: Operation) -> int:
    """The table's count for every element of the first input."""
    return operation.input(0).count * UNARY[operation.op_type]


def binary(operation: Operation) -> int:
    """The table's count for every element of the output, whose shape is the inputs' broadcast if it is not known."""
    return _output_count(operation) * BINARY[operation.op_type]


def variadic(operation: Operation) -> int:
    """Sum, Max, Min of n tensors: n − 1 operations per output element; Mean divides once more."""
    present = max(sum(tensor is not None for tensor in operation.inputs), 1)
    return _output_count(operation) * (present - 1 + (operation.op_type == "Mean"))


def gelu(operation: Operation) -> int:
    """The exact form with erf, or the attribute `approximate`'s form with tanh."""
    by_tanh = operation.attributes.get("approximate") == "tanh"
    return operation.input(0).count * (GELU_BY_TANH if by_tanh else GELU)


def fast_gelu(operation: Operation) -> int:
    """The form with tanh, after adding a bias where the node has one."""
    return operation.input(0).count * (GELU_BY_TANH + operation.given(1))


def quantize(operation: Operation) -> int:
    """A division by the scale (or a product with it) per element, and the zero point's addition where given."""
    return operation.input(0).count * (1 + operation.given(2))


def scatter(operation: Operation) -> int:
    """Nothing to compute, or one operation per update when updates are added, multiplied or compared."""
    reduces = operation.attributes.get("reduction", "none") != "none"
    return operation.input(2).count if reduces else 0


def resize(operation: Operation) -> int:
    """A weighted sum of 2 (linear) or 4 (cubic) neighbours along each axis that changes: 2·taps^axes per output.

    Nearest-neighbour selection computes nothing. Separable implementations need less, hence an upper bound.
    """
    taps: int | None = {"linear": 2, "bilinear": 2, "cubic": 4}.get(str(operation.attributes.get("mode", "nearest")))
    if taps is None:
        return 0
    before, after = operation.input(0).known, operation.output().known
    axes = sum(a != b for a, b in zip(before, after, strict=True))
    return math.prod(after) * 2 * math.prod([taps] * axes) if axes else 0


# ---- reductions, normalizations, pooling ---------------------------------------------------------------------------


def reduction(operation: Operation) -> int:
    """n elements into one take n − 1 operations; forms that map each element first, or divide last, take those too."""
    elements, results = operation.input(0).count, operation.output().count
    folding = max(elements - results, 0)
    kind = operation.op_type
    before: int = {"ReduceL1": 1, "ReduceL2": 1, "ReduceSumSquare": 1, "ReduceLogSumExp": 1 + EXP}.get(kind, 0)
    after: int = {"ReduceMean": 1, "ReduceL2": 1, "ReduceLogSum": LOG, "ReduceLogSumExp": LOG + 1}.get(kind, 0)
    maximum_first = folding if kind == "ReduceLogSumExp" else 0
    return folding + maximum_first + elements * before + results * after


def layer_normalization(operation: Operation) -> int:
    """Per element: sum for the mean, subtraction, square, sum for the variance, product, scale; shift if given.

    Also InstanceNormalization and GroupNormalization, which differ in what is averaged over.
    """
    return operation.input(0).count * (6 + operation.given(2))


def root_mean_square_normalization(operation: Operation) -> int:
    """Per element: square, sum, product with the inverse root, scale."""
    return operation.input(0).count * 4


def skip_normalization(operation: Operation) -> int:
    """The sum of input and skip (and of a bias where given), then the normalization of that sum.

    SkipLayerNormalization(input, skip, gamma, beta, bias); SkipSimplifiedLayerNormalization(input, skip, gamma, bias).
    """
    simplified = operation.op_type.startswith("SkipSimplified")
    shift, bias = (False, operation.given(3)) if simplified else (operation.given(3), operation.given(4))
    return operation.input(0).count * (1 + bias + (4 if simplified else 6 + shift))


def local_response_normalization(operation: Operation) -> int:
    """Per element: `size` multiply-adds of squares, a multiply-add for the base, a power, a division."""
    return operation.input(0).count * (2 * operation.integer("size", 1) + 2 + POW + 1)


def maximum_pooling(operation: Operation) -> int:
    """k taps take k − 1 comparisons per output; taps in the padding are counted, too."""
    return operation.output().count * max(_taps(operation) - 1, 0)


def average_pooling(operation: Operation) -> int:
    """k taps take k − 1 additions and a division per output; taps in the padding are counted, too."""
    return operation.output().count * _taps(operation)


def norm_pooling(operation: Operation) -> int:
    """A power per tap, their sum, and a root; LpPool with p = 2 squares, which is one operation."""
    power = 1 if operation.integer("p", 2) in (1, 2) else POW
    return operation.output().count * _taps(operation) * (power + 1)


def global_pooling(operation: Operation) -> int:
    """n elements of a channel into one: n − 1 operations, and a division for the average."""
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
