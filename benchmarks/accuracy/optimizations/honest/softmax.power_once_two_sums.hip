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
  float even = 0.0f, odd = 0.0f;
  int at = 0;
  for (; at + 2 <= n; at += 2) {
    float first = expf(in[at] - largest);
    float second = expf(in[at + 1] - largest);
    out[at] = first;
    out[at + 1] = second;
    even += first;
    odd += second;
  }
  if (at < n) {
    out[at] = expf(in[at] - largest);
    even += out[at];
  }
  float sum = even + odd;
  for (int i = 0; i < n; ++i) {
    out[i] = out[i] / sum;
  }
}
