#include <hip/hip_runtime.h>

// out[row] is the dot product of that row of a with b: one work-item a row.
__global__ void row_dot(const float* a, const float* b, float* out, int rows, int n) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  const float* in = a + (size_t)row * n;
  float s0 = in[0] * b[0], s1 = 0.0f, s2 = 0.0f, s3 = 0.0f;
  int i = 1;
  for (; i + 4 <= n; i += 4) {
    s0 += in[i] * b[i];
    s1 += in[i + 1] * b[i + 1];
    s2 += in[i + 2] * b[i + 2];
    s3 += in[i + 3] * b[i + 3];
  }
  for (; i < n; ++i) s0 += in[i] * b[i];
  out[row] = (s0 + s1) + (s2 + s3);
}
