"""A pragma goes in front of each safe loop, and no other byte of the source changes."""

import pytest

from aaco_pipeline.optimization.proposers.unrolling import FACTORS, Unrolling, factors
from aaco_pipeline.optimization.source import parse
from tests.optimization.proposers.kernels import ROW_DOT, inserted, proposed, reasons, summing, task

LOOP = "for (int k = 0; k < n; ++k) acc += a[k];"


def test_the_pragma_stands_alone_on_the_line_before_the_loop_and_nothing_else_changes() -> None:
    first, *_ = proposed(Unrolling(), task(ROW_DOT))
    place, text = inserted(ROW_DOT.encode(), first.source)
    assert text.strip() == b"#pragma unroll 4"
    assert b"  #pragma unroll 4\n  for (int k" in first.source
    assert place <= ROW_DOT.encode().index(b"for (int k")
    assert first.bit_exact


def test_every_factor_from_2_to_8_is_tried_once() -> None:
    candidates = proposed(Unrolling(), task(ROW_DOT))
    assert [one.parameters["factor"] for one in candidates] == list(FACTORS)
    assert sorted(FACTORS) == [2, 3, 4, 5, 6, 7, 8]
    assert len({one.source for one in candidates}) == len(FACTORS)


def test_a_loop_in_the_middle_of_its_line_gets_a_line_of_its_own() -> None:
    source = summing(f"float acc = 0; if (n > 1) {LOOP} out[0] = acc;")
    first, *_ = proposed(Unrolling(), task(source))
    assert b"if (n > 1) \n#pragma unroll 4\nfor (int k = 0" in first.source
    assert parse(first.source).kernel("row_dot").loops[0].pragma is not None


def test_a_loop_with_a_pragma_is_left_to_who_wrote_it() -> None:
    source = summing(f"float acc = 0;\n#pragma unroll 16\n{LOOP}\n{LOOP}\nout[0] = acc;")
    first, *_ = proposed(Unrolling(), task(source))
    assert first.source.decode() == source.replace(f"{LOOP}\n{LOOP}", f"{LOOP}\n#pragma unroll 4\n{LOOP}")
    (told,) = reasons(Unrolling(), task(source))
    assert told.startswith("loop1 ")
    assert "already carries #pragma unroll 16" in told


@pytest.mark.parametrize("trips", [2, 4, 8])
def test_a_short_constant_loop_is_left_to_the_compiler(trips: int) -> None:
    source = summing(f"float acc = 0; for (int k = 0; k < {trips}; ++k) acc += a[k]; out[0] = acc;")
    assert proposed(Unrolling(), task(source)) == []
    assert reasons(Unrolling(), task(source)) == [
        f"loop1 makes {trips} trips, known to the compiler, which unrolls it wholly by itself"
    ]


def test_of_a_longer_constant_loop_divisors_come_first() -> None:
    assert factors(9) == (3, 4, 8, 2, 6, 5, 7)
    assert factors(None) == FACTORS


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("__syncthreads(); acc += a[k];", "barrier"),
        ("acc += __shfl_down(acc, 1);", "lane"),
        ("atomicAdd(out, a[k]);", "atomic"),
        ("if (a[k] < 0) break; acc += a[k];", "break"),
        ("if (a[k] < 0) return;", "return"),
    ],
)
def test_an_unsafe_loop_is_left_alone_with_the_reason(body: str, reason: str) -> None:
    source = summing(f"float acc = 0;\nfor (int k = 0; k < n; ++k) {{ {body} }}\nout[0] = acc;")
    assert proposed(Unrolling(), task(source)) == []
    (told,) = reasons(Unrolling(), task(source))
    assert told.startswith("loop1 is not safe to unroll: ")
    assert reason in told


def test_a_kernel_without_a_loop_says_so() -> None:
    assert reasons(Unrolling(), task(summing("out[0] = a[0];"))) == ["the kernel row_dot has no loop"]
