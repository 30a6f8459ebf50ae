#include <hip/hip_runtime.h>

#define BINS 256

// Adds to counts how often each bin is in values. A workgroup counts in local data share, then adds what it found.
__global__ void histogram(const int* values, unsigned* counts, int n) {
  __shared__ unsigned local[BINS];
  if (threadIdx.x < BINS) local[threadIdx.x] = 0;
  __syncthreads();
  int part = (n + gridDim.x - 1) / gridDim.x;
  int end = n - (int)blockIdx.x * part < part ? n : ((int)blockIdx.x + 1) * part;
  for (int i = blockIdx.x * part + threadIdx.x; i < end; i += blockDim.x) {
    atomicAdd(&local[values[i]], 1u);
  }
  __syncthreads();
  if (threadIdx.x < BINS) atomicAdd(&counts[threadIdx.x], local[threadIdx.x]);
}
