"""Matrix products in their spellings: operations and bytes that anyone can check by hand.

Attention: every pair of a query and a key that it sees, twice.

Convolutions forward and backward, by the sizes of what comes out.
"""

from typing import Any, Final

import pytest

from tests.analysis.roofline.operators.made_up import BF16, FP8, figures, work

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


#: 2 sequences, 4 heads of width 16.
Q, K = [2, 4, 32, 16], [2, 4, 64, 16]
HEADS: Final = 2 * 4
FLASH: Final = "aten::_scaled_dot_product_flash_attention"


@pytest.mark.parametrize(
    ("operator", "options"),
    [
        (FLASH, (0.0, "{}", False)),
        ("aten::_scaled_dot_product_efficient_attention", (None, False, 0.0, "{}")),
        ("aten::_scaled_dot_product_cudnn_attention", (None, False, 0.0, "{}", False)),
    ],
)
@pytest.mark.parametrize(("causal", "pairs"), [(False, 32 * 32), (True, 32 * 32 / 2)])
def test_a_causal_mask_halves_the_pairs(operator: str, options: tuple[Any, ...], causal: bool, pairs: float) -> None:
    found = work(operator, Q, Q, Q, *(str(causal) if one == "{}" else one for one in options))
    assert figures(found) == (4 * 16 * HEADS * pairs, 4 * HEADS * 32 * 16 * 2)
    assert found.detail == ("causal" if causal else "")


@pytest.mark.parametrize(("q", "k", "pairs"), [(Q, K, 32 * 32 / 2), (K, Q, 32 * 32 / 2 + 32 * 32)])
def test_pytorchs_mask_begins_at_the_first_key(q: list[int], k: list[int], pairs: float) -> None:
    assert work(FLASH, q, k, k, 0.0, True, False).flops == 4 * 16 * HEADS * pairs


def test_flash_attentions_mask_ends_at_the_last_key() -> None:
    q, k = [2, 32, 4, 16], [2, 64, 4, 16]
    options = (0.0, 0.25, True, -1, -1, 0, True, False)
    assert work("aiter::mha_fwd", q, k, k, *options).flops == 4 * 16 * HEADS * (32 * 32 / 2 + 32 * 32)
    assert work("aiter::mha_fwd", k, q, q, *options).flops == 4 * 16 * HEADS * 32 * 32 / 2


def test_backward_takes_five_products() -> None:
    found = work(f"{FLASH}_backward", Q, Q, Q, Q, Q, None, None, None, 32, 32, 0.0, False)
    assert figures(found) == (2 * 5 * 16 * HEADS * 32 * 32, 8 * HEADS * 32 * 16 * 2)


def test_bytes_are_known_without_a_record_of_causality() -> None:
    found = work(FLASH, Q, Q, Q, 0.0, True, False, without_values=True)
    assert figures(found) == (None, 4 * HEADS * 32 * 16 * 2)
    assert found.lacking == "whether it is causal is not recorded"


def prefill(tokens: int, longest: int, attended: int, *, causal: bool = True, window: int = -1) -> Any:
    """Three sequences, of 4 heads on 2 kept ones, with their keys in a thousand pages of one token."""
    pages = [1000, 2, 16]
    places = (([4], "int"), ([4], "int"), ([50], "int"))
    rest = (longest, attended, 0.0, 0.25, 0.0, False, causal, window, -1)
    return work("aiter::mha_batch_prefill", [tokens, 4, 16], pages, pages, *places, *rest)


def test_prompts_that_fill_their_room_have_known_lengths() -> None:
    found = prefill(96, 32, 32)
    assert found.flops == 4 * 16 * 3 * 4 * 32 * 32 / 2
    assert found.least_bytes == 2 * (96 * 4 * 16 * 2 + 2 * 96 * 2 * 16)
    assert found.detail == "3 sequences of 32, causal"


@pytest.mark.parametrize(
    "found", [prefill(95, 32, 32), prefill(96, 32, 40), prefill(96, 32, 32, causal=False)], ids=str
)
def test_lengths_that_only_the_device_knows_are_not_guessed(found: Any) -> None:
    assert figures(found) == (None, None)
    assert found.lacking == "aiter::mha_batch_prefill: the lengths of the sequences are on the device, and not recorded"


