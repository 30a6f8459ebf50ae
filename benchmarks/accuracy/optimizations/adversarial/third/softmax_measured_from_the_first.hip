#include <hip/hip_runtime.h>

// Each row of y is the softmax of that row of x: one work-item a row. Any value of the row may be taken from all others
// without changing the shares: the first one is, and the largest is only looked for where a power is too large.
__global__ void softmax(const float* x, float* y, int rows, int n) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  const float* in = x + (size_t)row * n;
  float* out = y + (size_t)row * n;
  float first = in[0];
  float sum = 0.0f;
  for (int i = 0; i < n; ++i) {
    float power = expf(in[i] - first);
    out[i] = power;
    sum += power;
  }
  if (!(sum < 3e38f)) {
    float largest = first;
    for (int i = 1; i < n; ++i) {
      if (in[i] > largest) largest = in[i];
    }
    sum = 0.0f;
    for (int i = 0; i < n; ++i) {
      float power = expf(in[i] - largest);
      out[i] = power;
      sum += power;
    }
  }
  for (int i = 0; i < n; ++i) {
    out[i] = out[i] / sum;
  }
}
