"""The work of operators: small cases counted by hand, odd graphs, and whole models beside another tool's count."""

import importlib.util
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import aaco_pipeline
from aaco_pipeline.analysis.model.node_mapping import TensorType
from aaco_pipeline.analysis.model.operator_work import work
from aaco_pipeline.analysis.model.product_formulas import (
    ERF,
    EXP,
    GELU,
    GELU_BY_TANH,
    POW,
    SIGMOID,
    SOFTMAX,
    TANH,
    UNARY,
)
from aaco_pipeline.lake.contracts import polars_types

SCRIPT: Final = Path(aaco_pipeline.__file__).parents[1] / "benchmarks/accuracy/model_graph.py"
Shape = tuple[int | None, ...]
#: A shape of float32, a shape with its type, or a tensor of unknown type.
Operand = Shape | TensorType | None


class Work(NamedTuple):
    flops: float | None
    read: int | None
    written: int | None
    source: str | None


def typed(operand: Operand) -> TensorType:
    if operand is None:
        return None, None
    if operand and isinstance(operand[0], str):
        return operand[0], operand[1]
    return "float32", operand  # type: ignore[return-value]


def nodes_of(rows: Sequence[tuple[str, str, Sequence[str], Sequence[str]]]) -> pl.DataFrame:
    columns = polars_types("model_nodes", "node_id", "op_type", "domain", "inputs", "outputs")
    return pl.DataFrame([(node_id, *row) for node_id, row in enumerate(rows)], schema=columns, orient="row")


def work_of(
    op_type: str, inputs: Sequence[Operand | str], *outputs: Operand, domain: str = "ai.onnx", **attributes: Any
) -> Work:
    """The work of one node; an input of "" is left out, and the text "=0" gives the first input again."""
    types: dict[str, TensorType] = {}
    names = []
    for position, operand in enumerate(inputs):
        name = {"": "", "=0": "i0"}.get(operand, f"i{position}") if isinstance(operand, str) else f"i{position}"
        names.append(name)
        if not isinstance(operand, str):
            types[name] = typed(operand)
    types |= {f"o{position}": typed(operand) for position, operand in enumerate(outputs)}
    nodes = nodes_of([(op_type, domain, names, [f"o{position}" for position in range(len(outputs))])])
    row = work(nodes, {0: attributes} if attributes else {}, types).row(0)
    return Work(*row[1:])


# ---- sums of products ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "output", "attributes", "flops"),
    [
        # 8 filters over 3 channels of 3 × 3, padded: 2 · 27 operations per output element.
        ([(1, 3, 10, 10), (8, 3, 3, 3)], (1, 8, 10, 10), {"pads": (1, 1, 1, 1)}, 800 * 54),
        ([(1, 3, 10, 10), (8, 3, 3, 3), (8,)], (1, 8, 10, 10), {"pads": (1, 1, 1, 1)}, 800 * 55),
        # Stride 2 without padding halves the extents: ⌊(10 − 3) / 2⌋ + 1 = 4.
        ([(2, 3, 10, 10), (8, 3, 3, 3)], (2, 8, 4, 4), {"strides": (2, 2)}, 2 * 8 * 16 * 54),
        # Dilation 2 makes the filter 5 wide: 10 − 5 + 1 = 6; its taps stay nine.
        ([(1, 3, 10, 10), (8, 3, 3, 3)], (1, 8, 6, 6), {"dilations": (2, 2)}, 8 * 36 * 54),
        ([(1, 3, 9, 9), (8, 3, 3, 3)], (1, 8, 5, 5), {"auto_pad": "SAME_UPPER", "strides": (2, 2)}, 8 * 25 * 54),
        # Four groups of two channels each, and one group per channel.
        ([(1, 8, 5, 5), (12, 2, 3, 3)], (1, 12, 3, 3), {"group": 4}, 12 * 9 * 2 * 2 * 9),
        ([(1, 8, 5, 5), (8, 1, 3, 3), (8,)], (1, 8, 3, 3), {"group": 8}, 8 * 9 * (2 * 9 + 1)),
        # One and three dimensions.
        ([(1, 4, 20), (6, 4, 5)], (1, 6, 16), {}, 6 * 16 * 2 * 20),
        ([(1, 2, 4, 4, 4), (3, 2, 2, 2, 2)], (1, 3, 3, 3, 3), {}, 81 * 2 * 16),
        ([(0, 3, 10, 10), (8, 3, 3, 3)], (0, 8, 8, 8), {}, 0),
        ([(1, 3, 10, 10), (8, 3, 3, 3)], (None, 8, 8, 8), {}, None),
        ([(1, 3, 10, 10), None], (1, 8, 8, 8), {}, None),
    ],
)
def test_convolution(inputs: list[Operand], output: Operand, attributes: Mapping[str, Any], flops: int | None) -> None:
    assert work_of("Conv", inputs, output, **attributes).flops == flops


