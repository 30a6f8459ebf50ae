#include <hip/hip_runtime.h>

typedef float eight __attribute__((vector_size(32)));

// out[row] is the dot product of that row of a with b: one work-item a row.
__global__ void row_dot(const float* a, const float* b, float* out, int rows, int n) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  eight total = {};
  for (int i = 0; i < n; i += 8) {
    eight left = *(const eight*)(a + (size_t)row * n + i);
    eight right = *(const eight*)(b + i);
    for (int lane = 0; lane < 8; ++lane) {
      if (i + lane >= n) left[lane] = right[lane] = 0.0f;
    }
    total += left * right;
  }
  float sum = 0.0f;
  for (int lane = 0; lane < 8; ++lane) sum += total[lane];
  out[row] = sum;
}
