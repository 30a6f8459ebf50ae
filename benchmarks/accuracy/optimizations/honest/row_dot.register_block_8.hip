#include <hip/hip_runtime.h>

// out[row] is the dot product of that row of a with b: one work-item a row.
__global__ void row_dot(const float* a, const float* b, float* out, int rows, int n) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  const float* u = a + (size_t)row * n;
  const float* v = b;
  float part[8] = {0.0f};
  int i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int j = 0; j < 8; ++j) part[j] += u[i + j] * v[i + j];
  }
  float rest = 0.0f;
  for (; i < n; ++i) rest += u[i] * v[i];
  float even = (part[0] + part[2]) + (part[4] + part[6]);
  float odd = (part[1] + part[3]) + (part[5] + part[7]);
  out[row] = (even + odd) + rest;
}
