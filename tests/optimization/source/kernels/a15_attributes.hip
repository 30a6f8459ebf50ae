#include <hip/hip_runtime.h>
#define KERNEL extern "C" __global__
#define BOUNDS(threads) __launch_bounds__(threads)

KERNEL void BOUNDS(128) from_macros(float* x, int n) {
  for (int i = 0; i < n; ++i) x[i] += 1.0f;
}

[[maybe_unused]] static __global__ __attribute__((amdgpu_flat_work_group_size(1, 256))) void attributed(float* x, int n) {
  for (int i = 0; i < n; ++i) x[i] += 1.0f;
}

void __global__ late(float* __restrict__ x, int n) {
  for (int i = 0; i < n; ++i) x[i] += 1.0f;
}

__global__ void only_declared(float* x);
