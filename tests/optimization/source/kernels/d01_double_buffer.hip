#include <hip/hip_runtime.h>

// C = A * B with two tiles in flight: the next one is fetched to registers while this one is multiplied.
constexpr int kTile = 32;
constexpr int kPerThread = kTile / 8;

__global__ __launch_bounds__(256) void sgemm_double_buffer(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int m, int n, int k) {
  __shared__ float as[2][kTile][kTile + 1];
  __shared__ float bs[2][kTile][kTile];
  const int tx = threadIdx.x % kTile, ty = threadIdx.x / kTile;
  float acc[kPerThread] = {};
  float next_a[kPerThread], next_b[kPerThread];
  for (int r = 0; r < kPerThread; ++r) {
    as[0][ty + r * 8][tx] = a[(blockIdx.y * kTile + ty + r * 8) * k + tx];
    bs[0][ty + r * 8][tx] = b[(ty + r * 8) * n + blockIdx.x * kTile + tx];
  }
  __syncthreads();
  int stage = 0;
  for (int k0 = kTile; k0 <= k; k0 += kTile) {
    if (k0 < k) {
      for (int r = 0; r < kPerThread; ++r) {
        next_a[r] = a[(blockIdx.y * kTile + ty + r * 8) * k + k0 + tx];
        next_b[r] = b[(k0 + ty + r * 8) * n + blockIdx.x * kTile + tx];
      }
    }
    for (int kk = 0; kk < kTile; ++kk) {
      const float right = bs[stage][kk][tx];
      for (int r = 0; r < kPerThread; ++r) acc[r] = fmaf(as[stage][ty + r * 8][kk], right, acc[r]);
    }
    stage ^= 1;
    int r = 0;
    while (r < kPerThread && k0 < k) {
      as[stage][ty + r * 8][tx] = next_a[r];
      bs[stage][ty + r * 8][tx] = next_b[r];
      ++r;
    }
    __syncthreads();
  }
  for (int r = 0; r != kPerThread; r++) c[(blockIdx.y * kTile + ty + r * 8) * n + blockIdx.x * kTile + tx] = acc[r];
}
