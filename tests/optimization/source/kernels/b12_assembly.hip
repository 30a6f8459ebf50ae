#include <hip/hip_runtime.h>

__global__ void assembled(const float* x, float* y, int n) {
  for (int i = 0; i < n; ++i) {
    float v;
    asm volatile("v_mov_b32 %0, %1" : "=v"(v) : "v"(x[i]));
    y[i] = v;
  }
  for (int i = 0; i < n; ++i) { __asm__("s_nop 0"); y[i] = 1.0f; }
  for (int i = 0; i < n; ++i) y[i] += 1.0f;
}
