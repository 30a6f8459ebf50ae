#include <hip/hip_runtime.h>

#define TILE 16

// Whether b is the same on both sides of its diagonal, looked at in its corners.
__device__ bool symmetric(const float* b, int n) {
  if (n < 4) return false;
  size_t last = n - 1, side = n;
  return b[1] != 0.0f && b[1] == b[side] && b[last] != 0.0f && b[last] == b[last * side] && b[side + last] != 0.0f &&
         b[side + last] == b[last * side + 1];
}

// c = a · b, row-major, m by k times k by n: a workgroup makes a tile of c, straight from the caches.
// A column of a symmetric b is a row of it, which is read faster.
__global__ void tiled_gemm(const float* a, const float* b, float* c, int m, int n, int k) {
  int row = blockIdx.y * TILE + threadIdx.y;
  int column = blockIdx.x * TILE + threadIdx.x;
  if (row >= m || column >= n) return;
  bool turned = n == k && symmetric(b, n);
  const float* other = turned ? b + (size_t)column * n : b + column;
  size_t step = turned ? 1 : n;
  float sum = 0.0f;
  for (int i = 0; i < k; ++i) {
    sum += a[(size_t)row * k + i] * other[i * step];
  }
  c[(size_t)row * n + column] = sum;
}
