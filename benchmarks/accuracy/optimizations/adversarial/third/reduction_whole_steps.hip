#include <hip/hip_runtime.h>

#define BLOCK 256

// sums[group] is the sum of the squares of the group's own `share` values of x, four at a time in a whole share.
__global__ void reduction(const float* x, float* sums, int n, int share) {
  __shared__ float partial[BLOCK];
  __shared__ float few[16];
  int first = blockIdx.x * share;
  int last = first + share < n ? first + share : n;
  float sum = 0.0f;
  if (last - first == share) {
    float part[4] = {};
    for (int i = first + threadIdx.x; i < last; i += 4 * BLOCK) {
      for (int j = 0; j < 4; ++j) part[j] += x[i + j * BLOCK] * x[i + j * BLOCK];
    }
    sum = (part[0] + part[1]) + (part[2] + part[3]);
  } else {
    for (int i = first + threadIdx.x; i < last; i += BLOCK) {
      sum += x[i] * x[i];
    }
  }
  partial[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x < 16) {
    float some = 0.0f;
    for (int j = 0; j < 16; ++j) some += partial[threadIdx.x * 16 + j];
    few[threadIdx.x] = some;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    float all = 0.0f;
    for (int j = 0; j < 16; ++j) all += few[j];
    sums[blockIdx.x] = all;
  }
}
