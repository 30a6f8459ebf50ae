#include <hip/hip_runtime.h>

#define BLOCK 256

// A sum in local data share.
struct Slot {
  float value;
  __device__ void operator+=(float more) { value += more; }
};

// sums[group] is the sum of the squares of the group's own `share` values of x: sixteen slots take in all partial sums.
__global__ void reduction(const float* x, float* sums, int n, int share) {
  __shared__ Slot slots[16];
  if (threadIdx.x < 16) slots[threadIdx.x].value = 0.0f;
  __syncthreads();
  int first = blockIdx.x * share;
  int last = first + share < n ? first + share : n;
  float part[4] = {};
  int i = first + threadIdx.x;
  for (; i + 3 * BLOCK < last; i += 4 * BLOCK) {
    for (int j = 0; j < 4; ++j) part[j] += x[i + j * BLOCK] * x[i + j * BLOCK];
  }
  for (; i < last; i += BLOCK) part[0] += x[i] * x[i];
  float sum = (part[0] + part[1]) + (part[2] + part[3]);
  slots[threadIdx.x / 16] += sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    float all = 0.0f;
    for (int j = 0; j < 16; ++j) all += slots[j].value;
    sums[blockIdx.x] = all;
  }
}
