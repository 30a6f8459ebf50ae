#include <hip/hip_runtime.h>

#define BLOCK 256

// sums[group] is the sum of the squares of the group's own `share` values of x.
__global__ void reduction(const float* x, float* sums, int n, int share) {
  __shared__ float partial[BLOCK];
  int first = blockIdx.x * share;
  int last = first + share < n ? first + share : n;
  int each = (share + BLOCK - 1) / BLOCK;
  int i = first + (int)threadIdx.x * each;
  int end = i + each < last ? i + each : last;
  float part[8] = {0.0f};
  for (; i + 8 <= end; i += 8) {
    for (int j = 0; j < 8; ++j) part[j] += x[i + j] * x[i + j];
  }
  float sum = 0.0f;
  for (; i < end; ++i) sum += x[i] * x[i];
  for (int j = 0; j < 8; ++j) sum += part[j];
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
