"""Sums are rewritten only where the tree proves what they are, and what is rewritten computes the same."""

import shutil
import subprocess
from pathlib import Path

import pytest

from aaco_pipeline.optimization.candidates import Candidate
from aaco_pipeline.optimization.proposers.reductions import Accumulators, VectorLoads
from tests.optimization.proposers.kernels import ROW_DOT, left_alone, proposed, reasons, summing, task, transformations

BEGIN = "float acc = 0.0f;\n"
END = "\nout[0] = acc;"
#: Loops that are rewritten, each a kernel's body.
BODIES = {
    "plain": "for (int k = 0; k < n; ++k) acc += a[k];",
    "two factors": "for (int k = 0; k < n; k++) { acc += a[k] * b[k]; }",
    "own values": "for (int k = 0; k < n; ++k) { const float x = a[k]; float y = x * b[k]; /* } */ acc += x + y; }",
    "two sums": "for (int k = 0; k < n; ++k) { acc += a[k];  // } acc\n acc += b[k]; }",
    "sum written out": "for (int k = 0; k < n; ++k) acc = acc + a[k];",
    "sum in front": "for (int k = 0; k < n; ++k) acc = b[k] + acc;",
    "fused": "for (int k = 0; k < n; ++k) acc = fmaf(a[k], b[k], acc);",
    "to the end": "for (int k = 1; k <= n; ++k) acc += a[k - 1] * (float)k;",
    "from the middle": "for (int k = n / 2; k < n; ++k) acc += a[k] * b[0];",
    "by steps": "for (int k = 0; k < n; k += 3) acc += a[k];",
    "by the workgroup": "for (int k = threadIdx.x; k < n; k += blockDim.x) acc += a[k];",
    "unsigned": "unsigned m = n; for (unsigned k = 0; k < m; ++k) acc += a[k];",
    "a named end": "const int m = n; for (int k = 0; k < m; ++k) acc += a[k];",
    "a counted end": "for (int k = 0; k < LONG; ++k) acc += a[k];",
    "chosen values": "for (int k = 0; k < n; ++k) acc += k > 0 ? a[k] - a[k - 1] : b[k];",
    "unaligned": "const float* c = a + 1; for (int k = 0; k < n - 1; ++k) acc += c[k] * b[k];",
    "an offset": "const int m = 4 * (n / 8); for (int k = 0; k < n - m; ++k) acc += a[m + k];",
}
HEAD = "#define LONG 21\n"


def body(loop: str) -> str:
    return summing(BEGIN + loop + END, more=HEAD)


@pytest.mark.parametrize("name", BODIES)
def test_a_loop_that_provably_sums_gets_more_sums(name: str) -> None:
    candidates = proposed(Accumulators(), task(body(BODIES[name])))
    assert [one.parameters["accumulators"] for one in candidates] == [4, 8, 2]
    assert not any(one.bit_exact for one in candidates)


STUB = """
#include <cmath>
#include <cstdint>
#include <cstdio>
struct float2 { float x, y; }; struct float4 { float x, y, z, w; };
struct double2 { double x, y; };
struct Place { unsigned x; }; static const Place threadIdx = {1}, blockDim = {4};
#define __global__ static
#define __restrict__ __restrict
"""
MAIN = """
alignas(16) static float A[64], B[64];
int main() {
  for (int i = 0; i < 64; ++i) { A[i] = i * 3 % 11; B[i] = i * 5 % 7; }
  for (int n = 0; n < 40; ++n) {
    float first, other;
CALLS
  }
}
"""


def all_sources() -> list[tuple[str, str]]:
    found = [(name, body(loop)) for name, loop in BODIES.items()]
    return [(name, one) for name, source in found for one in (source, *(c.source.decode() for c in rewritten(source)))]


def rewritten(source: str) -> list[Candidate]:
    return [*proposed(Accumulators(), task(source)), *proposed(VectorLoads(), task(source))]


