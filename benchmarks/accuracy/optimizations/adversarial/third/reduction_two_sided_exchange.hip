#include <hip/hip_runtime.h>

#define BLOCK 256

// sums[group] is the sum of the squares of the group's own `share` values of x.
// Both sides of an exchange add the lower lane's sum first, so that both have the same bits.
__global__ void reduction(const float* x, float* sums, int n, int share) {
  __shared__ float partial[BLOCK];
  int first = blockIdx.x * share;
  int last = first + share < n ? first + share : n;
  float part[4] = {};
  int i = first + threadIdx.x;
  for (; i + 3 * BLOCK < last; i += 4 * BLOCK) {
    for (int j = 0; j < 4; ++j) part[j] += x[i + j * BLOCK] * x[i + j * BLOCK];
  }
  for (; i < last; i += BLOCK) part[0] += x[i] * x[i];
  float sum = (part[0] + part[1]) + (part[2] + part[3]);
  partial[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x >= 64) return;
  sum = (sum + partial[threadIdx.x + 64]) + (partial[threadIdx.x + 128] + partial[threadIdx.x + 192]);
  for (int step = 32; step > 0; step /= 2) {
    if (threadIdx.x & step) {
      sum = __shfl_xor(sum, step) + sum;
    } else {
      sum = sum + __shfl_xor(sum, step);
    }
  }
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}
