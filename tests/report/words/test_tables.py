"""How a kernel is called where a line has little room: told apart from its namesakes, and never cut in the middle."""

import pytest

from aaco_pipeline.report.words.tables import kernel_in_words

CALLED = "void mul_mat<(type)12, 1, false>(void const*, void const*, int const*, float*, unsigned int)"


@pytest.mark.parametrize(
    ("name", "short", "told"),
    [
        ("r64_nchwc", "Conv", "Conv r64_nchwc"),
        ("vecCopy(double*, double*, int)", "vecCopy", "vecCopy(double*, double*, int)"),
        ("quantize(float const*, void*, long, long, long, unsigned int)", "quantize", "quantize"),
        (CALLED, "mul_mat", "mul_mat<(type)12, 1, false>"),
        (CALLED.replace("12", "8"), "mul_mat", "mul_mat<(type)8, 1, false>"),
        ("void a::f<x<1>, g<y>, &op::operator->>(int, int, int, int, int)", "f", "f<x<1>, g<y>, &op::operator->>"),
        ("void ck::entry<1, ck::Gemm<ck::Shape<256, 256, 64>, float>>(int)", "entry [Gemm]", "entry [Gemm]"),
        (f"void f<{'x, ' * 20}y>(int)", "f", "f"),
        ("void f<a<b, long enough to be cut at the end of the text", "f", "f"),
        (f"Cijk_{'MT128_' * 10}", "Cijk", f"Cijk_{'MT128_' * 10}"),
        ("x", None, "x"),
    ],
)
def test_a_kernel_is_called_by_what_tells_it_apart(name: str, short: str | None, told: str) -> None:
    assert kernel_in_words({"name": name, "operator": short}) == told
