#include <hip/hip_runtime.h>

__global__ void disabled(const float* x, float* y, int n) {
#if 0
  for (int i = 0; i < n; ++i) { don't read me; __syncthreads(); }
#endif
  for (int i = 0; i < n; ++i) {
#if 0
    __syncthreads();
#else
    y[i] = x[i];
#endif
  }
#if 1
  for (int i = 0; i < n; ++i) y[i] += 1.0f;
#else
  for (int i = 0; i < n; ++i) atomicAdd(&y[i], 1.0f);
#endif
#ifdef USE_ATOMICS
  for (int i = 0; i < n; ++i) atomicAdd(&y[i], 2.0f);
#endif
}
