#include <hip/hip_runtime.h>

#define BINS 256

// Adds to counts how often each bin is in values. A workgroup counts in local data share, then adds what it found.
__global__ void histogram(const int* values, unsigned* counts, int n) {
  __shared__ unsigned local[BINS];
  for (int bin = threadIdx.x; bin < BINS; bin += blockDim.x) {
    local[bin] = 0;
  }
  __syncthreads();
  int items = blockDim.x * gridDim.x;
  int each = n / items + (n % items != 0);
  int i = (blockIdx.x * blockDim.x + threadIdx.x) * each;
  int end = n - i < each ? n : i + each;
  for (; i < end; ++i) {
    atomicAdd(&local[values[i]], 1u);
  }
  __syncthreads();
  for (int bin = threadIdx.x; bin < BINS; bin += blockDim.x) {
    atomicAdd(&counts[bin], local[bin]);
  }
}
