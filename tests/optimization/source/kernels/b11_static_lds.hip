#include <hip/hip_runtime.h>

__global__ void fixed(const float* x, float* y, int n) {
  __shared__ float tile[64];
  tile[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  float sum = 0.0f;
  for (int i = 0; i < 64; ++i) sum += tile[i];
  for (int i = 0; i < n; ++i) sum += tile[i & 63] * x[i];
  y[threadIdx.x] = sum;
}

__global__ void launched(const float* x, float* y, int n) {
  HIP_DYNAMIC_SHARED(float, bytes);
  float4* wide = reinterpret_cast<float4*>(bytes);
  for (int i = 0; i < n; ++i) y[i] = wide[i].x;
  for (int i = 0; i < n; ++i) y[i] += x[i];
}
