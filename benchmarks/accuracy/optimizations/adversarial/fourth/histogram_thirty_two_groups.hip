#include <hip/hip_runtime.h>

#define BINS 256

// Adds to counts how often each bin is in values. A workgroup counts in local data share, then adds what it found.
__global__ void histogram(const int* values, unsigned* counts, int n) {
  __shared__ unsigned local[BINS];
  for (int bin = threadIdx.x; bin < BINS; bin += blockDim.x) {
    local[bin] = 0;
  }
  __syncthreads();
  int part = n <= 32 * 256 ? 256 : (n + 31) / 32;
  int end = n - (int)blockIdx.x * part < part ? n : ((int)blockIdx.x + 1) * part;
  for (int i = blockIdx.x * part + threadIdx.x; i < end; i += blockDim.x) {
    atomicAdd(&local[values[i]], 1u);
  }
  __syncthreads();
  for (int bin = threadIdx.x; bin < BINS; bin += blockDim.x) {
    atomicAdd(&counts[bin], local[bin]);
  }
}
