#include <hip/hip_runtime.h>

__global__ void countdown(float* x, unsigned n) {
  for (unsigned i = n; i-- > 0;) x[i] += 1.0f;
  for (unsigned i = 8; i > 0; --i) x[i] += 1.0f;
  for (unsigned i = 7; i >= 0; --i) x[i] += 1.0f;
  unsigned left = n;
  while (left--) x[left] = 0.0f;
  while (left < n) { x[left] = 0.0f; left += 2; }
}
