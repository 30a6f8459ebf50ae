"""Matrix products in their spellings: operations and bytes that anyone can check by hand."""

from typing import Any

import pytest

from tests.analysis.roofline.operators.recorded import BF16, FP8, figures, work

#: 4 by 8 times 8 by 2: 64 products, each with an addition; 32, 16 and 8 elements.
FLOPS, ELEMENTS = 128.0, 56


@pytest.mark.parametrize(
    ("operator", "inputs", "flops", "least_bytes"),
    [
        ("aten::mm", ([4, 8], [8, 2]), FLOPS, 2 * ELEMENTS),
        ("aten::bmm", ([3, 4, 8], [3, 8, 2]), 3 * FLOPS, 3 * 2 * ELEMENTS),
        ("aten::addmm", ([2], [4, 8], [8, 2], 1, 1), FLOPS + 8, 2 * (ELEMENTS + 2)),
        ("aten::addmm", ([2], [4, 8], [8, 2], 0, 1), FLOPS, 2 * ELEMENTS),
        ("aten::baddbmm", ([3, 4, 2], [3, 4, 8], [3, 8, 2], 1, 1), 3 * (FLOPS + 8), 3 * 2 * (ELEMENTS + 8)),
        ("aten::_addmm_activation", ([2], [4, 8], [8, 2], 1, 1, False), FLOPS + 16, 2 * (ELEMENTS + 2)),
        ("aten::mv", ([4, 8], [8]), 64, 2 * (32 + 8 + 4)),
        ("aten::addmv_", ([4], [4, 8], [8], 1, 1), 64 + 4, 2 * (32 + 8 + 4 + 4)),
        ("aten::_int_mm", (([4, 8], "signed char"), ([8, 2], "signed char")), FLOPS, 32 + 16 + 4 * 8),
        ("aten::_weight_int8pack_mm", ([4, 8], ([2, 8], "signed char"), [2]), FLOPS, 2 * 32 + 16 + 2 * 2 + 2 * 8),
        ("aten::_grouped_mm", ([4, 8], [3, 8, 2], ([3], "int"), None), FLOPS, 2 * (32 + 48 + 8) + 12),
        ("aten::_grouped_mm", ([4, 8], [8, 2], ([3], "int"), None), FLOPS, 2 * (32 + 16 + 24) + 12),
        ("aiter::gemm_a16w16", ([4, 8], [2, 8], None), FLOPS, 2 * ELEMENTS),
        ("aiter::gemm_a16w16", ([2, 2, 8], [2, 8], [2]), FLOPS + 8, 2 * (ELEMENTS + 2)),
        ("aiter::hipb_mm", ([4, 8], [8, 2], 5, None), FLOPS, 2 * ELEMENTS),
        (
            "aiter::batched_gemm_a8w8",
            (([3, 4, 8], FP8), ([3, 2, 8], FP8), ([3, 4, 1], "float"), ([3, 1, 2], "float"), [3, 4, 2], None),
            3 * FLOPS,
            3 * (32 + 16 + 4 * 4 + 4 * 2 + 2 * 8),
        ),
    ],
)
def test_products_take_two_operations_an_inner_element(
    operator: str, inputs: tuple[Any, ...], flops: float, least_bytes: float
) -> None:
    found = work(operator, *inputs)
    assert figures(found) == (flops, least_bytes)
    assert (found.is_product, found.lacking) == (True, None)


def test_a_result_whose_type_is_not_recorded_has_no_bytes() -> None:
    scales = (([1], "float"), ([1], "float"))
    found = work("aten::_scaled_mm", ([4, 8], FP8), ([8, 2], FP8), *scales, None, None, None, False)
    assert (found.flops, found.least_bytes, found.dtype) == (FLOPS, None, "fp8")
    assert found.lacking == "the type of the result is not recorded"
    stated = work("aten::_scaled_mm", ([4, 8], FP8), ([8, 2], FP8), *scales, None, None, None, False, [4, 2])
    assert figures(stated) == (FLOPS, 32 + 16 + 8 + 2 * 8)


@pytest.mark.parametrize(
    ("operator", "inputs"),
    [
        ("aten::mm", ([4, 8], [9, 2])),
        ("aten::mm", ([4, 8],)),
        ("aten::mm", ([8], [8, 2])),
        ("aten::bmm", ([3, 4, 8], [2, 8, 2])),
        ("aten::mv", ([4, 8], [7])),
        ("aten::_grouped_mm", ([4, 8], [3, 7, 2], ([3], "int"))),
        ("aten::mm", (([4, 8], "mystery"), [8, 2])),
    ],
)
def test_inputs_that_do_not_fit_have_no_work_and_the_reason_names_the_operator(
    operator: str, inputs: tuple[Any, ...]
) -> None:
    found = work(operator, *inputs)
    assert figures(found) == (None, None)
    assert found.lacking is not None
    assert found.lacking.startswith(f"{operator}: ")


def test_the_number_format_is_the_inputs_and_none_where_they_differ() -> None:
    assert work("aten::mm", ([4, 8], "float"), ([8, 2], "float")).dtype == "fp32"
    assert work("aten::mm", ([4, 8], BF16), ([8, 2], "float")).dtype is None


FP4 = "c10::Float4_e2m1fn_x2"


def test_quantized_products_count_the_factors_that_an_element_holds() -> None:
    scales = ([4, 1], "float"), ([2, 1], "float")
    a8 = work("aiter::gemm_a8w8", ([4, 8], FP8), ([2, 8], FP8), *scales, None, 15, None)
    assert figures(a8) == (2.0 * 4 * 2 * 8, None)
    assert "the type of the result" in f"{a8.lacking}"
    biased = work("aiter::gemm_a8w8", ([4, 8], FP8), ([2, 8], FP8), *scales, [2], 15, None)
    assert biased.flops == 2.0 * 4 * 2 * 8 + 8
    a4 = work("aiter::gemm_a4w4", ([4, 8], FP4), ([2, 8], FP4), *scales, None, 15)
    assert a4.flops == 2.0 * 4 * 2 * 16
    into = work("aiter::gemm_a4w4_blockscale", ([4, 8], FP4), ([2, 8], FP4), *scales, [4, 2], 0)
    assert figures(into) == (2.0 * 4 * 2 * 16, 32 + 16 + 16 + 8 + 16)


def test_experts_take_each_token_as_often_as_it_is_routed() -> None:
    weights, ids = ([3, 2], "float"), ([3, 2], "int")
    found = work("aiter::fused_moe_", [3, 8], [4, 20, 8], [4, 8, 10], weights, ids, None)
    assert figures(found) == (2.0 * 3 * 2 * (20 * 8 + 8 * 10), None)
    parallel = work("aiter::fused_moe_", [3, 8], [4, 20, 8], [4, 8, 10], weights, ids, ([16], "int"))
    assert parallel.flops is None
    packed = work("aiter::fused_moe_", [3, 8], [4, 20, 4], [4, 8, 5], weights, ids, None)
    assert "unpacked experts" in f"{packed.lacking}"