def test_a_window_is_not_taken_for_all_keys() -> None:
    assert prefill(96, 32, 32, window=8).flops is None
    assert work("_C::paged_attention_v1", Q).lacking is not None


PLAIN: Final = ("[1, 1]", "[1, 1]", "[1, 1]", False, "[0, 0]", 1)
#: 2 images of 3 by 8 by 8 and 4 filters of 3 by 3 by 3, padded: 512 results of 27 products each.
X, W, Y, RESULTS = [2, 3, 8, 8], [4, 3, 3, 3], [2, 4, 8, 8], 512


def test_each_result_is_a_sum_over_the_weights_of_its_filter() -> None:
    found = work("aten::convolution", X, W, None, *PLAIN)
    assert figures(found) == (2 * 27 * RESULTS, 2 * (384 + 108 + RESULTS))
    assert found.detail == "stride 1×1, padding 1×1"
    assert figures(work("aten::convolution", X, W, [4], *PLAIN)) == (55 * RESULTS, 2 * (384 + 108 + RESULTS + 4))


@pytest.mark.parametrize(
    ("options", "results"),
    [
        (("[2, 2]", "[1, 1]", "[1, 1]", False, "[0, 0]", 1), 2 * 4 * 4 * 4),
        (("[1]", "[0]", "[1]", False, "[0]", 1), 2 * 4 * 6 * 6),
        (("[1, 1]", "[0, 0]", "[2, 2]", False, "[0, 0]", 1), 2 * 4 * 4 * 4),
    ],
)
def test_stride_padding_and_dilation_are_in_the_results(options: tuple[Any, ...], results: int) -> None:
    assert work("aten::convolution", X, W, None, *options).flops == 2 * 27 * results


def test_each_filter_of_a_group_sees_its_own_channels() -> None:
    found = work("aten::convolution", [2, 4, 8, 8], [4, 1, 3, 3], None, *PLAIN[:-1], 4)
    assert found.flops == 2 * 9 * RESULTS
    assert found.detail.endswith("4 groups")


def test_a_transposed_one_spreads_every_input() -> None:
    options = ("[2, 2]", "[1, 1]", "[1, 1]", True, "[1, 1]", 1)
    found = work("aten::convolution", [2, 3, 8, 8], [3, 4, 3, 3], None, *options)
    assert figures(found) == (2 * 384 * 36, 2 * (384 + 108 + 2 * 4 * 16 * 16))


@pytest.mark.parametrize(
    ("mask", "flops", "elements", "detail"),
    [
        ("[True, True, False]", 4 * 27 * RESULTS, RESULTS + 2 * (384 + 108), ""),
        ("[False, True, False]", 2 * 27 * RESULTS, RESULTS + 384 + 108, ", no data gradient"),
        ("[True, False, True]", 2 * 27 * RESULTS + RESULTS, RESULTS + 384 + 108, ", no weight gradient"),
    ],
)
def test_backward_counts_the_gradients_that_are_asked_for(mask: str, flops: int, elements: int, detail: str) -> None:
    found = work("aten::convolution_backward", Y, X, W, "[0]", *PLAIN, mask)
    assert figures(found) == (flops, 2 * elements)
    assert found.detail == f"stride 1×1, padding 1×1{detail}"


@pytest.mark.parametrize(
    "options",
    [
        ("[0, 0]", *PLAIN[1:]),
        ("[1, 1, 1]", *PLAIN[1:]),
        ("[1, 1]", "[1, 1]", "[9, 9]", False, "[0, 0]", 1),
        ("[1, 1]", "[1, 1]", "[1, 1]", 2, "[0, 0]", 1),
    ],
)
def test_options_that_do_not_fit_give_no_work(options: tuple[Any, ...]) -> None:
    assert figures(work("aten::convolution", X, W, None, *options)) == (None, None)


def test_without_values_nothing_is_guessed() -> None:
    found = work("aten::convolution", X, W, None, *PLAIN, without_values=True)
    assert figures(found) == (None, None)
    assert found.lacking == "aten::convolution: the trace did not record the values of inputs"
