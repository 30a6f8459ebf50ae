#include <hip/hip_runtime.h>

__global__ void halve(float* x, int n) {
  int i = threadIdx.x;
  do {
    x[i] *= 0.5f;
    i += blockDim.x;
  } while (i < n);
  do {
    x[0] += 1.0f;
  } while (0);
  int left = n;
  do x[left] = 0.0f; while (--left > 0);
}
