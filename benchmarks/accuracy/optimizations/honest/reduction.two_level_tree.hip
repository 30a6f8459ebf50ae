#include <hip/hip_runtime.h>

#define BLOCK 256

// sums[group] is the sum of the squares of the group's own `share` values of x.
__global__ void reduction(const float* x, float* sums, int n, int share) {
  __shared__ float partial[BLOCK];
  int first = blockIdx.x * share;
  int last = first + share < n ? first + share : n;
  float sum = 0.0f;
  for (int i = first + threadIdx.x; i < last; i += BLOCK) {
    sum += x[i] * x[i];
  }
  partial[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x < 16) {
    float own = 0.0f;
    for (int i = 0; i < BLOCK / 16; ++i) own += partial[threadIdx.x * (BLOCK / 16) + i];
    partial[threadIdx.x * (BLOCK / 16)] = own;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    float all = 0.0f;
    for (int i = 0; i < 16; ++i) all += partial[i * (BLOCK / 16)];
    sums[blockIdx.x] = all;
  }
}
