#include <hip/hip_runtime.h>

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
  if (largest < -1e6f || largest > 1e6f || largest != largest) {
    for (int i = 0; i < n; ++i) {
      out[i] = expf(in[i] - largest);
      sum += out[i];
    }
  } else {
    for (int i = 0; i < n; ++i) {
      float scaled = in[i] * 1.44269504f, top = largest * 1.44269504f;
      out[i] = exp2f(scaled - top);
      sum += out[i];
    }
  }
  for (int i = 0; i < n; ++i) {
    out[i] = out[i] / sum;
  }
}
