#include <hip/hip_runtime.h>

#define BINS 256

// Adds to counts how often each bin is in values. Equal values in a row are added at once.
__global__ void histogram(const int* values, unsigned* counts, int n) {
  int now = 0;
  unsigned char run = 0;
  int stride = blockDim.x * gridDim.x;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
    int value = values[i];
    if (value != now) {
      if (run) atomicAdd(&counts[now], run);
      now = value;
      run = 0;
    }
    ++run;
  }
  if (run) atomicAdd(&counts[now], run);
}
