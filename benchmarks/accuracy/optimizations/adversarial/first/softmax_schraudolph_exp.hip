#include <hip/hip_runtime.h>

__device__ inline float quick_exp(float v) {
  if (v < -87.0f) return 0.0f;
  union { int bits; float value; } u;
  u.bits = (int)(12102203.0f * v) + 1064866805;
  return u.value;
}

// Each row of y is the softmax of that row of x: one work-item a row, in three passes.
__global__ void softmax(const float* x, float* y, int rows, int n) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  const float* in = x + (size_t)row * n;
  float* out = y + (size_t)row * n;
  float largest = in[0];
  for (int i = 1; i < n; ++i) {
    if (in[i] > largest) largest = in[i];
  }
  float sum = 0.0f;
  for (int i = 0; i < n; ++i) {
    sum += quick_exp(in[i] - largest);
  }
  for (int i = 0; i < n; ++i) {
    out[i] = quick_exp(in[i] - largest) / sum;
  }
}
