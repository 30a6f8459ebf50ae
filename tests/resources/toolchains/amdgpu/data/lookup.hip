#include <hip/hip_runtime.h>

__constant__ float table[8] = {1, 2, 3, 5, 7, 11, 13, 17};

__device__ __attribute__((noinline)) float looked_up(float x) { return x * table[(int)x & 7]; }

namespace scope {
// A function that is called, a table in memory, LDS, and a loop that a barrier keeps from being unrolled.
template <typename T>
__global__ void __launch_bounds__(256) lookup(const T* in, T* out, int n) {
  __shared__ T tile[256];
  T sum = 0;
#pragma unroll 4
  for (int i = 0; i < n; ++i) {
    tile[threadIdx.x] = looked_up(in[i]);
    __syncthreads();
    sum += tile[(threadIdx.x + i) & 255];
    __syncthreads();
  }
  out[threadIdx.x] = sum;
}
template __global__ void lookup<float>(const float*, float*, int);
}  // namespace scope
