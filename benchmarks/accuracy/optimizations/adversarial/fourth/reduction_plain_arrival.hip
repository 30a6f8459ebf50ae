#include <hip/hip_runtime.h>

#define BLOCK 256

// sums[group] is the sum of the squares of the group's own `share` values of x.
__global__ void reduction(const float* x, float* sums, int n, int share) {
  __shared__ float partial[BLOCK];
  __shared__ unsigned arrived;
  if (threadIdx.x == 0) arrived = 0u;
  __syncthreads();
  int first = blockIdx.x * share;
  int last = first + share < n ? first + share : n;
  float sum = 0.0f;
  for (int i = first + threadIdx.x; i < last; i += BLOCK) {
    sum += x[i] * x[i];
  }
  partial[threadIdx.x] = sum;
  arrived += 1u;
  if (arrived == BLOCK) {
    float s0 = 0.0f, s1 = 0.0f, s2 = 0.0f, s3 = 0.0f;
    for (int i = 0; i < BLOCK; i += 4) {
      s0 += partial[i];
      s1 += partial[i + 1];
      s2 += partial[i + 2];
      s3 += partial[i + 3];
    }
    sums[blockIdx.x] = (s0 + s1) + (s2 + s3);
  }
}
