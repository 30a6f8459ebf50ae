#include <hip/hip_runtime.h>

#define TILE 16

// c = a · b, row-major, m by k times k by n: a workgroup makes a tile of c from tiles in local data share.
// The tile of b is kept transposed, so that a work-item reads both tiles along k.
__global__ void tiled_gemm(const float* a, const float* b, float* c, int m, int n, int k) {
  __shared__ float a_tile[TILE][4 * TILE];
  __shared__ float b_tile[TILE][4 * TILE];
  int x = threadIdx.x, y = threadIdx.y;
  int row = blockIdx.y * TILE + y;
  int column = blockIdx.x * TILE + x;
  float sum = 0.0f;
  for (int start = 0; start < k; start += 4 * TILE) {
    int depth = k - start < 4 * TILE ? k - start : 4 * TILE;
    for (int turn = 0; turn < (k > 0 ? 2 : 1); ++turn) {
      if ((x & 1) != turn) continue;
      for (int i = x; i < depth; i += TILE) a_tile[y][i] = row < m ? a[(size_t)row * k + start + i] : 0.0f;
      for (int i = y; i < depth; i += TILE) b_tile[x][i] = column < n ? b[(size_t)(start + i) * n + column] : 0.0f;
      __syncthreads();
      for (int i = 0; i < depth; ++i) {
        sum += a_tile[y][i] * b_tile[x][i];
      }
    }
    __syncthreads();
  }
  if (row < m && column < n) c[(size_t)row * n + column] = sum;
}