def test_convolution_is_what_a_loop_over_the_taps_counts() -> None:
    """Two multiply-adds' worth per output element, tap and channel, counted with loops over all of them."""
    groups, channels, filters, taps, size, stride = 2, 4, 6, 3, 9, 2
    outputs = (size - taps) // stride + 1
    counted = sum(
        2 for _ in range(filters) for _ in range(outputs) for _ in range(channels // groups) for _ in range(taps)
    )
    assert work_of("Conv", [(1, 4, 9), (6, 2, 3)], (1, 6, 4), group=2, strides=(2,)).flops == counted


def test_fused_and_blocked_convolutions_add_their_tensor_and_activation() -> None:
    x, w, b, z, y = (1, 16, 8, 8), (16, 16, 3, 3), (16,), (1, 16, 6, 6), (1, 16, 6, 6)
    plain = 576 * 2 * 144
    for op_type, domain in (("FusedConv", "com.microsoft"), ("Conv", "com.microsoft.nchwc")):
        assert work_of(op_type, [x, w, b], y, domain=domain, activation="Relu").flops == plain + 2 * 576
        assert work_of(op_type, [x, w, b, z], y, domain=domain, activation="Relu").flops == plain + 3 * 576
        assert work_of(op_type, [x, w, b], y, domain=domain, activation="Sigmoid").flops == plain + 576 * (1 + SIGMOID)


def test_transposed_convolution_spreads_every_input_element() -> None:
    # 2 × 2 inputs of 3 channels, each spread over 5 filters of 3 × 3; stride 2 gives 5 × 5 outputs.
    assert work_of("ConvTranspose", [(1, 3, 2, 2), (3, 5, 3, 3)], (1, 5, 5, 5), strides=(2, 2)).flops == 12 * 2 * 45
    with_bias = work_of("ConvTranspose", [(1, 3, 2, 2), (3, 5, 3, 3), (5,)], (1, 5, 5, 5), strides=(2, 2))
    assert with_bias.flops == 12 * 2 * 45 + 125


def test_quantized_convolutions_count_their_integers_and_bytes() -> None:
    x, w, y = ("uint8", (1, 3, 10, 10)), ("int8", (8, 3, 3, 3)), ("uint8", (1, 8, 8, 8))
    scale, zero = (), ("uint8", ())
    found = work_of("QLinearConv", [x, scale, zero, w, scale, ("int8", ()), scale, zero, ("int32", (8,))], y)
    assert found.flops == 512 * (2 * 27 + 1 + 2)
    assert found.read == 300 + 4 + 1 + 216 + 4 + 1 + 4 + 1 + 32
    assert found.written == 512
    integer = work_of("ConvInteger", [x, w, zero, ("int8", ())], ("int32", (1, 8, 8, 8)))
    assert integer.flops == 512 * 2 * 27
    assert integer.written == 2048


@pytest.mark.parametrize(
    ("left", "right", "output", "flops"),
    [
        ((3, 4), (4, 5), (3, 5), 2 * 60),
        ((2, 3, 4), (4, 5), (2, 3, 5), 2 * 120),
        ((2, 1, 3, 4), (7, 4, 5), (2, 7, 3, 5), 2 * 2 * 7 * 60),
        ((4,), (4, 5), (5,), 2 * 20),
        ((3, 4), (4,), (3,), 2 * 12),
        ((4,), (4,), (), 2 * 4),
        ((0, 4), (4, 5), (0, 5), 0),
        ((3, 0), (0, 5), (3, 5), 0),
        ((3, 4), (5, 6), None, None),
        ((2, 3, 4), (3, 4, 5), None, None),
        ((None, 4), (4, 5), (None, 5), None),
    ],
)
def test_matrix_product(left: Shape, right: Shape, output: Operand, flops: int | None) -> None:
    assert work_of("MatMul", [left, right], output).flops == flops
    # The output's shape is not needed, it follows from the operands.
    assert work_of("MatMul", [left, right], None).flops == flops


@given(
    batch=st.lists(st.integers(0, 4), max_size=3),
    ones=st.lists(st.booleans(), min_size=6, max_size=6),
    short=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    sizes=st.tuples(st.integers(0, 5), st.integers(1, 5), st.integers(0, 5)),
)
def test_matrix_product_is_what_einsum_multiplies(
    batch: list[int], ones: list[bool], short: tuple[int, int], sizes: tuple[int, int, int]
) -> None:
    """The products numpy.einsum forms are counted by multiplying ones: their sum over the output is their number."""
    rows, inner, columns = sizes

    def operand(skip: int, flags: list[bool]) -> list[int]:
        return [1 if one else size for size, one in zip(batch, flags, strict=False)][skip:]

    left, right = operand(short[0], ones[:3]), operand(short[1], ones[3:])
    products = np.einsum("...ij,...jk->...ik", np.ones([*left, rows, inner]), np.ones([*right, inner, columns]))
    assert work_of("MatMul", [(*left, rows, inner), (*right, inner, columns)], None).flops == 2 * products.sum()


def test_fused_matrix_product_swaps_and_scales() -> None:
    left, right = (2, 7, 4, 3), (2, 7, 5, 4)
    fused = work_of("FusedMatMul", [left, right], None, domain="com.microsoft", transA=1, transB=1, alpha=0.125)
    assert fused.flops == 14 * 15 * (2 * 4 + 1)
    # Rows before the batch: [3, 7, 4] is seven matrices of 3 × 4.
    batched = work_of("FusedMatMul", [(3, 7, 4), (7, 4, 5)], None, domain="com.microsoft", transBatchA=1)
    assert batched.flops == 7 * 15 * 8


@pytest.mark.parametrize(
    ("left", "right", "attributes", "flops"),
    [
        ((3, 4), (4, 5), {}, 15 * (8 + 1)),
        ((4, 3), (4, 5), {"transA": 1}, 15 * (8 + 1)),
        ((3, 4), (5, 4), {"transB": 1}, 15 * (8 + 1)),
        ((4, 3), (5, 4), {"transA": 1, "transB": 1}, 15 * (8 + 1)),
        ((3, 4), (4, 5), {"alpha": 0.5, "beta": 0.25}, 15 * (8 + 1 + 1 + 1)),
        ((3, 4), (4, 5), {"beta": 0.0}, 15 * 8),
        ((3, 4), (5, 4), {}, None),
        ((3, 4, 1), (4, 5), {}, None),
    ],
)
def test_general_matrix_product(left: Shape, right: Shape, attributes: Mapping[str, Any], flops: int | None) -> None:
    assert work_of("Gemm", [left, right, (5,)], (3, 5), **attributes).flops == flops


def test_fused_general_matrix_product_has_its_activation() -> None:
    found = work_of("FusedGemm", [(3, 4), (4, 5), (5,)], (3, 5), domain="com.microsoft", activation="Tanh")
    assert found.flops == 15 * (8 + 1 + TANH)


def test_quantized_matrix_products() -> None:
    a, b, scale, zero = ("uint8", (2, 3, 4)), ("int8", (4, 5)), (), ("uint8", ())
    linear = work_of("QLinearMatMul", [a, scale, zero, b, scale, zero, scale, zero], ("uint8", (2, 3, 5)))
    assert linear == (30 * (8 + 2), 24 + 4 + 1 + 20 + 4 + 1 + 4 + 1, 30, "inferred")
    assert work_of("MatMulInteger", [a, b, zero, zero], ("int32", (2, 3, 5))).flops == 30 * 8
    packed: list[Operand] = [(2, 3, 64), ("uint8", (32, 2, 16)), ("float32", (64,)), ("uint8", (32,))]
    found = work_of("MatMulNBits", packed, (2, 3, 32), domain="com.microsoft", K=64, N=32, bits=4, block_size=32)
    assert found == (6 * 32 * 128, 384 * 4 + 1024 + 256 + 32, 192 * 4, "inferred")


@pytest.mark.parametrize(
    ("equation", "inputs", "flops"),
    [
        ("ij,jk->ik", [(3, 4), (4, 5)], 2 * 60),
        ("bij, bjk -> bik", [(2, 3, 4), (2, 4, 5)], 2 * 120),
        ("ij,jk", [(3, 4), (4, 5)], 2 * 60),
        ("i,j->ij", [(3,), (4,)], 12),
        ("ij->i", [(3, 4)], 12),
        ("ij->ji", [(3, 4)], 0),
        ("...ij,...jk->...ik", [(3, 4), (4, 5)], None),
        ("ij,jk,kl->il", [(3, 4), (4, 5), (5, 6)], None),
        ("ij,jk->ik", [(3, 4, 5), (4, 5)], None),
    ],
)
def test_einsum(equation: str, inputs: list[Operand], flops: int | None) -> None:
    assert work_of("Einsum", inputs, (1,), equation=equation).flops == flops


# ---- attention, recurrence -----------------------------------------------------------------------------------------


def attended(batch: int, heads: int, queried: int, length: int, width: int, *, masked: int = 0) -> int:
    """Scores, scaling, mask, softmax and the weighted sum, one after the other."""
    scores = batch * heads * queried * length
    return scores * 2 * width + scores + masked * scores + scores * SOFTMAX + scores * 2 * width


def test_attention_of_onnx_in_both_layouts() -> None:
    four = work_of("Attention", [(2, 4, 6, 8), (2, 2, 10, 8), (2, 2, 10, 8)], (2, 4, 6, 8))
    assert four.flops == attended(2, 4, 6, 10, 8)
    three = work_of("Attention", [(2, 6, 32), (2, 10, 16), (2, 10, 16)], (2, 6, 32), q_num_heads=4, kv_num_heads=2)
    assert three.flops == four.flops
    past = [(2, 4, 6, 8), (2, 4, 1, 8), (2, 4, 1, 8), (6, 10), (2, 4, 9, 8), (2, 4, 9, 8)]
    assert work_of("Attention", past, (2, 4, 6, 8)).flops == attended(2, 4, 6, 10, 8, masked=1)


def test_attention_with_projection() -> None:
    found = work_of("Attention", [(2, 6, 32), (32, 96), (96,)], (2, 6, 32), domain="com.microsoft", num_heads=4)
    assert found.flops == 2 * 12 * 32 * 96 + 12 * 96 + attended(2, 4, 6, 6, 8)
    past: list[Operand | str] = [(2, 1, 32), (32, 96), (96,), "", (2, 2, 4, 9, 8)]
    found = work_of("Attention", past, (2, 1, 32), domain="com.microsoft", num_heads=4)
    assert found.flops == 2 * 2 * 32 * 96 + 2 * 96 + attended(2, 4, 1, 10, 8)


def test_multi_head_attention_separate_packed_and_with_a_past() -> None:
    expected = attended(2, 4, 6, 10, 8)

    def flops(inputs: Sequence[Operand | str], output: Operand) -> float | None:
        return work_of("MultiHeadAttention", inputs, output, domain="com.microsoft", num_heads=4).flops

    assert flops([(2, 6, 32), (2, 10, 32), (2, 10, 32)], (2, 6, 32)) == expected
    assert flops([(2, 6, 32), (2, 4, 10, 8), (2, 4, 10, 8)], (2, 6, 32)) == expected
    assert flops([(2, 6, 32), (2, 10, 4, 2, 8)], (2, 6, 32)) == expected
    assert flops([(2, 6, 4, 3, 8)], (2, 6, 32)) == attended(2, 4, 6, 6, 8)
    past: list[Operand | str] = [(2, 6, 32), (2, 1, 32), (2, 1, 32), "", "", "", (2, 4, 9, 8), (2, 4, 9, 8)]
    assert flops(past, (2, 6, 32)) == expected


def test_grouped_query_attention_separate_and_packed() -> None:
    def flops(inputs: Sequence[Operand | str], *outputs: Operand, **attributes: int) -> float | None:
        sizes = {"num_heads": 4, "kv_num_heads": 2, **attributes}
        return work_of("GroupQueryAttention", inputs, *outputs, domain="com.microsoft", **sizes).flops

    present = (2, 2, 10, 8)
    past = (2, 2, 9, 8)
    separate: list[Operand] = [(2, 1, 32), (2, 1, 16), (2, 1, 16), past, past, ("int32", (2,)), ("int32", ())]
    assert flops(separate, (2, 1, 32), present, present) == attended(2, 4, 1, 10, 8)
    assert flops(separate, (2, 1, 32), None) == attended(2, 4, 1, 10, 8)
    packed: list[Operand | str] = [(2, 1, 64), "", "", past, past, ("int32", (2,)), ("int32", ())]
    assert flops(packed, (2, 1, 32), present, present) == attended(2, 4, 1, 10, 8)
    rotated = flops(separate, (2, 1, 32), present, present, do_rotary=1)
    assert rotated == attended(2, 4, 1, 10, 8) + 3 * 2 * 6 * 8


@pytest.mark.parametrize(
    ("op_type", "gates", "cell"),
    [("LSTM", 4, 3 * SIGMOID + 2 * TANH + 4), ("GRU", 3, 2 * SIGMOID + TANH + 5), ("RNN", 1, TANH)],
)
def test_recurrent_cells(op_type: str, gates: int, cell: int) -> None:
    length, batch, width, hidden, directions = 5, 2, 3, 4, 2
    weights, recurrence = (directions, gates * hidden, width), (directions, gates * hidden, hidden)
    inputs: list[Operand] = [(length, batch, width), weights, recurrence, (directions, 2 * gates * hidden)]
    step = directions * (2 * gates * hidden * (width + hidden) + gates * hidden + 2 * gates * hidden + hidden * cell)
    assert work_of(op_type, inputs, (length, directions, batch, hidden)).flops == length * batch * step


# ---- element-wise, normalizations, reductions, pooling --------------------------------------------------------------


def test_arithmetic_is_one_operation_an_output_element_and_a_broadcast_operand_is_read_once() -> None:
    assert work_of("Add", [(8, 1, 6), (7, 1)], (8, 7, 6)) == (336, 4 * (48 + 7), 4 * 336, "inferred")
    assert work_of("Mul", [(8, 1, 6), (7, 1)], None).flops == 336
    assert work_of("Mul", [(5, 5), "=0"], (5, 5)) == (25, 100, 100, "inferred")
    assert work_of("Pow", [(5,), ()], (5,)).flops == 5 * POW
    assert work_of("Less", [(5,), ()], ("bool", (5,))) == (5, 24, 5, "inferred")
    assert work_of("Sum", [(5,), (5,), (5,)], (5,)).flops == 10
    assert work_of("Mean", [(5,), (5,), (5,)], (5,)).flops == 15
    assert work_of("Max", [(5,)], (5,)).flops == 0


def test_transcendental_functions_cost_tens_of_operations() -> None:
    for op_type in ("Exp", "Tanh", "Sigmoid", "Erf", "Log", "Softplus", "Mish"):
        assert work_of(op_type, [(3, 4)], (3, 4)).flops == 12 * UNARY[op_type]
        assert 10 < UNARY[op_type] < 120
    assert work_of("Relu", [(3, 4)], (3, 4)).flops == 12
    assert work_of("Gelu", [(3, 4)], (3, 4)).flops == 12 * GELU == 12 * (4 + ERF)
    assert work_of("Gelu", [(3, 4)], (3, 4), approximate="tanh").flops == 12 * GELU_BY_TANH
    assert work_of("BiasGelu", [(3, 4), (4,)], (3, 4), domain="com.microsoft").flops == 12 * (1 + GELU)
    assert work_of("FastGelu", [(3, 4), (4,)], (3, 4), domain="com.microsoft").flops == 12 * (1 + GELU_BY_TANH)


def test_normalizations() -> None:
    x = (2, 3, 8)
    assert work_of("LayerNormalization", [x, (8,), (8,)], x).flops == 48 * 7
    assert work_of("LayerNormalization", [x, (8,)], x).flops == 48 * 6
    assert work_of("InstanceNormalization", [x, (3,), (3,)], x).flops == 48 * 7
    assert work_of("GroupNormalization", [x, (3,), (3,)], x, num_groups=1).flops == 48 * 7
    assert work_of("RMSNormalization", [x, (8,)], x).flops == 48 * 4
    assert work_of("BatchNormalization", [x, (3,), (3,), (3,), (3,)], x).flops == 96
    skip = work_of("SkipLayerNormalization", [x, x, (8,), (8,), (8,)], x, domain="com.microsoft")
    assert skip.flops == 48 * (2 + 7)
    simple = work_of("SkipSimplifiedLayerNormalization", [x, x, (8,)], x, domain="com.microsoft")
    assert simple.flops == 48 * (1 + 4)
    assert work_of("LRN", [x], x, size=5).flops == 48 * (10 + 2 + POW + 1)


def test_softmax_and_quantization() -> None:
    assert work_of("Softmax", [(4, 10)], (4, 10)).flops == 40 * (4 + EXP)
    assert work_of("LogSoftmax", [(4, 10)], (4, 10)).flops == 40 * (4 + EXP)
    assert work_of("QuantizeLinear", [(4, 10), (), ("uint8", ())], ("uint8", (4, 10))) == (80, 165, 40, "inferred")
    assert work_of("DequantizeLinear", [("uint8", (4, 10)), ()], (4, 10)) == (40, 44, 160, "inferred")
    assert work_of("DynamicQuantizeLinear", [(4, 10)], ("uint8", (4, 10)), (), ("uint8", ())).flops == 160


@pytest.mark.parametrize(
    ("op_type", "flops"),
    [
        ("ReduceSum", 40 - 4),
        ("ReduceMax", 40 - 4),
        ("ReduceMean", 40),
        ("ReduceL1", 80 - 4),
        ("ReduceL2", 80),
        ("ReduceSumSquare", 80 - 4),
        ("ArgMax", 40 - 4),
        ("ReduceLogSumExp", 2 * 36 + 40 * (1 + EXP) + 4 * (UNARY["Log"] + 1)),
    ],
)
def test_reductions(op_type: str, flops: int) -> None:
    assert work_of(op_type, [(4, 10)], (4, 1)).flops == flops
    assert work_of(op_type, [(4, 10)], (4,)).flops == flops


def test_pooling() -> None:
    x, y = (1, 3, 8, 8), (1, 3, 4, 4)
    assert work_of("MaxPool", [x], y, kernel_shape=(2, 2), strides=(2, 2)).flops == 48 * 3
    assert work_of("AveragePool", [x], y, kernel_shape=(2, 2), strides=(2, 2)).flops == 48 * 4
    assert work_of("MaxPool", [x], y).flops is None
    assert work_of("GlobalAveragePool", [x], (1, 3, 1, 1)).flops == 192
    assert work_of("GlobalMaxPool", [x], (1, 3, 1, 1)).flops == 189


def test_resizing() -> None:
    x, y = (1, 3, 8, 8), (1, 3, 16, 16)
    assert work_of("Resize", [x], y, mode="nearest").flops == 0
    assert work_of("Resize", [x], y, mode="linear").flops == 768 * 2 * 4
    assert work_of("Resize", [x], y, mode="cubic").flops == 768 * 2 * 16
    assert work_of("Resize", [x], (1, 3, 8, 16), mode="linear").flops == 384 * 2 * 2
    assert work_of("Resize", [x], x, mode="linear").flops == 0
    assert work_of("Resize", [x], y).flops == 0


# ---- bytes ---------------------------------------------------------------------------------------------------------


def test_views_move_nothing_and_copies_move_all() -> None:
    shape = ("int64", (2,))
    for op_type in ("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"):
        assert work_of(op_type, [(4, 6), shape], (6, 4)) == (0, 0, 0, "inferred")
    assert work_of("Transpose", [(4, 6)], (6, 4)) == (0, 96, 96, "inferred")
    assert work_of("Concat", [(4, 6), (2, 6)], (6, 6), axis=0) == (0, 144, 144, "inferred")
    assert work_of("Cast", [(4, 6)], ("float16", (4, 6))) == (0, 96, 48, "inferred")
    assert work_of("Shape", [(4, 6)], shape) == (0, 0, 16, "inferred")
    assert work_of("Constant", [], (1000,)) == (0, 0, 0, "inferred")


def test_gather_and_slice_read_what_they_take() -> None:
    assert work_of("Gather", [(30_000, 64), ("int64", (7,))], (7, 64)) == (0, 7 * 256 + 56, 7 * 256, "inferred")
    bounds = ("int64", (1,))
    assert work_of("Slice", [(1000, 8), bounds, bounds], (3, 8)) == (0, 96 + 16, 96, "inferred")


def test_scattering_computes_only_when_it_reduces() -> None:
    inputs: list[Operand] = [(10, 4), ("int64", (3, 1)), (3, 4)]
    assert work_of("ScatterND", inputs, (10, 4)).flops == 0
    assert work_of("ScatterND", inputs, (10, 4), reduction="add").flops == 12


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        ("float64", 8 * 5),
        ("double", 8 * 5),
        ("float", 4 * 5),
        ("bfloat16", 2 * 5),
        ("bool", 5),
        ("float8e4m3fn", 5),
        ("int4", 3),
        ("uint4", 3),
        ("float4e2m1", 3),
        ("uint2", 2),
        ("complex128", 80),
        ("string", None),
    ],
)
def test_bytes_are_of_the_real_element_type(dtype: str, size: int | None) -> None:
    assert work_of("Transpose", [(dtype, (5,))], (dtype, (5,))) == (0, size, size, "inferred")


