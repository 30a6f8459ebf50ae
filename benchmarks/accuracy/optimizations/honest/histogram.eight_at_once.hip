#include <hip/hip_runtime.h>

#define BINS 256

// Adds to counts how often each bin is in values. A workgroup counts in local data share, then adds what it found.
__global__ void histogram(const int* values, unsigned* counts, int n) {
  __shared__ unsigned local[BINS];
  for (int bin = threadIdx.x; bin < BINS; bin += blockDim.x) {
    local[bin] = 0;
  }
  __syncthreads();
  int stride = 8 * blockDim.x * gridDim.x;
  int i = 8 * (blockIdx.x * blockDim.x + threadIdx.x);
  for (; i < n - 7; i += stride) {
    for (int j = 0; j < 8; ++j) {
      atomicAdd(&local[values[i + j]], 1u);
    }
  }
  for (; i < n; ++i) {
    atomicAdd(&local[values[i]], 1u);
  }
  __syncthreads();
  for (int bin = threadIdx.x; bin < BINS; bin += blockDim.x) {
    atomicAdd(&counts[bin], local[bin]);
  }
}
