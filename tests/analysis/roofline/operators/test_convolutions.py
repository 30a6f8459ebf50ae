"""Convolutions forward and backward, by the sizes of what comes out."""

from typing import Any, Final

import pytest

from tests.analysis.roofline.operators.recorded import figures, work

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


def test_of_groups_each_filter_sees_its_own_channels() -> None:
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
