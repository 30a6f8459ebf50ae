#include <hip/hip_runtime.h>

#define BINS 256

// One more in a bin.
__device__ void bump(unsigned& bin) { ++bin; }

// Adds to counts how often each bin is in values. The bins are few and stay in the caches.
__global__ void histogram(const int* values, unsigned* counts, int n) {
  int stride = blockDim.x * gridDim.x;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
    bump(counts[values[i]]);
  }
}
