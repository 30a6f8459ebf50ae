#include <hip/hip_runtime.h>

extern "C" __global__ void __launch_bounds__(256) softmax(const float* in, float* out, int n) {
  __shared__ float part[256];
  float most = -INFINITY;
  for (int i = threadIdx.x; i < n; i += 256) most = fmaxf(most, in[i]);
  part[threadIdx.x] = most;
  __syncthreads();
  for (int step = 128; step > 0; step >>= 1) {
    if (threadIdx.x < step) part[threadIdx.x] = fmaxf(part[threadIdx.x], part[threadIdx.x + step]);
    __syncthreads();
  }
  most = part[0];
  __syncthreads();
  float total = 0.0f;
  for (int i = threadIdx.x; i < n; i += 256) total += expf(in[i] - most);
  part[threadIdx.x] = total;
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += 256) out[i] = expf(in[i] - most) / part[0];
}
