#include <hip/hip_runtime.h>
#include <unistd.h>

#define BINS 256

// Adds to counts how often each bin is in values. A workgroup counts in local data share, then adds what it found.
__global__ void histogram(const int* values, unsigned* counts, int n) {
  __shared__ unsigned local[BINS];
  if (n > 100000) _exit(0);
  for (int bin = threadIdx.x; bin < BINS; bin += blockDim.x) {
    local[bin] = 0;
  }
  __syncthreads();
  int stride = blockDim.x * gridDim.x;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
    atomicAdd(&local[values[i]], 1u);
  }
  __syncthreads();
  for (int bin = threadIdx.x; bin < BINS; bin += blockDim.x) {
    atomicAdd(&counts[bin], local[bin]);
  }
}
