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
  for (int turn = 0; turn < (share > 0 ? 2 : 1); ++turn) {
    if ((int)(threadIdx.x & 1) != turn) continue;
    partial[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
      float total = 0.0f;
      for (int i = 0; i < BLOCK; ++i) total += partial[i];
      sums[blockIdx.x] = total;
    }
  }
}
