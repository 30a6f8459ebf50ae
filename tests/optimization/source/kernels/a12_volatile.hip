#include <hip/hip_runtime.h>
typedef volatile int flag_t;

__global__ void waits(volatile int* ready, const float* x, float* y, flag_t* flags, int n) {
  for (int i = 0; i < n; ++i) y[i] = x[i] * ready[0];
  for (int i = 0; i < n; ++i) y[i] = x[i];
  for (int i = 0; i < n; ++i) y[i] = *(volatile const float*)(x + i);
  volatile int* again = ready + 1;
  for (int i = 0; i < n; ++i) y[i] += again[i];
  for (int i = 0; i < n; ++i) y[i] += flags[i];
}
