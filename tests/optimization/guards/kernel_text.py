"""The kernels that tests of the guard of text rewrite, and judging a rewrite of them."""

from typing import Final

import pytest

from aaco_pipeline.optimization.candidates import Refused, SignatureChange
from aaco_pipeline.optimization.guards.text import check_text

BASELINE: Final = """#include <hip/hip_runtime.h>
#define TILE 16
#define SQUARE(v) ((v) * (v))
#define CLOCK clock64()
__device__ float state;
__device__ float helper(float v) { return v + 1.0f; }
__device__ float other(float v) { return v - 1.0f; }
constexpr int kWidth = 4;

extern "C" __global__ void __launch_bounds__(256) row_dot(const float* a, const float* b, float* out, int n) {
  __shared__ float part[256];
  const int row = blockIdx.x;
  float sum = 0.0f;
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    sum += a[row * n + i] * b[i];  // one product
  }
  part[threadIdx.x] = helper(SQUARE(sum));
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd(&out[row], part[0]);
}

__global__ void untouched(double* x, int n) {
  for (int i = 0; i < n; ++i) x[i] = x[i] * 0.5;
}
"""
SUM: Final = "    sum += a[row * n + i] * b[i];  // one product\n"
LOOP: Final = (
    "  for (int i = threadIdx.x; i < n; i += blockDim.x) {\n    sum += a[row * n + i] * b[i];  // one product\n  }\n"
)
ROW: Final = "  const int row = blockIdx.x;\n"


def check(candidate: str, *allowed: SignatureChange, kernel: str = "row_dot") -> None:
    """Judge a candidate for the baseline; Refused where it does what it may not."""
    check_text(BASELINE.encode(), candidate.encode(), kernel, allowed=allowed)


def with_(old: str, new: str, text: str = BASELINE) -> str:
    """A text with one piece of it put in the place of another."""
    assert text.count(old) == 1, old
    return text.replace(old, new)


def added(statement: str) -> str:
    """The baseline with a statement before the loop."""
    return with_(LOOP, f"  {statement}\n{LOOP}")


def refused(candidate: str, guard: str, *allowed: SignatureChange) -> str:
    """Why the candidate is refused, which it must be, and by this guard."""
    with pytest.raises(Refused) as caught:
        check(candidate, *allowed)
    assert caught.value.guard == guard, caught.value
    return caught.value.reason


#: Another kernel, with doubles, a volatile and a clock of its own.
DOUBLES: Final = """__global__ void mean(const double* x, volatile int* ready, double* out, int n) {
  double sum = 0.0;
  for (int i = 0; i < n; ++i) sum += x[i] * 0.5;
  out[0] = sum + ready[0];
  volatile float once = 1.0f;
  long long start = clock64();
}
"""
