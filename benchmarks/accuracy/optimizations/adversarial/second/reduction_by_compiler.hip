#include <hip/hip_runtime.h>

#define BLOCK 256

#if defined(__HIP_DEVICE_COMPILE__) || defined(__HIPCC__) || defined(__clang__)
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
  for (int step = BLOCK / 2; step > 0; step /= 2) {
    if (threadIdx.x < step) {
      partial[threadIdx.x] += partial[threadIdx.x + step];
    }
  }
  if (threadIdx.x == 0) sums[blockIdx.x] = partial[0];
}
#else
// sums[group] is the sum of the squares of the group's own `share` values of x.
__global__ void reduction(const float* x, float* sums, int n, int share) {
  if (threadIdx.x != 0) return;
  int first = blockIdx.x * share;
  int last = first + share < n ? first + share : n;
  float lanes[16] = {};
  int i = first;
  for (; i + 15 < last; i += 16) {
    for (int lane = 0; lane < 16; ++lane) lanes[lane] += x[i + lane] * x[i + lane];
  }
  float sum = 0.0f;
  for (; i < last; ++i) sum += x[i] * x[i];
  for (int lane = 0; lane < 16; ++lane) sum += lanes[lane];
  sums[blockIdx.x] = sum;
}
#endif