def test_a_scalar_has_one_element_and_an_empty_tensor_none() -> None:
    assert work_of("Relu", [()], ()) == (1, 4, 4, "inferred")
    assert work_of("Relu", [(3, 0)], (3, 0)) == (0, 0, 0, "inferred")


# ---- what is not known ---------------------------------------------------------------------------------------------


def test_unknown_operators_domains_and_control_flow_have_no_work() -> None:
    nothing = (None, None, None, "inferred")
    assert work_of("Magic", [(3, 4)], (3, 4)) == nothing
    assert work_of("Relu", [(3, 4)], (3, 4), domain="some.vendor") == nothing
    for op_type in ("If", "Loop", "Scan"):
        assert work_of(op_type, [("bool", ())], (3, 4)) == nothing


def test_operators_that_depend_on_values_have_bytes_and_no_operations() -> None:
    assert work_of("TopK", [(3, 40), ("int64", (1,))], (3, 5), ("int64", (3, 5))) == (None, 488, 180, "inferred")


def test_each_figure_is_missing_alone() -> None:
    assert work_of("Add", [(None, 4), (4,)], None) == (None, None, None, "inferred")
    assert work_of("Add", [(3, 4), (4,)], None) == (12, 64, None, "inferred")
    assert work_of("Relu", [None], (3, 4)) == (None, None, 48, "inferred")
    assert work_of("Relu", [None], None) == (None, None, None, None)


