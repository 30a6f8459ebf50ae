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
  if (threadIdx.x == BLOCK - 1) {
    float total = 0.0f;
    for (int item = 0; item < BLOCK; ++item) total += partial[item];
    sums[blockIdx.x] = total;
  }
}
