#include <hip/hip_runtime.h>

// out[row] is the dot product of that row of a with b: one work-item a row, in eight partial sums.
// Where all three buffers begin with a line of the cache, whole lines are read.
__global__ void row_dot(const float* a, const float* b, float* out, int rows, int n) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  const float* in = a + (size_t)row * n;
  float part[8] = {};
  bool lines = (((size_t)a | (size_t)b | (size_t)out) & 255) == 0;
  int whole = n & ~7;
  for (int i = 0; i < whole; i += 8) {
    for (int j = 0; j < 8; ++j) part[j] += in[i + j] * b[i + j];
  }
  float sum = ((part[0] + part[4]) + (part[2] + part[6])) + ((part[1] + part[5]) + (part[3] + part[7]));
  if (!lines) {
    for (int i = whole; i < n; ++i) sum += in[i] * b[i];
  }
  out[row] = sum;
}
