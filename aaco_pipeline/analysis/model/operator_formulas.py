"""How many floating-point operations one execution of an operator takes, by formula from its tensors' shapes.

One function per family is here, with its derivation; what one element of a function costs is
`aaco_pipeline.analysis.model.operator_counts`, the walk over a model's nodes
`aaco_pipeline.analysis.model.operator_work`.

Terms of one operation per row or channel (the root in a normalization, the logarithm in LogSoftmax) are left out.
Masks are not exploited: causal attention counts all scores, as kernels without a special case compute them.
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
    SIGMOID,
    SOFTMAX,
    TANH,
    UNARY,
    Operation,
    Unknown,
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


# ---- sums of products ----------------------------------------------------------------------------------------------


def convolution(operation: Operation, *, weight: int = 1, bias: int | None = 2, addend: int | None = None) -> int:
    """Every output element is a sum over the weights of its filter: 2·|Y|·|W| / filters, + |Y| for a bias.

    W is [filters, channels / groups, taps…], so |W| / filters holds groups; strides, padding and dilation are in
    |Y|. Taps that fall into the padding are counted, as implementations multiply them by zero. Fused forms add a
    tensor (`addend`) and an activation. Independent of the layout, for all begin W with the filters.
    """
    outputs = operation.output().count
    weights = operation.input(weight).known
    added = sum(operation.given(position) for position in (bias, addend) if position is not None)
    return outputs * (2 * math.prod(weights[1:]) + added + _activation(operation))


def transposed_convolution(operation: Operation) -> int:
    """Every input element is spread over the weights of its channel: 2·|X|·|W| / channels, + |Y| for a bias.

    W is [channels, filters / groups, taps…].
    """
    spread = 2 * operation.input(0).count * math.prod(operation.input(1).known[1:])
    return spread + (operation.output().count if operation.given(2) else 0)


def quantized_convolution(operation: Operation) -> int:
    """QLinearConv: the convolution on integers, then a product with the scales and the zero point per output."""
    return convolution(operation, weight=3, bias=8) + 2 * operation.output().count


def matrix_product(operation: Operation, *, right: int = 1) -> int:
    """Every output element is a sum of K products: 2·K·(batch·M·N), batch dimensions broadcast as in NumPy.

    A one-dimensional operand is a row on the left and a column on the right. FusedMatMul's transA, transB swap the
    last two dimensions, its transBatchA, transBatchB say that the rows come before the batch; its alpha is one more
    product per output.
    """
    a, b = operation.input(0).known, operation.input(right).known
    if not a or not b:
        raise Unknown
    a = (1, *a) if len(a) == 1 else a
    b = (*b, 1) if len(b) == 1 else b
    if operation.integer("transBatchA", 0):
        a = (*a[1:-1], a[0], a[-1])
    if operation.integer("transBatchB", 0):
        b = (*b[1:-1], b[0], b[-1])
    rows, inner = _swapped(a[-2:], operation.integer("transA", 0))
    other_inner, columns = _swapped(b[-2:], operation.integer("transB", 0))
    if inner != other_inner:
        raise Unknown
    results = math.prod(_broadcast(a[:-2], b[:-2])) * rows * columns
    return results * (2 * inner + (operation.number("alpha", 1.0) != 1.0) + _activation(operation))


def general_matrix_product(operation: Operation, *, right: int = 1, addend: int = 2) -> int:
    """alpha·A·B + beta·C: 2·M·N·K, M·N for adding C, and M·N for each factor that is not one."""
    rows, inner = _swapped(operation.input(0).known, operation.integer("transA", 0))
    other_inner, columns = _swapped(operation.input(right).known, operation.integer("transB", 0))
    if inner != other_inner:
        raise Unknown
    per_result = 2 * inner + (operation.number("alpha", 1.0) != 1.0) + _activation(operation)
    beta = operation.number("beta", 1.0)
    if operation.given(addend) and beta != 0.0:
        per_result += 1 + (beta != 1.0)
    return rows * columns * per_result


def quantized_matrix_product(operation: Operation) -> int:
    """QLinearMatMul: the product on integers, then a product with the scales and the zero point per output."""
    return matrix_product(operation, right=3) + 2 * operation.output().count


def packed_matrix_product(operation: Operation) -> int:
    """MatMulNBits and its kin, with K and N as attributes: 2·rows·K·N, + N per row for a bias.

    Unpacking the weights is not counted: how often it is done is the implementation's choice.
    """
    rows = math.prod(operation.input(0).known[:-1])
    inner, columns = operation.integer("K", -1), operation.integer("N", -1)
    if inner < 0 or columns < 0:
        raise Unknown
    return rows * columns * (2 * inner + operation.given(5))


def einsum(operation: Operation) -> int:
    """Two operands: a multiply-add for every combination of all labels, or a product if none is summed over.

    Of one operand: an addition per element if a label is summed over. Others, and ellipses, are not counted.
    """
    equation = str(operation.attributes.get("equation", "")).replace(" ", "")
    terms, arrow, result = equation.partition("->")
    operands = terms.split(",")
    if "." in equation or not 1 <= len(operands) <= 2:
        raise Unknown
    extent: dict[str, int] = {}
    for position, labels in enumerate(operands):
        for label, size in zip(labels, operation.input(position).known, strict=True):
            extent[label] = max(extent.get(label, 1), size) if size else 0
    if not arrow:
        result = "".join(label for label in extent if terms.count(label) == 1)
    sums = bool(set(extent) - set(result))
    return math.prod(extent.values()) * (len(operands) - 1 + sums)


def recurrent(operation: Operation) -> int:
    """T steps of batch B: products with W and R, the two biases' sum, and the cell's own element-wise work.

    X is [T, B, I], or [B, T, I] with layout 1; W is [directions, gates·H, I], R [directions, gates·H, H], biases
    [directions, 2·gates·H]. Per element of H: LSTM three sigmoids, two tanhs, three products, a sum; GRU two
    sigmoids, a tanh, three products, a sum, a subtraction; RNN its tanh. Sequences shorter than T count in full.
    """
    first, second, _ = operation.input(0).known
    weights, recurrence = operation.input(1).known, operation.input(2).known
    directions, hidden = recurrence[0], recurrence[2]
    cell = {"LSTM": 3 * SIGMOID + 2 * TANH + 4, "GRU": 2 * SIGMOID + TANH + 5, "RNN": TANH}[operation.op_type]
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[operation.op_type]
    products = 2 * (math.prod(weights) + math.prod(recurrence)) + directions * gates * hidden
    biases = operation.input(3).count if operation.given(3) else 0
    return first * second * (products + biases + directions * hidden * cell)


# ---- attention -----------------------------------------------------------------------------------------------------


def attention(operation: Operation) -> int:
    """Attention of ONNX: query, key, value, mask, past key, past value; three- or four-dimensional.

    See `_attention`; with three dimensions, attributes give the numbers of heads.
    """
    query, key, value = (operation.input(position).known for position in range(3))
    past = operation.input(4).known[2] if operation.given(4) else 0
    if len(query) == 4:
        batch, heads, queried, width = query
        attended, value_width = key[2], value[3]
    else:
        heads = operation.integer("q_num_heads", 0)
        kept = operation.integer("kv_num_heads", 0)
        batch, queried, width = query[0], query[1], query[2] // heads
        attended, value_width = key[1], value[2] // kept
    return _attention(batch * heads * queried * (attended + past), width, value_width, masked=operation.given(3))


def projecting_attention(operation: Operation, *, past: int = 4, mask: int = 5) -> int:
    """Attention of com.microsoft: projects its input [B, S, D] by weights [D, query + key + value] first.

    The projection takes 2·B·S·|weights|, and B·S per bias element; `past` is [2, B, heads, P, width].
    """
    batch, sequence, width = operation.input(0).known
    weights = operation.input(1).known
    heads = operation.integer("num_heads", 0)
    sizes = operation.attributes.get("qkv_hidden_sizes") or (weights[1] // 3,) * 3
    before = operation.input(past).known[3] if operation.given(past) else 0
    projection = 2 * batch * sequence * width * weights[1]
    projection += batch * sequence * operation.input(2).count if operation.given(2) else 0
    return projection + _attention(
        batch * heads * sequence * (sequence + before),
        sizes[0] // heads,
        sizes[2] // heads,
        masked=operation.given(mask),
    )


def multi_head_attention(operation: Operation) -> int:
    """MultiHeadAttention: query [B, S, D], or all three packed as [B, S, heads, 3, width] in the first input.

    Key and value are [B, T, D], [B, heads, T, width], or packed as [B, T, heads, 2, width]; a past adds to T.
    """
    query = operation.input(0).known
    heads = operation.integer("num_heads", 0)
    past = operation.input(6).known[2] if operation.given(6) else 0
    if len(query) == 5:
        batch, queried, heads, _, width = query
        attended, value_width = queried, width
    else:
        batch, queried, width = query[0], query[1], query[2] // heads
        key = operation.input(1).known
        if len(key) == 5:
            attended, value_width = key[1], key[4]
        elif len(key) == 4:
            attended, value_width = key[2], operation.input(2).known[3]
        else:
            attended, value_width = key[1], operation.input(2).known[2] // heads
    biases = batch * queried * operation.input(3).count if operation.given(3) else 0
    return biases + _attention(
        batch * heads * queried * (attended + past), width, value_width, masked=operation.given(5)
    )


def grouped_query_attention(operation: Operation) -> int:
    """GroupQueryAttention: query [B, S, D], or query, key and value side by side when there is no key.

    What is attended to is the present key's length, [B, kv heads, T, width], or else the past's plus S. A present
    that shares the past's buffer has the buffer's length: an upper bound. Rotary embedding, three operations per
    element of query and key, is added where the node does it.
    """
    batch, queried, total_width = operation.input(0).known
    heads, kept = operation.integer("num_heads", 0), operation.integer("kv_num_heads", 0)
    width = total_width // heads if operation.given(1) else total_width // (heads + 2 * kept)
    try:
        attended = operation.output(1).known[2]
    except Unknown:
        attended = queried + (operation.input(3).known[2] if operation.given(3) else 0)
    rotated = batch * queried * (heads + kept) * width if operation.integer("do_rotary", 0) else 0
    return _attention(batch * heads * queried * attended, width, width, masked=False) + 3 * rotated


def _attention(scores: int, width: int, value_width: int, *, masked: bool) -> int:
    """Scores (batch · heads · queried · attended), 2·width each, are scaled, masked and go through softmax.

    Then each weighs a value, 2·value width.
    """
    return scores * (2 * width + 1 + masked + SOFTMAX + 2 * value_width)


# ---- helpers -------------------------------------------------------------------------------------------------------


def _swapped(pair: tuple[int, ...], transposed: int) -> tuple[int, int]:
    first, second = pair
    return (second, first) if transposed else (first, second)


def _broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that NumPy's rules give. Raises Unknown when they do not fit."""
    rank = max(map(len, shapes))
    result = []
    for sizes in zip(*((1,) * (rank - len(shape)) + shape for shape in shapes), strict=True):
        wide = {size for size in sizes if size != 1}
        if len(wide) > 1:
            raise Unknown
        result.append(wide.pop() if wide else 1)
    return tuple(result)


def _output_count(operation: Operation) -> int:
    try:
        return operation.output().count
    except Unknown:
        return math.prod(_broadcast(*(tensor.known for tensor in operation.inputs if tensor is not None)))


def _taps(operation: Operation) -> int:
    kernel = operation.attributes.get("kernel_shape")
    if not isinstance(kernel, tuple):
        raise Unknown
    return math.prod(kernel)


def _activation(operation: Operation) -> int:
    """Operations per output of the activation that a fused operator names."""
    name = operation.attributes.get("activation")
    return UNARY.get(name, 1) if isinstance(name, str) and name else 0


def _fused_convolution(operation: Operation) -> int:
    """A convolution (X, W, B) with a tensor to add (Z) and an activation."""
    return convolution(operation, addend=3)


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
    **dict.fromkeys(("Conv", "FusedConv", "NhwcConv", "NhwcFusedConv"), _fused_convolution),
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
