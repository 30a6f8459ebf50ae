#include <hip/hip_runtime.h>

// out[row] is the dot product of that row of a with b: one work-item a row.
__global__ void row_dot(const float* a, const float* b, float* out, int rows, int n) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  const float* u = a + (size_t)row * n;
  const float* v = b;
  float s0 = 0.0f, s1 = 0.0f;
  int i = 0;
  for (; i + 2 <= n; i += 2) {
    s0 += u[i + 0] * v[i + 0];
    s1 += u[i + 1] * v[i + 1];
  }
  for (; i < n; ++i) s0 += u[i] * v[i];
  out[row] = s0 + s1;
}
