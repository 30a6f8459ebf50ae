#include <hip/hip_runtime.h>

#define TILE 16

// c = a · b, row-major, m by k times k by n: a workgroup makes a tile of c from tiles in local data share.
// A work-item waits for nobody: it fills the two rows that it reads.
__global__ void tiled_gemm(const float* a, const float* b, float* c, int m, int n, int k) {
  __shared__ float a_tile[TILE][TILE];
  __shared__ float b_tile[TILE][TILE];
  int x = threadIdx.x, y = threadIdx.y;
  int row = blockIdx.y * TILE + y;
  int column = blockIdx.x * TILE + x;
  if (row >= m || column >= n) return;
  float sum = 0.0f;
  for (int start = 0; start < k; start += TILE) {
    int deep = k - start < TILE ? k - start : TILE;
    for (int i = 0; i < deep; ++i) {
      a_tile[y][i] = a[(size_t)row * k + start + i];
      b_tile[x][i] = b[(size_t)(start + i) * n + column];
    }
    for (int i = 0; i < deep; ++i) {
      sum += a_tile[y][i] * b_tile[x][i];
    }
  }
  c[(size_t)row * n + column] = sum;
}