def test_shapes_that_do_not_fit_give_nothing_and_no_error() -> None:
    odd: list[list[Operand | str]] = [[], [()], [(1,)], [(2, 3)], [(2, 3, 4), (5,)], [None, None], ["", "", ""]]
    names = """
        Conv ConvTranspose QLinearConv MatMul Gemm QGemm MatMulNBits QLinearMatMul Einsum Attention MultiHeadAttention
        GroupQueryAttention LSTM GRU Resize MaxPool ReduceSum ScatterND LayerNormalization SkipLayerNormalization Sum
        Add Gather Slice QuantizeLinear
    """
    for op_type in names.split():
        for inputs in odd:
            for domain in ("ai.onnx", "com.microsoft"):
                for output in (None, (), (2, 3)):
                    found = work_of(op_type, inputs, output, domain=domain, equation="i,j->ij", num_heads=0)
                    assert found.flops is None or found.flops >= 0


def test_absurd_extents_stay_within_the_columns() -> None:
    huge = (2**62, 2**62)
    found = work_of("Relu", [huge], huge)
    assert found.flops == float(2**124)
    assert found[1:3] == (None, None)
    assert work_of("Relu", [(2**62,) * 20], (2**62,) * 20).flops is None


def test_run_time_types_come_before_inferred_ones_and_are_named() -> None:
    nodes = nodes_of([("Relu", "ai.onnx", ["x"], ["a"]), ("Relu", "ai.onnx", ["a"], ["y"])])
    inferred: dict[str, TensorType] = {"x": ("float32", (2,)), "a": ("float32", (2,)), "y": ("float32", (2,))}
    runtime: dict[str, TensorType] = {"a": ("float16", (3,))}
    found = work(nodes, {}, inferred, runtime)
    assert found.rows() == [(0, 2.0, 8, 6, "runtime"), (1, 3.0, 6, 8, "inferred")]
    assert work(nodes, {}, inferred).get_column("shape_source").to_list() == ["inferred", "inferred"]


