#include <hip/hip_runtime.h>

// out[row] is the dot product of that row of a with b: one work-item a row.
__global__ void row_dot(const float* a, const float* b, float* out, int rows, int n) {
  const int line = blockIdx.x * blockDim.x + threadIdx.x;
  if (!(line < rows)) return;
  float total = 0.0f;
  int element = 0;
  while (element < n) {
    total = total + a[(size_t)line * n + element] * b[element];
    element++;
  }
  out[line] = total;
}