def test_what_is_rewritten_computes_the_same_for_every_length(tmp_path: Path) -> None:
    """Whole numbers small enough that no order of additions rounds them; built as plain C++ with checks at run time."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    sources = all_sources()
    parts = [f"namespace s{index} {{\n{source}\n}}" for index, (_, source) in enumerate(sources)]
    calls: list[str] = []
    original = 0
    for index, (name, _) in enumerate(sources):
        if index == 0 or sources[index - 1][0] != name:
            original = index
            calls.append(f"first = -1; s{index}::row_dot(A, B, &first, n);")
        else:
            failed = f'std::printf("{name} s{index} n=%d: %g, not %g\\n", n, other, first)'
            calls.append(f"other = -2; s{index}::row_dot(A, B, &other, n); if (other != first) {failed};")
    assert original > 0
    assert len(sources) > 3 * len(BODIES)
    (tmp_path / "all.cpp").write_text("\n".join([STUB, *parts, MAIN.replace("CALLS", "\n".join(calls))]))
    flags = ["-std=c++17", "-O0", "-w", "-fsanitize=undefined,address", "-fno-sanitize-recover=all"]
    subprocess.run([compiler, *flags, "all.cpp", "-o", "all"], cwd=tmp_path, check=True, timeout=120)
    done = subprocess.run([tmp_path / "all"], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("loop", "reason"),
    [
        ("for (int k = 0; k < n; ++k) { acc += a[k]; __syncthreads(); }", "not safe"),
        ("for (int k = 0; k < n; ++k) { acc += a[k]; out[k] = acc; }", "does more than add to one variable"),
        ("for (int k = 0; k < n; ++k) acc += acc * a[k];", "does more than add to one variable"),
        ("for (int k = 0; k < n; ++k) acc = acc + acc;", "does more than add to one variable"),
        ("for (int k = 0; k < n; ++k) acc -= a[k];", "does more than add to one variable"),
        ("for (int k = 0; k < n; ++k) { acc += a[k]; b2 += b[k]; }", "adds to more than one variable"),
        ("for (int k = 0; k < n; ++k) { float x = acc; acc += x; }", "uses acc for more than adding to it"),
        ("for (int k = 0; k < n; ++k) { static float x = a[k]; acc += x; }", ""),
        ("for (int k = 0; k < n; ++k) acc += next(a);", "calls next, of which it is not known"),
        ("for (int k = 0; k < n; ++k) acc += a[k++];", ""),
        ("for (int k = 0; k < n; ++k) acc += HIDDEN;", "holds the macro HIDDEN"),
        ("for (int k = 0; k < n; k *= 2) acc += a[k];", "does not step by a fixed value"),
        ("for (int k = 0; k < n; k += k) acc += a[k];", "does not step by a fixed value"),
        ("for (int k = n; k > 0; --k) acc += a[k];", "does not end by its counter reaching a bound from below"),
        ("for (int k = 0; k < (int)acc; ++k) acc += a[k];", ""),
        ("for (int k = 0; k < n && acc < 9; ++k) acc += a[k];", "does not end by its counter"),
        ("for (unsigned k = 0; k < n; ++k) acc += a[k];", "a bound of another type"),
        ("for (long k = 0; k < n; ++k) acc += a[k];", "counts in long"),
        ("for (size_t k = 0; k < 99; ++k) acc += a[k];", "counts in size_t"),
        ("for (float k = 0; k < n; ++k) acc += a[0];", "counts in float"),
        ("int k; for (k = 0; k < n; ++k) acc += a[k];", "does not declare its counter"),
        ("for (int k = 0, j = 0; k < n; ++k) acc += a[k];", "declares more than its counter"),
        ("for (int k = 0; k < n; ++k) {\n#ifdef LESS\nacc += a[k];\n#endif\n}", "a line of the preprocessor"),
        ("#pragma unroll 2\nfor (int k = 0; k < n; ++k) acc += a[k];", "already carries #pragma unroll 2"),
        ("int k = 0; while (k < n) { acc += a[k]; ++k; }", "is no for loop"),
        ("for (int k = 0; k < n; ++k) out[0] += a[k];", "does more than add to one variable"),
        ("{ float acc = 1; out[1] = acc; } for (int k = 0; k < n; ++k) acc += a[k];", "declared once"),
        ("volatile float x = 0; for (int k = 0; k < n; ++k) acc += a[k];", "volatile"),
    ],
)
@pytest.mark.parametrize("proposer", [Accumulators(), VectorLoads()], ids=["accumulators", "vector loads"])
def test_a_loop_that_is_not_proven_to_sum_is_left_alone(
    proposer: Accumulators | VectorLoads, loop: str, reason: str
) -> None:
    more = "#define HIDDEN a[k++]\n__device__ float next(const float* p) { return p[0]; }\n"
    left_alone(proposer, task(summing("float b2 = 0;\n" + BEGIN + loop + END, more=more)), reason)


def test_whole_numbers_stay_bit_exact() -> None:
    body = "int acc = 0; for (int k = 0; k < n; ++k) acc += a[k]; out[0] = acc;"
    source = summing(body, "const int* a, int* out, int n")
    assert all(one.bit_exact for one in proposed(Accumulators(), task(source)))


def test_new_names_are_names_that_the_source_does_not_have() -> None:
    source = summing(f"float acc_1 = 2;\n{BEGIN}for (int k = 0; k < n; ++k) acc += a[k] * acc_1;{END}")
    first, *_ = proposed(Accumulators(), task(source))
    assert b"float acc_1x = 0.0f, acc_2 = 0.0f" in first.source


def test_fewer_trips_than_sums_is_said() -> None:
    source = summing(f"{BEGIN}for (int k = 0; k < 4; ++k) acc += a[k];{END}")
    assert transformations(proposed(Accumulators(), task(source))) == [f"{n} accumulators in loop1" for n in (4, 2)]
    assert reasons(Accumulators(), task(source)) == ["loop1 makes 4 trips, fewer than 8 sums"]


def test_neighbours_are_loaded_four_and_two_at_a_time_in_the_order_of_before() -> None:
    four, two = proposed(VectorLoads(), task(ROW_DOT))
    assert four.bit_exact and two.bit_exact
    assert b"*reinterpret_cast<const float4*>(&a[row * n + k])" in four.source
    assert b"*reinterpret_cast<const float2*>(&b[k])" in two.source
    assert b"& 15ULL) == 0" in four.source and b"& 7ULL) == 0" in two.source


@pytest.mark.parametrize(
    ("loop", "reason"),
    [
        ("for (int k = 0; k < n; ++k) acc += a[2 * k];", "no neighbours"),
        ("for (int k = 0; k < n; ++k) acc += a[n - k];", "no neighbours"),
        ("for (int k = 0; k < n; ++k) acc += a[k * n + 3];", "no neighbours"),
        ("for (int k = 0; k < n; ++k) acc += k > 0 ? a[k - 1] : 1.0f;", "no neighbours"),
        ("for (int k = 0; k < n; ++k) acc += (k > 0 && a[k - 1] > 0);", "no neighbours"),
        ("for (int k = 0; k < n; ++k) { const int j = k; acc += a[j + k]; }", "no neighbours"),
        ("for (int k = 0; k < n; k += 2) acc += a[k];", "steps by 2"),
        ("for (int k = 0; k < n; k += blockDim.x) acc += a[k];", "steps by blockDim.x"),
        ("unsigned m = n; for (unsigned k = 0; k < m; ++k) acc += a[m - 1u + k];", ""),
    ],
)
def test_loads_that_are_not_of_neighbours_in_every_pass_stay(loop: str, reason: str) -> None:
    left_alone(VectorLoads(), task(summing(BEGIN + loop + END)), reason)


def test_an_index_through_another_load_stays_and_the_other_is_wide() -> None:
    loop = "for (int k = 0; k < n; ++k) acc += a[c[k]];"
    source = summing(BEGIN + loop + END, "const float* a, const int* c, float* out, int n")
    first, *_ = proposed(VectorLoads(), task(source))
    assert b"acc += a[k_vector_0.x];" in first.source and b"int4" in first.source