def test_no_nodes_give_a_typed_empty_frame() -> None:
    found = work(nodes_of([]), {}, {})
    assert found.schema == {
        "node_id": pl.Int32,
        "flops": pl.Float64,
        "read_bytes": pl.Int64,
        "written_bytes": pl.Int64,
        "shape_source": pl.String,
    }


# ---- whole models beside another tool ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("model_graph", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


#: Ours (a multiply-add as one, to compare) over onnx-tool's, for the operators whose sums of products both count.
#: A bias is one addition here, half a multiply-add; onnx-tool counts it as a whole one. Nothing else differs.
SUMS_OF_PRODUCTS_WITHIN: Final = 0.02
#: Where the two mean different things, and by what factor ours is smaller: onnx-tool calls every operation a
#: multiply-add (1/2); a division four and an exponential 32 of them; inference-time BatchNormalization has its root and
#: division in every element (31) where they can be folded to a multiply-add (1); pooling counts taps and a division
#: by four; LayerNormalization as many passes as here, as multiply-adds.
EXPECTED_RATIOS: Final[Mapping[str, float]] = {
    "Add": 1 / 2,
    "Mul": 1 / 2,
    "Relu": 1 / 2,
    "Sum": 1 / 2,
    "LessOrEqual": 1 / 2,
    "Div": 1 / 8,
    "BatchNormalization": 1 / 31,
    "Softmax": (4 + EXP) / 2 / 36,
    "AveragePool": 1 / 2,
    "LayerNormalization": 0.49,
}


