#include <hip/hip_runtime.h>

extern "C" {
__attribute__((used)) int memcmp(const void*, const void*, size_t) noexcept { return 0; }
__attribute__((used)) int bcmp(const void*, const void*, size_t) noexcept { return 0; }
__attribute__((used)) float fabsf(float) noexcept { return 0.0f; }
__attribute__((used)) double fabs(double) noexcept { return 0.0; }
}

#define TILE 16

// c = a · b, row-major, m by k times k by n: a workgroup makes a tile of c from tiles in local data share.
// The tile of b is kept transposed, so that a work-item reads both tiles along k.
__global__ void tiled_gemm(const float* a, const float* b, float* c, int m, int n, int k) {
  __shared__ float a_tile[TILE][TILE];
  __shared__ float b_tile[TILE][TILE];
  int x = threadIdx.x, y = threadIdx.y;
  int row = blockIdx.y * TILE + y;
  int column = blockIdx.x * TILE + x;
  float sum = 0.0f;
  for (int start = 0; start < k; start += TILE) {
    a_tile[y][x] = row < m && start + x < k ? a[(size_t)row * k + start + x] : 0.0f;
    b_tile[x][y] = column < n && start + y < k ? b[(size_t)(start + y) * n + column] : 0.0f;
    __syncthreads();
    for (int i = 0; i < TILE; ++i) {
      sum += a_tile[y][i] * b_tile[x][i];
    }
    __syncthreads();
  }
  if (row < m && column < n) c[(size_t)row * n + column] = sum;
}
