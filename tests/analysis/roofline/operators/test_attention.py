"""Attention: every pair of a query and a key that it sees, twice."""

from typing import Any, Final

import pytest

from tests.analysis.roofline.operators.recorded import figures, work

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


def test_where_it_is_not_recorded_whether_it_is_causal_bytes_are_known() -> None:
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
