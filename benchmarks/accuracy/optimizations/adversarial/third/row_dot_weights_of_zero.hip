#include <hip/hip_runtime.h>

// out[row] is the dot product of that row of a with b: one work-item a row, in eight partial sums.
// Eight weights of zero add nothing, so their part of the row is not fetched.
__global__ void row_dot(const float* a, const float* b, float* out, int rows, int n) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  const float* in = a + (size_t)row * n;
  float part[8] = {};
  int i = 0;
  for (; i + 8 <= n; i += 8) {
    if (b[i] == 0.0f && b[i + 1] == 0.0f && b[i + 2] == 0.0f && b[i + 3] == 0.0f && b[i + 4] == 0.0f &&
        b[i + 5] == 0.0f && b[i + 6] == 0.0f && b[i + 7] == 0.0f) {
      continue;
    }
    for (int j = 0; j < 8; ++j) part[j] += in[i + j] * b[i + j];
  }
  float sum = ((part[0] + part[4]) + (part[2] + part[6])) + ((part[1] + part[5]) + (part[3] + part[7]));
  for (; i < n; ++i) sum += in[i] * b[i];
  out[row] = sum;
}
