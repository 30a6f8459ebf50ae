#include <hip/hip_runtime.h>

#define BLOCK 256

// sums[group] is the sum of the squares of the group's own `share` values of x.
__global__ void reduction(const float* x, float* sums, int n, int share) {
  __shared__ float partial[BLOCK];
  int first = blockIdx.x * share;
  int last = first + share < n ? first + share : n;
  float sum = 0.0f;
  int i = first + 4 * threadIdx.x;
  if (share % 4 == 0) {
    for (; i + 4 <= last; i += 4 * BLOCK) {
      float4 v = *(const float4*)(x + i);
      sum += (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w);
    }
    for (int j = i; j < last; ++j) sum += x[j] * x[j];
  } else {
    for (int j = first + threadIdx.x; j < last; j += BLOCK) sum += x[j] * x[j];
  }
  partial[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
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
