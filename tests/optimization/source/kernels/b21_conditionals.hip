#include <hip/hip_runtime.h>
#ifndef BLOCK
#define BLOCK 64
#endif
#ifdef __HIP_PLATFORM_AMD__
#define LANES 64
#else
#define LANES 32
#endif

__global__ void conditional(float* x, int n) {
  for (int i = 0; i < n; ++i) {
#ifdef DEBUG
    __syncthreads();
#endif
    x[i] = 1.0f;
  }
  for (int i = 0; i < n; ++i) {
#if BLOCK > 32
    x[i] = 2.0f;
#else
    x[i] = 3.0f;
#endif
  }
  for (int i = 0; i < BLOCK; ++i) x[i] = 4.0f;
  for (int i = 0; i < LANES; ++i) x[i] = 5.0f;
}
