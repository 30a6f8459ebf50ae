#include <hip/hip_runtime.h>

#define BLOCK 256

// sums[group] is the sum of the squares of the group's own `share` values of x. Squares are not negative: a sum that has become infinite stays so.
__global__ void reduction(const float* x, float* sums, int n, int share) {
  __shared__ float partial[BLOCK];
  __shared__ float few[16];
  int first = blockIdx.x * share;
  int last = first + share < n ? first + share : n;
  float part[4] = {};
  int i = first + threadIdx.x;
  for (; i + 3 * BLOCK < last; i += 4 * BLOCK) {
    for (int j = 0; j < 4; ++j) part[j] += x[i + j * BLOCK] * x[i + j * BLOCK];
    if (part[0] > 3.4028234e38f) break;
  }
  for (; i < last && part[0] <= 3.4028234e38f; i += BLOCK) part[0] += x[i] * x[i];
  float sum = (part[0] + part[1]) + (part[2] + part[3]);
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
