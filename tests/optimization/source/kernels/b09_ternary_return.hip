#include <hip/hip_runtime.h>

__device__ float clipped(float v) { return v < 0 ? 0.0f : v > 1 ? 1.0f : v; }

__global__ void ternary(const float* x, float* y, int n) {
  for (int i = 0; i < n; ++i) y[i] = clipped(x[i]);
  for (int i = 0; i < n; ++i) {
    if (x[i] != x[i]) return;
    y[i] = x[i];
  }
  for (int i = 0; i < n; ++i) y[i] = x[i] > 0 ? sqrtf(x[i]) : -sqrtf(-x[i]);
}
