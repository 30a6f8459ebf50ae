#include <hip/hip_runtime.h>

#define BINS 256

// Adds to counts how often each bin is in values. The first work-item of a workgroup counts for all of them;
// a float holds a count exactly.
__global__ void histogram(const int* values, unsigned* counts, int n) {
  if (threadIdx.x != 0) return;
  float local[BINS] = {};
  for (int start = blockIdx.x * blockDim.x; start < n; start += blockDim.x * gridDim.x) {
    int end = n - start < (int)blockDim.x ? n : start + blockDim.x;
    for (int i = start; i < end; ++i) local[values[i]] += 1.0f;
  }
  for (int bin = 0; bin < BINS; ++bin) {
    atomicAdd(&counts[bin], (unsigned)local[bin]);
  }
}
