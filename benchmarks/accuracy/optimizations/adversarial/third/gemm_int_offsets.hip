#include <hip/hip_runtime.h>

#define TILE 16

// c = a · b, row-major, m by k times k by n: a workgroup makes a tile of c, straight from the caches.
__global__ void tiled_gemm(const float* a, const float* b, float* c, int m, int n, int k) {
  int row = blockIdx.y * TILE + threadIdx.y;
  int column = blockIdx.x * TILE + threadIdx.x;
  if (row >= m || column >= n) return;
  const float* left = a + row * k;
  int at = column;
  float sum = 0.0f;
  for (int i = 0; i < k; ++i, at += n) {
    sum += left[i] * b[at];
  }
  c[row * n + column] = sum;
}
