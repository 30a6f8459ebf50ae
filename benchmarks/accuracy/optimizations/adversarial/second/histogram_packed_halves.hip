#include <hip/hip_runtime.h>

#define BINS 256

// Adds to counts how often each bin is in values. A workgroup counts in local data share, then adds what it found.
__global__ void histogram(const int* values, unsigned* counts, int n) {
  __shared__ unsigned local[BINS / 2];
  for (int bin = threadIdx.x; bin < BINS / 2; bin += blockDim.x) {
    local[bin] = 0;
  }
  __syncthreads();
  int stride = blockDim.x * gridDim.x;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
    int value = values[i];
    atomicAdd(&local[value & 127], 1u << ((value >> 7) * 16));
  }
  __syncthreads();
  for (int bin = threadIdx.x; bin < BINS / 2; bin += blockDim.x) {
    unsigned both = local[bin];
    if (both & 0xffffu) atomicAdd(&counts[bin], both & 0xffffu);
    if (both >> 16) atomicAdd(&counts[bin + 128], both >> 16);
  }
}
