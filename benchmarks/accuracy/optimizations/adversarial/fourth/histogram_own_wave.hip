#include <hip/hip_runtime.h>

#define BINS 256

// Adds to counts how often each bin is in values. A workgroup counts in local data share, then adds what it found.
__global__ void histogram(const int* values, unsigned* counts, int n) {
  __shared__ unsigned local[16][BINS];
  for (int bin = threadIdx.x; bin < BINS; bin += blockDim.x) {
    for (int wave = 0; wave < 16; ++wave) local[wave][bin] = 0;
  }
  __syncthreads();
  unsigned* mine = local[threadIdx.x / 64];
  int part = (n + gridDim.x - 1) / gridDim.x;
  int end = n - (int)blockIdx.x * part < part ? n : ((int)blockIdx.x + 1) * part;
  for (int i = blockIdx.x * part + threadIdx.x; i < end; i += blockDim.x) {
    mine[values[i]] += 1u;
  }
  __syncthreads();
  for (int bin = threadIdx.x; bin < BINS; bin += blockDim.x) {
    unsigned total = 0;
    for (int wave = 0; wave < 16; ++wave) total += local[wave][bin];
    if (total != 0) atomicAdd(&counts[bin], total);
  }
}
