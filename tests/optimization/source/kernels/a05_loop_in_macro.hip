#include <hip/hip_runtime.h>
#define EACH(i, n) for (int i = threadIdx.x; i < (n); i += blockDim.x)
#define SQUARE(v) ((v) * (v))

__global__ void macro_loop(float* x, int n) {
  for (int i = 0; i < n; ++i) x[i] = SQUARE(x[i]);
}

__global__ void macro_inside(float* x, int n) {
  for (int k = 0; k < n; ++k) {
    EACH(i, n) { x[i] += 1.0f; }
  }
}
