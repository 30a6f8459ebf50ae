#include <hip/hip_runtime.h>

#define BINS 256

// Adds to counts how often each bin is in values. A workgroup counts in local data share, then adds what it found.
__global__ void histogram(const int* values, unsigned* counts, int n) {
  __shared__ unsigned local[BINS];
  for (int bin = threadIdx.x; bin < BINS; bin += blockDim.x) {
    local[bin] = 0;
  }
  __syncthreads();
  int stride = 4 * blockDim.x * gridDim.x;
  int i = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
  for (; i < n - 3; i += stride) {
    int4 four = *(const int4*)(values + i);
    atomicAdd(&local[four.x], 1u);
    atomicAdd(&local[four.y], 1u);
    atomicAdd(&local[four.z], 1u);
    atomicAdd(&local[four.w], 1u);
  }
  for (; i < n; ++i) {
    atomicAdd(&local[values[i]], 1u);
  }
  __syncthreads();
  for (int bin = threadIdx.x; bin < BINS; bin += blockDim.x) {
    atomicAdd(&counts[bin], local[bin]);
  }
}
