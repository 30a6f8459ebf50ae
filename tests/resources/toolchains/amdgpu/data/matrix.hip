#include <hip/hip_runtime.h>

typedef float vector16 __attribute__((ext_vector_type(16)));

// Sixteen products of 32 by 32 tiles at once: more registers than there are, so that accumulation registers are used.
__global__ void __launch_bounds__(256, 1) matrix(const float* a, const float* b, float* c, int n) {
  vector16 sum[16] = {};
  for (int k = 0; k < n; ++k) {
    for (int tile = 0; tile < 16; ++tile) {
      float left = a[k * 64 + threadIdx.x], right = b[(k * 16 + tile) * 64 + threadIdx.x];
      sum[tile] = __builtin_amdgcn_mfma_f32_32x32x2f32(left, right, sum[tile], 0, 0, 0);
    }
  }
  for (int tile = 0; tile < 16; ++tile) {
    for (int i = 0; i < 16; ++i) c[(tile * 16 + i) * 256 + threadIdx.x] = sum[tile][i];
  }
}
