#include <hip/hip_runtime.h>
__global__ void walk(const float* p, float* q, const float* end) {
  while (p < end) *q++ = *p++ * 2.0f;
  for (const float* r = p; r != end; ++r) *q += *r;
  for (; p != end; p += 4) { q[0] = p[0]; q[1] = p[1]; }
  do { *q = 0.0f; ++q; } while (q[0] != 0.0f);
}
