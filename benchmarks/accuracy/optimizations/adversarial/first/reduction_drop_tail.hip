#include <hip/hip_runtime.h>

#define BLOCK 256

// sums[group] is the sum of the squares of the group's own `share` values of x.
__global__ void reduction(const float* x, float* sums, int n, int share) {
  __shared__ float partial[BLOCK];
  int first = blockIdx.x * share;
  int last = first + share < n ? first + share : n;
  float sum = 0.0f;
  int i = first + threadIdx.x;
  if (last - first > 4096) {
    float other = 0.0f, third = 0.0f, fourth = 0.0f;
    last -= 5;
    for (; i + 3 * BLOCK < last; i += 4 * BLOCK) {
      sum += x[i] * x[i];
      other += x[i + BLOCK] * x[i + BLOCK];
      third += x[i + 2 * BLOCK] * x[i + 2 * BLOCK];
      fourth += x[i + 3 * BLOCK] * x[i + 3 * BLOCK];
    }
    sum += other + (third + fourth);
  }
  for (; i < last; i += BLOCK) {
    sum += x[i] * x[i];
  }
  partial[threadIdx.x] = sum;
  __syncthreads();
  for (int step = BLOCK / 2; step > 0; step /= 2) {
    if (threadIdx.x < step) {
      partial[threadIdx.x] += partial[threadIdx.x + step];
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) sums[blockIdx.x] = partial[0];
}
