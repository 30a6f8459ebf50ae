#include <hip/hip_runtime.h>

__device__ void deepest(int* x) { atomicMax(x, 1); }
__device__ void middle(int* x) { deepest(x); }
__device__ void top(int* x) { middle(x); }
__device__ int recursive(int v) { return v < 2 ? 1 : v * recursive(v - 1); }

__global__ void deep(int* x, int n) {
  for (int i = 0; i < n; ++i) top(x + i);
  for (int i = 0; i < n; ++i) x[i] = recursive(x[i]);
}
