"""The guard of text on the signature: it is the baseline's, but for what the proposer declared."""

from typing import Final

import pytest

from aaco_pipeline.optimization.candidates import Refused, SignatureChange
from aaco_pipeline.optimization.guards.text import check_text
from tests.optimization.guards.kernel_text import BASELINE, check, refused, with_

RESTRICT: Final[tuple[SignatureChange, ...]] = ("restrict",)


def test_a_declared_change_of_the_signature_is_allowed_and_no_other() -> None:
    bounds = with_("__launch_bounds__(256)", "__launch_bounds__(128, 2)")
    restrict = with_(
        "const float* a, const float* b, float* out",
        "const float* __restrict__ a, const float* b, float* __restrict__ out",
    )
    check(bounds, "launch_bounds")
    check(with_("__launch_bounds__(256) ", ""), "launch_bounds")
    check(restrict, "restrict")
    wrong: list[tuple[str, tuple[SignatureChange, ...]]] = [
        (bounds, ("restrict",)),
        (restrict, ("launch_bounds",)),
        (bounds, ()),
        (restrict, ()),
    ]
    for text, allowed in wrong:
        refused(text, "signature", *allowed)


@pytest.mark.parametrize("bounds", ["n", "TILE * 16", "2048", "0", "256, 2, 3", "kWidth", "sizeof(int)"])
def test_launch_bounds_are_whole_numbers(bounds: str) -> None:
    refused(with_("__launch_bounds__(256)", f"__launch_bounds__({bounds})"), "signature", "launch_bounds")


def test_restrict_is_for_pointers_of_the_signature_and_is_not_taken_away() -> None:
    refused(with_("int n) {\n  __shared__", "int __restrict__ n) {\n  __shared__"), "signature", "restrict")
    once = with_("const float* a, const", "const float* __restrict__ a, const")
    with pytest.raises(Refused, match="missing"):
        check_text(once.encode(), BASELINE.encode(), "row_dot", allowed=RESTRICT)


SIGNATURES: Final = {
    "another bound": with_("__launch_bounds__(256)", "__launch_bounds__(512)"),
    "no bound": with_("__launch_bounds__(256) ", ""),
    "another type": with_("float* out, int n", "float* out, long n"),
    "another name": with_("float* out, int n", "float* out, int m"),
    "no const": with_("const float* b", "float* b"),
    "another order": with_("const float* a, const float* b", "const float* b, const float* a"),
    "one more": with_("float* out, int n) {\n  __shared__", "float* out, int n, int m = 0) {\n  __shared__"),
    "a template": with_('extern "C" __global__', "template <int N> __global__"),
    "other linkage": with_('extern "C" __global__', "static __global__"),
    "an attribute": with_("__launch_bounds__(256)", "__launch_bounds__(256) __attribute__((optnone))"),
    "an attribute of C++": with_('extern "C" __global__', '[[gnu::flatten]] extern "C" __global__'),
    "a constructor": with_('extern "C" __global__', '__attribute__((constructor)) extern "C" __global__'),
    "restrict": with_("const float* a,", "const float* __restrict__ a,"),
    "volatile": with_("float* out, int n) {\n  __shared__", "volatile float* out, int n) {\n  __shared__"),
    "a calling convention": with_("__launch_bounds__(256)", '__launch_bounds__(256) __attribute__((alias("other")))'),
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_the_signature_is_the_baselines(name: str) -> None:
    refused(SIGNATURES[name], "signature")
