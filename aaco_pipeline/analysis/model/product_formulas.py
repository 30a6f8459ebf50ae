"""Floating-point operations of convolutions, matrix products and other sums of products.

`operator_work` handles the other operators.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

#: Operations per element of functions without a machine instruction of their own. Exp, Tanh, Sigmoid, Erf: per-lane
#: arithmetic of ONNX Runtime's vector kernels (MLAS, base versions of compute.cpp, tanh.cpp, logistic.cpp, erf.cpp):
#: clamping, range reduction and polynomials, with all branches. Log, Sin, Cos, Atan: single-precision polynomials of
#: the Cephes library. The others combine these. Other libraries' counts may be 50 % higher, and a GPU's
#: special-function unit takes one slot; what matters is that they cost tens of operations rather than one.
EXP: Final = 23
TANH: Final = 23
SIGMOID: Final = 26
ERF: Final = 51
LOG: Final = 28
SIN: Final = 16
ATAN: Final = 14
POW: Final = LOG + 1 + EXP
SOFTPLUS: Final = EXP + 1 + LOG
#: x / √2, erf, + 1, · x, · 0.5
GELU: Final = 4 + ERF
#: x³ by two products, its multiply-add with x, · √(2/π), tanh, + 1, · x, · 0.5
GELU_BY_TANH: Final = 2 + 2 + 1 + TANH + 3
#: · α, sigmoid, · x
QUICK_GELU: Final = 2 + SIGMOID
#: Maximum, subtraction, exponential, sum, division.
SOFTMAX: Final = 4 + EXP

#: Operations per element of an elementwise function of one tensor.
UNARY: Final[Mapping[str, int]] = {
    **dict.fromkeys(("Abs", "Neg", "Sign", "Ceil", "Floor", "Round", "Sqrt", "Reciprocal", "Not", "BitwiseNot"), 1),
    **dict.fromkeys(("Relu", "ThresholdedRelu", "IsNaN", "IsInf", "CumSum", "Shrink"), 1),
    **dict.fromkeys(("LeakyRelu", "Clip"), 2),
    "Softsign": 3,
    "HardSigmoid": 4,
    "HardSwish": 5,
    "Exp": EXP,
    "Log": LOG,
    "Erf": ERF,
    "Tanh": TANH,
    "Sigmoid": SIGMOID,
    "Swish": SIGMOID + 1,
    "Silu": SIGMOID + 1,
    "QuickGelu": QUICK_GELU,
    "FastGelu": GELU_BY_TANH,
    "Softplus": SOFTPLUS,
    "Mish": SOFTPLUS + TANH + 1,
    **dict.fromkeys(("Elu", "Selu", "Celu"), EXP + 3),
    **dict.fromkeys(("Sin", "Cos"), SIN),
    "Tan": 2 * SIN + 1,
    **dict.fromkeys(("Atan", "Asin", "Acos"), ATAN),
    **dict.fromkeys(("Sinh", "Cosh"), EXP + 3),
    **dict.fromkeys(("Asinh", "Acosh", "Atanh"), LOG + 4),
    **dict.fromkeys(("Softmax", "LogSoftmax"), SOFTMAX),
    "Hardmax": 1,
    "BatchNormalization": 2,
    "LpNormalization": 3,
    "MeanVarianceNormalization": 5,
    # Minimum and maximum of the tensor, then a division and the zero point's addition.
    "DynamicQuantizeLinear": 4,
    # Each pair (a, b) becomes (a·cos − b·sin, a·sin + b·cos): three operations per element.
    "RotaryEmbedding": 3,
}

#: Operations per output element of an elementwise function of several tensors, after broadcasting.
BINARY: Final[Mapping[str, int]] = {
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Mod", "And", "Or", "Xor", "BitShift"), 1),
    **dict.fromkeys(("BitwiseAnd", "BitwiseOr", "BitwiseXor"), 1),
    **dict.fromkeys(("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"), 1),
    "PRelu": 2,
    "Pow": POW,
    "BiasGelu": 1 + GELU,
    # Both operands are dequantized (2 each), the operation applied, the result quantized (2).
    "QLinearAdd": 7,
    "QLinearMul": 7,
}

#: Domains with formulas; elsewhere, the same operator name may have another meaning.
KNOWN_DOMAINS: Final = frozenset({"ai.onnx", "", "com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc"})

#: Operators that move, select, convert or create data and compute nothing.
# fmt: off
MOVES_DATA: Final = frozenset({
    "Bernoulli", "Cast", "CastLike", "Col2Im", "Compress", "Concat", "ConcatFromSequence", "Constant",
    "ConstantOfShape", "DepthToSpace", "Dropout", "Expand", "EyeLike", "Flatten", "Gather", "GatherElements",
    "GatherND", "Identity", "MemcpyFromHost", "MemcpyToHost", "OneHot", "Pad", "QLinearConcat", "Range",
    "ReorderInput", "ReorderOutput", "Reshape", "ReverseSequence", "Scatter", "Shape", "Size", "Slice",
    "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Trilu", "Unsqueeze", "Where",
})
# fmt: on
#: Operators whose bytes are known but whose operations depend on the values.
DEPENDS_ON_VALUES: Final = frozenset({"TopK", "NonZero", "NonMaxSuppression", "Unique"})


@dataclass(frozen=True)
class Tensor:
    """Element type and dimensions; a dimension, the shape or the type may be unknown (None)."""

    dtype: str | None
    shape: tuple[int | None, ...] | None

    @property
    def known(self) -> tuple[int, ...]:
        """Return the dimensions. Raises Unknown unless all of them are known."""
        shape = self.shape
        if shape is None:
            raise Unknown
        sizes = tuple([size for size in shape if size is not None])
        if len(sizes) != len(shape):
            raise Unknown
        return sizes

    @property
    def count(self) -> int:
        """Return the number of elements. Raises Unknown unless all dimensions are known."""
        return math.prod(self.known)


class Unknown(Exception):
    """A shape required by a formula is unknown or does not fit the operator."""


@dataclass(frozen=True)
class Operation:
    """One node with its tensors in signature order; None for an omitted optional one."""

    op_type: str
    domain: str
    inputs: tuple[Tensor | None, ...]
    outputs: tuple[Tensor | None, ...]
    attributes: Mapping[str, Any]

    def given(self, position: int) -> bool:
        """Return whether the node has an input at the position."""
        return position < len(self.inputs) and self.inputs[position] is not None

    def input(self, position: int) -> Tensor:
        """Return the input at the position. Raises Unknown if it is omitted."""
        tensor = self.inputs[position] if position < len(self.inputs) else None
        if tensor is None:
            raise Unknown
        return tensor

    def output(self, position: int = 0) -> Tensor:
        """Return the output at the position. Raises Unknown if it is omitted."""
        tensor = self.outputs[position] if position < len(self.outputs) else None
        if tensor is None:
            raise Unknown
        return tensor

    def integer(self, name: str, default: int) -> int:
        """An integer attribute."""
        value = self.attributes.get(name, default)
        return value if isinstance(value, int) else default

    def number(self, name: str, default: float) -> float:
        """A float attribute."""
        value = self.attributes.get(name, default)
        return value if isinstance(value, float) else default


def convolution(operation: Operation, *, weight: int = 1, bias: int | None = 2, addend: int | None = None) -> int:
    """Every output element is a sum over the weights of its filter: 2·|Y|·|W| / filters, + |Y| for a bias.

    W is [filters, channels / groups, taps…], so |W| / filters accounts for groups; strides, padding and dilation are in
    |Y|. Taps in the padding are counted, because implementations multiply them by zero. Fused forms add a tensor
    (`addend`) and an activation. Independent of the layout, because W always begins with the filters.
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
    """QLinearConv: the integer convolution, then a product with the scales and the zero point per output."""
    return convolution(operation, weight=3, bias=8) + 2 * operation.output().count


