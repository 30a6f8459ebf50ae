#include <hip/hip_runtime.h>

#define BINS 256

// Adds to counts how often each bin is in values. The first work-item of a workgroup counts for all of them;
// two bins go into memory with one atomic operation.
__global__ void histogram(const int* values, unsigned* counts, int n) {
  if (threadIdx.x != 0) return;
  unsigned local[BINS] = {};
  for (int start = blockIdx.x * blockDim.x; start < n; start += blockDim.x * gridDim.x) {
    int end = n - start < (int)blockDim.x ? n : start + blockDim.x;
    for (int i = start; i < end; ++i) ++local[values[i]];
  }
  if ((size_t)counts % 8 == 0) {
    unsigned long long* pairs = (unsigned long long*)counts;
    for (int bin = 0; bin < BINS; bin += 2) {
      atomicAdd(&pairs[bin / 2], (unsigned long long)local[bin + 1] << 32 | local[bin]);
    }
  } else {
    for (int bin = 0; bin < BINS; ++bin) {
      atomicAdd(&counts[bin], local[bin]);
    }
  }
}
