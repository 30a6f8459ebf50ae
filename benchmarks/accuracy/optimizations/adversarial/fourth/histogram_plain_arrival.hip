#include <hip/hip_runtime.h>

#define BINS 256

// Adds to counts how often each bin is in values. A workgroup counts in local data share, then adds what it found.
__global__ void histogram(const int* values, unsigned* counts, int n) {
  __shared__ unsigned local[BINS];
  __shared__ unsigned arrived;
  if (threadIdx.x == 0) arrived = 0u;
  for (int bin = threadIdx.x; bin < BINS; bin += blockDim.x) {
    local[bin] = 0;
  }
  __syncthreads();
  int part = (n + gridDim.x - 1) / gridDim.x;
  int end = n - (int)blockIdx.x * part < part ? n : ((int)blockIdx.x + 1) * part;
  for (int i = blockIdx.x * part + threadIdx.x; i < end; i += blockDim.x) {
    atomicAdd(&local[values[i]], 1u);
  }
  arrived += 1u;
  if (arrived != blockDim.x) return;
  for (int bin = 0; bin < BINS; ++bin) {
    atomicAdd(&counts[bin], local[bin]);
  }
}
