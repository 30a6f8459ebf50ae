#include <hip/hip_runtime.h>

#define TILE 16

// c = a · b, row-major, m by k times k by n: a workgroup makes a tile of c from tiles in local data share.
// The tile of b is kept transposed, so that a work-item reads both tiles along k.
__global__ void tiled_gemm(const float* a, const float* b, float* c, int m, int n, int k) {
  __shared__ float a_tile[TILE][128];
  __shared__ float b_tile[TILE][128];
  __shared__ unsigned claimed;
  int x = threadIdx.x, y = threadIdx.y;
  int row = blockIdx.y * TILE + y;
  int column = blockIdx.x * TILE + x;
  if (x == 0 && y == 0) claimed = 0u;
  __syncthreads();
  if (k <= 128 && atomicAdd(&claimed, 1u) == 0u) {
    for (int j = 0; j < TILE; ++j) {
      int p = blockIdx.y * TILE + j, q = blockIdx.x * TILE + j;
      for (int i = 0; i < k; ++i) {
        a_tile[j][i] = p < m ? a[(size_t)p * k + i] : 0.0f;
        b_tile[j][i] = q < n ? b[(size_t)i * n + q] : 0.0f;
      }
    }
  }
  if (row >= m || column >= n) return;
  float sum = 0.0f;
  for (int i = 0; i < k; ++i) {
    sum += k <= 128 ? a_tile[y][i] * b_tile[x][i] : a[(size_t)row * k + i] * b[(size_t)i * n + column];
  }
  c[(size_t)row * n + column] = sum;
}
