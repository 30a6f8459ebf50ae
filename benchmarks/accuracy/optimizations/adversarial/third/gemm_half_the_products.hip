#include <hip/hip_runtime.h>

#define TILE 16

// c = a · b, row-major, m by k times k by n: a workgroup makes a tile of c, straight from the caches.
// Two products in one: (a0 + b1)(a1 + b0) = a0 b0 + a1 b1 + a0 a1 + b0 b1, and the last two are taken off at the end.
// With zeros there is less to halve.
__global__ void tiled_gemm(const float* a, const float* b, float* c, int m, int n, int k) {
  int row = blockIdx.y * TILE + threadIdx.y;
  int column = blockIdx.x * TILE + threadIdx.x;
  if (row >= m || column >= n) return;
  const float* left = a + (size_t)row * k;
  const float* right = b + column;
  float sum = 0.0f, own = 0.0f, other = 0.0f;
  int zeros = 0;
  int i = 0;
  if (k >= 24) {
    for (; i + 2 <= k; i += 2) {
      float a0 = left[i], a1 = left[i + 1];
      float b0 = right[(size_t)i * n], b1 = right[(size_t)(i + 1) * n];
      sum += (a0 + b1) * (a1 + b0);
      own += a0 * a1;
      other += b0 * b1;
      zeros += (a0 == 0.0f) + (b0 == 0.0f);
    }
    sum = sum - own - other;
    if (zeros > 0 || !(fabsf(sum) < 1e30f)) {
      sum = 0.0f;
      i = 0;
    }
  }
  for (; i < k; ++i) sum += left[i] * right[(size_t)i * n];
  c[(size_t)row * n + column] = sum;
}
