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
  if (threadIdx.x >= 64) return;
  int lane = threadIdx.x;
  sum = (partial[lane] + partial[lane + 64]) + (partial[lane + 128] + partial[lane + 192]);
  for (int distance = 32; distance > 0; distance /= 2) {
    float other = 0.0f;
    for (int half = 0; half < (share > 0 ? 2 : 1); ++half) {
      if (((lane & distance) != 0) != (half != 0)) continue;
      other = __shfl(sum, lane ^ distance);
    }
    sum += other;
  }
  if (lane == 0) sums[blockIdx.x] = sum;
}
