#include <hip/hip_runtime.h>

#define TILE 16

// c = a · b, row-major, m by k times k by n: a workgroup makes a tile of c from tiles in local data share.
// The tile of b is kept transposed, so that a work-item reads both tiles along k.
__global__ void tiled_gemm(const float* a, const float* b, float* c, int m, int n, int k) {
  __shared__ float a_tile[TILE][2 * TILE];
  __shared__ float b_tile[TILE][2 * TILE];
  int x = threadIdx.x, y = threadIdx.y;
  int row = blockIdx.y * TILE + y;
  int column = blockIdx.x * TILE + x;
  float sum = 0.0f;
  for (int start = 0; start < k; start += 2 * TILE) {
    a_tile[y][x] = row < m && start + x < k ? a[(size_t)row * k + start + x] : 0.0f;
    b_tile[x][y] = column < n && start + y < k ? b[(size_t)(start + y) * n + column] : 0.0f;
    int next1 = start + 1 * TILE;
    a_tile[y][1 * TILE + x] = row < m && next1 + x < k ? a[(size_t)row * k + next1 + x] : 0.0f;
    b_tile[x][1 * TILE + y] = column < n && next1 + y < k ? b[(size_t)(next1 + y) * n + column] : 0.0f;
    __syncthreads();
    float part[8] = {0.0f};
    for (int i = 0; i < 2 * TILE; i += 8) {
      for (int j = 0; j < 8; ++j) part[j] += a_tile[y][i + j] * b_tile[x][i + j];
    }
    sum += ((part[0] + part[1]) + (part[2] + part[3])) + ((part[4] + part[5]) + (part[6] + part[7]));
    __syncthreads();
  }
  if (row < m && column < n) c[(size_t)row * n + column] = sum;
}
