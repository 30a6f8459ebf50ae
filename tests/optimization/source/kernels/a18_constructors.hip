#include <hip/hip_runtime.h>

struct Guard {
  int* at;
  __device__ explicit Guard(int* to) : at(to) { atomicAdd(at, 1); }
  __device__ ~Guard() { atomicSub(at, 1); }
};
struct Pair { float a, b; };

__global__ void constructed(int* x, float* y, int n) {
  for (int i = 0; i < n; ++i) { Guard guard(x); y[i] = 1.0f; }
  for (int i = 0; i < n; ++i) { Pair pair{y[i], 2.0f}; y[i] = pair.a * pair.b; }
  for (int i = 0; i < n; ++i) { float v(y[i]); y[i] = v + 1.0f; }
}
