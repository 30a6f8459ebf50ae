#include <hip/hip_runtime.h>

__global__ void by_hand(const float4* __restrict__ x, float* __restrict__ y, const int n) {
  float a = 0, b = 0, c = 0, d = 0;
  int i = threadIdx.x;
  for (; i + 3 < n; i += 4) {
    const float4 v = x[i >> 2];
    a += v.x; b += v.y; c += v.z; d += v.w;
  }
  for (; i < n; i++) a += reinterpret_cast<const float*>(x)[i];
  y[threadIdx.x] = (a + b) + (c + d);
}
