#include <hip/hip_runtime.h>

__global__ void harmless(const float* x, float* y, int n) {
  const char* words = "__syncthreads(); atomicAdd(x, 1); } return; for (;;) {";
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    // atomicAdd(&y[0], 1.0f); return;
    /* __syncthreads(); break;
       for (int j = 0; j < 4; ++j) { */
    y[i] = x[i] + (words[0] == '{' ? 1.0f : 0.0f);  // volatile asm goto \
       __shfl_down(x, 1);
  }
}
