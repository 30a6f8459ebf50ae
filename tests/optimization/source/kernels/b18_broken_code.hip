#include <hip/hip_runtime.h>

__global__ void broken(float* x, int n) {
  for (int i = 0; i < n; ++i) { x[i] = = 3; }
}

__global__ void whole(float* x, int n) {
  for (int i = 0; i < n; ++i) x[i] = 3;
}
