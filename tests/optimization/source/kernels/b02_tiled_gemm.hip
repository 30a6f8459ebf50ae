#include <hip/hip_runtime.h>
#define TILE 16

__global__ __launch_bounds__(TILE * TILE, 2) void gemm(const float* a, const float* b, float* c, int n) {
  __shared__ float left[TILE][TILE];
  __shared__ float right[TILE][TILE + 1];
  const int row = blockIdx.y * TILE + threadIdx.y;
  const int column = blockIdx.x * TILE + threadIdx.x;
  float sum = 0.0f;
  for (int tile = 0; tile < n; tile += TILE) {
    left[threadIdx.y][threadIdx.x] = a[row * n + tile + threadIdx.x];
    right[threadIdx.y][threadIdx.x] = b[(tile + threadIdx.y) * n + column];
    __syncthreads();
    for (int k = 0; k < TILE; ++k) sum += left[threadIdx.y][k] * right[k][threadIdx.x];
    __syncthreads();
  }
  c[row * n + column] = sum;
}

__global__ void gemm_registers(const float* a, const float* b, float* c, int n) {
  float sums[4] = {0, 0, 0, 0};
  const int column = blockIdx.x * blockDim.x + threadIdx.x;
  for (int k = 0; k < n; ++k) {
    const float right = b[k * n + column];
    for (int j = 0; j < 4; ++j) sums[j] += a[(blockIdx.y * 4 + j) * n + k] * right;
  }
  for (int j = 0; j < 4; j++) c[(blockIdx.y * 4 + j) * n + column] = sums[j];
}
