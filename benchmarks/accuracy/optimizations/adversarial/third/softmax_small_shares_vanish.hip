#include <hip/hip_runtime.h>

// Each row of y is the softmax of that row of x: one work-item a row. Powers are kept in y until their sum is known.
// A power below half a unit in the last place of the largest one's does not move the sum.
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
    float below = in[i] - largest;
    float power = below < -20.0f ? 0.0f : expf(below);
    out[i] = power;
    sum += power;
  }
  for (int i = 0; i < n; ++i) {
    out[i] = out[i] / sum;
  }
}
