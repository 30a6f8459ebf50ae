"""What the formulas for an operator's work speak of: its tensors, and the operations that one element takes.

The formulas are `aaco_pipeline.analysis.model.operator_formulas`; nothing here looks at more than one element or
tensor.

What is counted: a multiply-add is two operations; every other addition, multiplication, division, square root,
comparison, minimum, maximum or logical operation is one; moving, selecting and converting data is none. Operations on
quantized integers count like those on floats, so that a quantized model's work can be set beside its original's.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

#: Operations per element of functions without one machine instruction. Exp, Tanh, Sigmoid and Erf: the arithmetic of
#: one lane in ONNX Runtime's own vector kernels (the MLAS library, base versions of compute.cpp, tanh.cpp,
#: logistic.cpp, erf.cpp): clamping, range reduction and polynomials, all branches, as vector code computes them. Log,
#: Sin, Cos, Atan: the polynomials of the Cephes library's single-precision routines. The others: composed of these.
#: Another library's count may differ by half as much again, and a GPU's special-function unit takes one slot; what
#: matters is that they cost tens of operations and not one.
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

#: Operations per element of an element-wise function of one tensor.
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
    # Each pair (a, b) turns into (a·cos − b·sin, a·sin + b·cos): three operations an element.
    "RotaryEmbedding": 3,
}

#: Operations per output element of an element-wise function of several tensors, after broadcasting.
BINARY: Final[Mapping[str, int]] = {
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Mod", "And", "Or", "Xor", "BitShift"), 1),
    **dict.fromkeys(("BitwiseAnd", "BitwiseOr", "BitwiseXor"), 1),
    **dict.fromkeys(("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"), 1),
    "PRelu": 2,
    "Pow": POW,
    "BiasGelu": 1 + GELU,
    # Both operands dequantized (2 each), the operation, the result quantized (2).
    "QLinearAdd": 7,
    "QLinearMul": 7,
}

#: Of the domains with formulas; anything else may mean something else by the same name.
KNOWN_DOMAINS: Final = frozenset({"ai.onnx", "", "com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc"})

#: Operators that move, select, convert or make data and compute nothing.
# fmt: off
MOVES_DATA: Final = frozenset({
    "Bernoulli", "Cast", "CastLike", "Col2Im", "Compress", "Concat", "ConcatFromSequence", "Constant",
    "ConstantOfShape", "DepthToSpace", "Dropout", "Expand", "EyeLike", "Flatten", "Gather", "GatherElements",
    "GatherND", "Identity", "MemcpyFromHost", "MemcpyToHost", "OneHot", "Pad", "QLinearConcat", "Range",
    "ReorderInput", "ReorderOutput", "Reshape", "ReverseSequence", "Scatter", "Shape", "Size", "Slice",
    "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Trilu", "Unsqueeze", "Where",
})
# fmt: on
#: Operators whose bytes are certain and whose operations depend on the values.
DEPENDS_ON_VALUES: Final = frozenset({"TopK", "NonZero", "NonMaxSuppression", "Unique"})


@dataclass(frozen=True)
class Tensor:
    """Element type and extents; an extent, the shape or the type may be unknown (None)."""

    dtype: str | None
    shape: tuple[int | None, ...] | None

    @property
    def known(self) -> tuple[int, ...]:
        """The extents. Raises Unknown unless all of them are known."""
        shape = self.shape
        if shape is None:
            raise Unknown
        sizes = tuple([size for size in shape if size is not None])
        if len(sizes) != len(shape):
            raise Unknown
        return sizes

    @property
    def count(self) -> int:
        """The number of elements. Raises Unknown unless all extents are known."""
        return math.prod(self.known)


class Unknown(Exception):
    """A shape that a formula needs is not known, or does not fit the operator."""


@dataclass(frozen=True)
class Operation:
    """One node with its tensors in the order of its signature; None where an optional one is left out."""

    op_type: str
    domain: str
    inputs: tuple[Tensor | None, ...]
    outputs: tuple[Tensor | None, ...]
    attributes: Mapping[str, Any]

    def given(self, position: int) -> bool:
        """Whether the node has an input there."""
        return position < len(self.inputs) and self.inputs[position] is not None

    def input(self, position: int) -> Tensor:
        """The input there. Raises Unknown when it is left out."""
        tensor = self.inputs[position] if position < len(self.inputs) else None
        if tensor is None:
            raise Unknown
        return tensor

    def output(self, position: int = 0) -> Tensor:
        """The output there. Raises Unknown when it is left out."""
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
