#include <hip/hip_runtime.h>

extern "C" __global__ void row_dot(const float* __restrict__ matrix, const float* __restrict__ vector, float* out, int n) {
  const int row = blockIdx.x * blockDim.x + threadIdx.x;
  float sum = 0.0f;
  for (int i = 0; i < n; ++i) {
    sum += matrix[row * n + i] * vector[i];
  }
  out[row] = sum;
}