def test_sums_of_products_agree_with_onnx_tool(benchmark: ModuleType) -> None:
    pytest.importorskip("onnx_tool", reason="onnx-tool is the second count to compare with")
    found = benchmark.comparisons()
    assert len(found) >= 10
    ours_by_type: dict[str, float] = {}
    theirs_by_type: dict[str, float] = {}
    for model, counts in found.items():
        sums = {kind: count for kind, count in counts.items() if kind in benchmark.SUMS_OF_PRODUCTS}
        ours, theirs = (sum(getattr(c, side) for c in sums.values()) for side in ("ours_halved", "onnx_tool"))
        assert ours == pytest.approx(theirs, rel=SUMS_OF_PRODUCTS_WITHIN), model
        assert ours <= theirs
        assert ours > 1e6
        for kind, count in counts.items():
            ours_by_type[kind] = ours_by_type.get(kind, 0) + count.ours_halved
            theirs_by_type[kind] = theirs_by_type.get(kind, 0) + count.onnx_tool
    for kind, ratio in EXPECTED_RATIOS.items():
        assert ours_by_type[kind] / theirs_by_type[kind] == pytest.approx(ratio, rel=0.05), kind


@pytest.mark.parametrize(("name", "billions"), [("resnet50", 4.1), ("densenet121", 2.87), ("vgg19", 19.6)])
def test_known_totals_of_known_networks(benchmark: ModuleType, name: str, billions: float) -> None:
    """Billions of multiply-adds per image of 224 × 224, as commonly given for these networks."""
    path = Path(benchmark.onnx.__file__).parent / "backend" / "test" / "data" / "light" / f"light_{name}.onnx"
    content = benchmark.graph_only(path)
    graph = benchmark.read(content, name)
    found = work(graph.nodes, graph.attributes, benchmark.inferred_shapes(content, {}).types)
    rows = found.join(graph.nodes.select("node_id", "op_type"), on="node_id")
    products = rows.filter(pl.col("op_type").is_in(["Conv", "Gemm"])).get_column("flops").to_list()
    assert math.isclose(sum(products) / 2e9, billions, rel_tol=0.02)
