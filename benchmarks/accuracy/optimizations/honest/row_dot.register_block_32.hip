#include <hip/hip_runtime.h>

// out[row] is the dot product of that row of a with b: one work-item a row.
__global__ void row_dot(const float* a, const float* b, float* out, int rows, int n) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  const float* u = a + (size_t)row * n;
  const float* v = b;
  float part[32] = {0.0f};
  int i = 0;
  for (; i + 32 <= n; i += 32) {
    for (int j = 0; j < 32; ++j) part[j] += u[i + j] * v[i + j];
  }
  for (; i < n; ++i) part[0] += u[i] * v[i];
  float sum = 0.0f;
  for (int j = 0; j < 32; ++j) sum += part[j];
  out[row] = sum;
}
