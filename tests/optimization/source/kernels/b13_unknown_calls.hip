#include <hip/hip_runtime.h>
#include "helpers.h"

__device__ float declared_only(float v);
__device__ float pure_here(float v) { return fmaf(v, v, 1.0f); }
__device__ float outer(float v) { return pure_here(v) + declared_only(v); }

__global__ void calls(const float* x, float* y, int n, float (*pick)(float)) {
  for (int i = 0; i < n; ++i) y[i] = helper(x[i]);
  for (int i = 0; i < n; ++i) y[i] = declared_only(x[i]);
  for (int i = 0; i < n; ++i) y[i] = pure_here(x[i]);
  for (int i = 0; i < n; ++i) y[i] = outer(x[i]);
  for (int i = 0; i < n; ++i) y[i] = pick(x[i]);
  for (int i = 0; i < n; ++i) y[i] = (*pick)(x[i]);
  for (int i = 0; i < n; ++i) y[i] = std::max(x[i], 0.0f) + ::fabsf(x[i]);
  for (int i = 0; i < n; ++i) y[i] = FACTOR * x[i];
  for (int i = 0; i < n; ++i) printf("%f", x[i]);
}
