#include <hip/hip_runtime.h>

__global__ void local_type(float* x, int n) {
  struct Step {
    __device__ static void run(float* p) { for (int i = 0; i < 4; ++i) p[i] += 1.0f; __syncthreads(); }
    __device__ static float plus(float v) { return v + 1.0f; }
  };
  for (int i = 0; i < n; ++i) x[i] *= 2.0f;
  for (int i = 0; i < n; ++i) Step::run(x);
}
