#include <hip/hip_runtime.h>

// out[row] is the dot product of that row of a with b: one work-item a row.
__global__ void row_dot(const float* a, const float* b, float* out, int rows, int n) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  const float* u = a + (size_t)row * n;
  const float* v = b;
  float s0 = 0.0f, s1 = 0.0f, s2 = 0.0f, s3 = 0.0f, s4 = 0.0f, s5 = 0.0f, s6 = 0.0f, s7 = 0.0f;
  int i = 0;
  for (; i + 8 <= n; i += 8) {
    s0 += u[i + 0] * v[i + 0];
    s1 += u[i + 1] * v[i + 1];
    s2 += u[i + 2] * v[i + 2];
    s3 += u[i + 3] * v[i + 3];
    s4 += u[i + 4] * v[i + 4];
    s5 += u[i + 5] * v[i + 5];
    s6 += u[i + 6] * v[i + 6];
    s7 += u[i + 7] * v[i + 7];
  }
  for (; i < n; ++i) s0 += u[i] * v[i];
  out[row] = ((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7));
}
