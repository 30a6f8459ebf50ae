#include <hip/hip_runtime.h>
#define UNROLL_FOUR _Pragma("unroll 4")
#define NOTHING

__global__ void pragmas(const float* x, float* y, int n) {
#pragma unroll 4
  for (int i = 0; i < n; ++i) y[i] = x[i];
  UNROLL_FOUR
  for (int i = 0; i < n; ++i) y[i] = x[i] + 1.0f;
  NOTHING for (int i = 0; i < n; ++i) y[i] = x[i] + 2.0f;
  for (int i = 0; i < n; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) y[i] += x[j];
  }
  _Pragma("unroll") for (int i = 0; i < n; ++i) y[i] += 3.0f;
  for (int i = 0; i < n; ++i) {
#pragma clang fp contract(fast)
    y[i] += x[i] * x[i];
  }
}
