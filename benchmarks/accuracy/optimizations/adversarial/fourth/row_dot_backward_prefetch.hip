#include <hip/hip_runtime.h>

// out[row] is the dot product of that row of a with b: one work-item a row.
__global__ void row_dot(const float* a, const float* b, float* out, int rows, int n) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  const float* in = a + (size_t)row * n;
  float s0 = 0.0f, s1 = 0.0f;
  float left = in[n - 1], right = b[n - 1];
  int i = n - 1;
  for (; i > 0; i -= 2) {
    s0 += left * right;
    s1 += in[i - 1] * b[i - 1];
    left = in[i - 2];
    right = b[i - 2];
  }
  if (i == 0) s0 += left * right;
  out[row] = s0 + s1;
}
