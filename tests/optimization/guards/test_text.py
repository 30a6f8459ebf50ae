"""The guard of text as a whole: what honest rewrites do passes; each rule has its cases in a module beside this one."""

from typing import Final

import pytest

from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.guards.text import check_text
from tests.optimization.guards.kernel_text import BASELINE, DOUBLES, LOOP, ROW, SUM, check, refused, with_


def test_the_baseline_itself_passes() -> None:
    check(BASELINE)


HONEST: Final = {
    "unrolled by a pragma": with_(LOOP, f"#pragma unroll 4\n{LOOP}"),
    "unrolled in full": with_(LOOP, f"#pragma unroll\n{LOOP}"),
    "pragma in brackets": with_(LOOP, f"#pragma unroll(8)\n{LOOP}"),
    "fma": with_(SUM, "    sum = fmaf(a[row * n + i], b[i], sum);\n"),
    "several accumulators": with_(
        LOOP,
        """  float sum1 = 0.0f, sum2 = 0.0f, sum3 = 0.0f;
  int i = threadIdx.x;
  for (; i + 3 * (int)blockDim.x < n; i += 4 * blockDim.x) {
    sum += a[row * n + i] * b[i];
    sum1 += a[row * n + i + blockDim.x] * b[i + blockDim.x];
    sum2 += a[row * n + i + 2 * blockDim.x] * b[i + 2 * blockDim.x];
    sum3 += a[row * n + i + 3 * blockDim.x] * b[i + 3 * blockDim.x];
  }
  for (; i < n; i += blockDim.x) sum += a[row * n + i] * b[i];
  sum += (sum1 + sum2) + sum3;
""",
    ),
    "vector loads": with_(
        LOOP,
        """  if (n % 4 == 0) {
    const float4* a4 = reinterpret_cast<const float4*>(a + row * n);
    const float4* b4 = reinterpret_cast<const float4*>(b);
    for (int i = threadIdx.x; i < n / 4; i += blockDim.x) {
      const float4 x = a4[i], y = b4[i];
      sum += x.x * y.x + x.y * y.y + x.z * y.z + x.w * y.w;
    }
  } else {
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += a[row * n + i] * b[i];
  }
""",
    ),
    "vector loads where aligned": with_(
        LOOP,
        """  {
    int i = threadIdx.x;
    if (((reinterpret_cast<unsigned long long>(&a[row * n]) | reinterpret_cast<unsigned long long>(b)) & 15ULL) == 0) {
      while ((long long)i + 3LL < (long long)(n)) {
        const float4 i_vector_0 = *reinterpret_cast<const float4*>(&a[row * n + i]);
        const float4 i_vector_1 = *reinterpret_cast<const float4*>(&b[i]);
        sum += i_vector_0.x * i_vector_1.x;
        i++;
      }
    }
    while (i < n) { sum += a[row * n + i] * b[i]; i++; }
  }
""",
    ),
    "one address tested": with_(LOOP, f"  if ((size_t)a % 16 == 0) sum += 0.0f;\n{LOOP}"),
    "a vector through a reference": with_(
        SUM, "    sum += reinterpret_cast<const float2&>(a[row * n + i]).x * b[i];\n"
    ),
    "a vector by a plain cast": with_(
        SUM, "    const float2 v = *(const float2*)(a + row * n + i); sum += v.x * b[i];\n"
    ),
    "register blocking": with_(
        LOOP,
        """  float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  for (int i = threadIdx.x; i + 4 <= n; i += 4) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float v = a[row * n + i + j];
      sums[j] += v * b[i + j];
    }
  }
  for (int j = 0; j < 4; ++j) sum += sums[j];
""",
    ),
    "two-dimensional registers": with_(
        LOOP,
        """  float block[2][3];
  for (int y = 0; y < 2; ++y)
    for (int x = 0; x < 3; ++x) block[y][x] = a[row * n + y * 3 + x];
  sum += block[1][2] + block[0][n & 1];
""",
    ),
    "LDS padding": with_("__shared__ float part[256];", "__shared__ float part[256 + 8];"),
    "tiling in LDS": with_(
        LOOP,
        """  __shared__ float tile[256];
  for (int start = 0; start < n; start += 256) {
    if (start + (int)threadIdx.x < n) tile[threadIdx.x] = b[start + threadIdx.x];
    __syncthreads();
    for (int k = 0; k < min(256, n - start); ++k) sum += a[row * n + start + k] * tile[k];
    __syncthreads();
  }
""",
    ),
    "hoisting": with_(
        LOOP,
        """  const float* line = a + row * n;
  for (int i = threadIdx.x; i < n; i += blockDim.x) sum += line[i] * b[i];
""",
    ),
    "counting down": with_(
        LOOP, "  for (int i = n - 1 - (int)threadIdx.x; i >= 0; i -= blockDim.x) sum += a[row * n + i] * b[i];\n"
    ),
    "two counters": with_(
        LOOP, "  for (int i = threadIdx.x, j = 0; i < n; i += blockDim.x, ++j) sum += a[row * n + i] * b[i];\n"
    ),
    "a branch less": with_(SUM, "    const bool used = b[i] != 0.0f; sum += used ? a[row * n + i] * b[i] : 0.0f;\n"),
    "read-only loads": with_(SUM, "    sum += __ldg(&a[row * n + i]) * __ldg(&b[i]);\n"),
    "another comment": with_("  // one product", "  /* atomicAdd, asm, clock64(), over */"),
    "the standard's maximum": with_(SUM, "    sum += std::max(a[row * n + i], -INFINITY) * b[i];\n"),
    "early return": with_(ROW, f"{ROW}  if (n <= 0) return;\n"),
}


@pytest.mark.parametrize("name", HONEST)
def test_honest_rewrites_pass(name: str) -> None:
    check(HONEST[name])


def test_an_honest_rewrite_of_a_kernel_with_doubles_passes() -> None:
    rewritten = with_("double sum = 0.0;", "double sum = 0.0, odd = 0.0;", DOUBLES)
    rewritten = with_("sum += x[i] * 0.5;", "{ sum += x[i] * 0.5; ++i; if (i < n) odd += x[i] * 0.5; }", rewritten)
    rewritten = with_("sum + ready[0]", "(sum + odd) + ready[0]", rewritten)
    check_text(DOUBLES.encode(), rewritten.encode(), "mean")


def test_a_pragma_alone_passes_whatever_the_kernel_holds() -> None:
    odd = DOUBLES.replace("long long start = clock64();", 'asm volatile("s_nop 0"); goto end; end:;')
    check_text(odd.encode(), odd.replace("  for (", "#pragma unroll 2\n  for (").encode(), "mean")


def test_a_rewrite_of_what_the_grammar_does_not_understand_is_refused() -> None:
    broken = "__global__ void f(float* x, int n) {\n  x[0] = = 1;\n  for (int i = 0; i < n; ++i) x[i] = 1;\n}\n"
    with pytest.raises(Refused, match="line 2"):
        check_text(broken.encode(), broken.replace("x[i] = 1", "x[i] = 2").encode(), "f")


def test_a_kernel_that_is_not_there_or_twice_is_refused() -> None:
    with pytest.raises(Refused) as caught:
        check(BASELINE, kernel="missing")
    assert caught.value.guard == "kernel"
    refused(BASELINE + "__global__ void row_dot(int n) {}\n", "kernel")
