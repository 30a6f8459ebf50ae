"""Operators that stream: inputs read once, outputs written once."""

from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analysis.roofline.operators.made_up import BF16, figures, work

FP32, INT64, BOOL = "float", "long int", "bool"
RMS: Final = ([6, 8], [6, 8], [8], 1e-6)


@pytest.mark.parametrize(
    ("operator", "inputs", "flops", "least_bytes"),
    [
        ("aten::add", (([10], FP32), ([10], FP32), 1), 10, 4 * 30),
        # The fourth is where the result goes.
        ("aten::add", (([10], FP32), ([10], FP32), 1, ([10], FP32)), 10, 4 * 30),
        ("aten::add_", (([10], FP32), ([], "double"), 1), 10, 4 * 20),
        ("aten::add_", (([], INT64), ([], INT64), 1), 1, 3 * 8),
        ("aten::mul", (([5, 10], FP32), ([10], FP32)), 50, 4 * (50 + 10 + 50)),
        ("aten::mul", (([5, 10], FP32), ([], "double")), 50, 4 * 100),
        ("aten::mul", ([10], ([10], FP32)), 10, 2 * 10 + 4 * 10 + 4 * 10),
        ("aten::eq", (([10], INT64), 1), 10, 8 * 10 + 10),
        ("aten::silu", ([10],), 20, 2 * 20),
        ("aten::clamp", ([10], None, ([10], BF16)), 10, 2 * 30),
        ("aten::max", (([6, 8], FP32),), 47, 4 * 49),
        ("aten::max", (([6, 8], FP32), 1, False), 42, 4 * 48 + 6 * 12),
        ("aten::max", (([6, 8], FP32), ([6, 8], FP32)), 48, 4 * 144),
        ("aten::threshold_backward", ([10], [10], 0), 10, 2 * 30),
        ("aten::mean", (([6, 8], FP32), "[-1]", True, None), 42, 4 * (48 + 6)),
        ("aten::sum", (([6, 8], FP32), "[]", False, None), 47, 4 * 49),
        ("aten::sum", (([6, 8], FP32), None), 47, 4 * 49),
        ("aten::sum", (([6, 8], FP32), 6), 47, 4 * 49),
        ("aten::mse_loss", (([6, 8], FP32), ([6, 8], FP32), 0), 2 * 48, 4 * 3 * 48),
        ("aten::mse_loss", (([6, 8], FP32), ([6, 8], FP32), 1), 2 * 48 + 47, 4 * (2 * 48 + 1)),
        ("aten::argmax", (([6, 8], FP32), -1, False), 42, 4 * 48 + 8 * 6),
        ("aten::all", (([6, 8], BOOL),), 47, 49),
        ("aten::copy_", (([10], FP32), [10], False), 0, 4 * 10 + 2 * 10),
        ("aten::fill_", ([10], 0), 0, 20),
        ("aten::index_select", ([100, 8], 0, ([5], INT64)), 0, 5 * 8 + 2 * 40 + 2 * 40),
        ("aten::index_select", ([2, 8], 0, ([5], INT64)), 0, 5 * 8 + 2 * 16 + 2 * 40),
        ("aten::_softmax", ([6, 8], -1, True), 5 * 48, 2 * 48 + 4 * 48),
        ("aten::native_layer_norm", ([6, 8], "[8]", [8], [8], 1e-5), 7 * 48, 2 * (48 + 16 + 48)),
        ("aten::native_batch_norm", ([2, 3, 4], [3], [3], [3], [3], False, 0.1, 1e-5), 48, 2 * (24 + 12 + 24)),
        ("aiter::rmsnorm", RMS, 4 * 48, 2 * (48 + 8 + 48)),
        ("aiter::add_rmsnorm", (*([6, 8],) * 4, [8], 1e-6), 5 * 48, 2 * (4 * 48 + 8)),
        ("_C::fused_add_rms_norm", ([6, 8], [6, 8], [8], 1e-6), 5 * 48, 2 * (4 * 48 + 8)),
        ("sgl_kernel::silu_and_mul", ([6, 8], [6, 16]), 3 * 48, 2 * (96 + 48)),
        (
            "sgl_kernel::rotary_embedding",
            (([6], INT64), [6, 32], [6, 16], 16, [100, 16], True),
            3 * 6 * 48,
            8 * 6 + 2 * 6 * 16 + 2 * 2 * 6 * 48,
        ),
        ("aten::max_pool2d_with_indices", ([2, 8, 8], "[2, 2]", "[]", "[0, 0]", "[1, 1]", False), 96, 256 + 320),
    ],
)
def test_inputs_are_read_once_and_results_written_once(
    operator: str, inputs: tuple[Any, ...], flops: float, least_bytes: float
) -> None:
    assert figures(work(operator, *inputs)) == (flops, least_bytes)


def test_elements_repeated_by_a_stride_of_zero_count_once() -> None:
    found = work("aten::div", [10, 512, 7, 7], ([], INT64), strides=[[512, 1, 0, 0], []])
    assert found.least_bytes == 2 * (5120 + 10 * 512 * 49)
    assert work("aten::gather", [9, 4], 0, ([6, 4], INT64), strides=[[4, 1], [], [1, 0]]).least_bytes == 8 * 6 + 96


@pytest.mark.parametrize(
    ("operator", "inputs", "reason"),
    [
        ("aten::sort", ([10],), "no formula for aten::sort"),
        (
            "aten::cat",
            (([[2, 3], [2, 3]], "TensorList"), 0),
            "aten::cat: the types of a list's tensors are not recorded",
        ),
        ("aten::add", ([10], [9], 1), "aten::add: the inputs' shapes do not fit each other"),
        ("aten::add", (1, 1, 1), "aten::add: none of the inputs is a tensor"),
        ("aten::mul", (([10], INT64), ([], "double")), "aten::mul: the type of the result is not recorded"),
        ("aten::mean", (([6, 8], FP32), "[2]", True), "aten::mean: the axis is none of the tensor's"),
        ("aten::copy_", (([2**40, 2**40], FP32), [10]), "aten::copy_: the shape of input 0 is larger than any memory"),
    ],
)
def test_unknown_work_is_null_with_a_reason(operator: str, inputs: tuple[Any, ...], reason: str) -> None:
    found = work(operator, *inputs)
    assert figures(found) == (None, None)
    assert found.lacking == reason


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.data())
def test_no_function_of_elements_moves_less_than_its_largest_input_and_its_result(
    shape: list[int], data: st.DataObject
) -> None:
    other = [size if data.draw(st.booleans()) else 1 for size in shape]
    found = work("aten::mul", shape, other)
    elements = 1
    for size in shape:
        elements *= size
    assert found.flops == elements
    assert 4 * elements < (found.least_bytes or 0) <= 6 * elements