def matrix_product(operation: Operation, *, right: int = 1) -> int:
    """Every output element is a sum of K products: 2·K·(batch·M·N), batch dimensions broadcast as in NumPy.

    A one-dimensional operand is a row on the left and a column on the right. FusedMatMul's transA, transB swap the
    last two dimensions; with transBatchA, transBatchB the rows come before the batch; its alpha is one more product
    per output.
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
    results = math.prod(broadcast(a[:-2], b[:-2])) * rows * columns
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
    """QLinearMatMul: the integer product, then a product with the scales and the zero point per output."""
    return matrix_product(operation, right=3) + 2 * operation.output().count


def packed_matrix_product(operation: Operation) -> int:
    """MatMulNBits and similar operators, with K and N as attributes: 2·rows·K·N, + N per row for a bias.

    Unpacking the weights is not counted, because its cost depends on the implementation.
    """
    rows = math.prod(operation.input(0).known[:-1])
    inner, columns = operation.integer("K", -1), operation.integer("N", -1)
    if inner < 0 or columns < 0:
        raise Unknown
    return rows * columns * (2 * inner + operation.given(5))


def einsum(operation: Operation) -> int:
    """Two operands: a multiply-add for each combination of all labels, or a product if none is summed over.

    One operand: an addition per element if a label is summed over. Other cases, and ellipses, are not counted.
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


def attention(operation: Operation) -> int:
    """Attention of ONNX: query, key, value, mask, past key, past value; three- or four-dimensional.

    See `_attention`; for three-dimensional inputs, attributes give the numbers of heads.
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
    """GroupQueryAttention: query [B, S, D], or query, key and value concatenated if there is no key.

    The attended length is the present key's, [B, kv heads, T, width], or else the past's plus S. If the present shares
    the past's buffer, it is the buffer's length, an upper bound. Rotary embedding, three operations per element of
    query and key, is added if the node performs it.
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
    """Scores (batch · heads · queried · attended), 2·width each, are scaled, masked and passed through softmax.

    Each score then weighs a value, 2·value width.
    """
    return scores * (2 * width + 1 + masked + SOFTMAX + 2 * value_width)


def fused_convolution(operation: Operation) -> int:
    """A convolution (X, W, B) with a tensor to add (Z) and an activation."""
    return convolution(operation, addend=3)


def broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the broadcast shape by NumPy's rules. Raises Unknown if the shapes do not match."""
    rank = max(map(len, shapes))
    result = []
    for sizes in zip(*((1,) * (rank - len(shape)) + shape for shape in shapes), strict=True):
        wide = {size for size in sizes if size != 1}
        if len(wide) > 1:
            raise Unknown
        result.append(wide.pop() if wide else 1)
    return tuple(result)


def _swapped(pair: tuple[int, ...], transposed: int) -> tuple[int, int]:
    first, second = pair
    return (second, first) if transposed else (first, second)


def _activation(operation: Operation) -> int:
    """Operations per output of a fused operator's activation."""
    name = operation.attributes.get("activation")
    return UNARY.get(name, 1) if isinstance(name, str) and name else 0
