#include <hip/hip_runtime.h>

__global__ void two(const float* x, float* y, int n) {
  for (int i = 0, j = n - 1; i < j; ++i, --j) y[i] = x[j];
  const float* p = x;
  for (int i = 0; i < n; i++, p++) y[i] = *p;
  int done[1] = {0};
  for (int i = 0; i < n; i++, done[0]++) y[i] += 1.0f;
  int found;
  for (int i = 0; (found = x[i] > 0) && i < n; ++i) y[i] = found;
}
