#include <hip/hip_runtime.h>
template <int Width>
__device__ __forceinline__ float across(float v) {
#pragma unroll
  for (int step = Width / 2; step > 0; step /= 2) v += __shfl_xor(v, step, Width);
  return v;
}
__device__ float plain(const float* x, int from, int to) {
  float sum = 0.0f;
  while (from < to) sum += x[from++];
  return sum;
}
__global__ void reduce(const float* x, float* y, int n) {
  float sum = 0.0f;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += x[i];
  for (int i = 0; i < n; i += 64) sum += across<64>(x[i]);
  for (int i = 0; i < n; i += 64) sum += plain(x, i, i + 64);
  if (threadIdx.x == 0) unsafeAtomicAdd(y, sum);
}
