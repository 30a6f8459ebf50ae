#include <hip/hip_runtime.h>

#define FENCE
#define CLAMP(v, lo, hi) (((v) < (lo)) ? (lo) : ((v) > (hi)) ? (hi) : (v))
#define FOR_EACH(i, n) for (int i = threadIdx.x; i < (n); i += blockDim.x)
#define UNROLL _Pragma("unroll")
#define REPEAT4(x) x x x x
#define CHECK(c)      \
  if (!(c)) {         \
    printf("%d\n", i); \
    return;           \
  }

__global__ void before(float* x, int n) {
  for (int i = 0; i < n; ++i) { x[i] = CLAMP(x[i], 0.0f, 1.0f); FENCE }
  for (int i = 0; i < n; ++i) { REPEAT4(x[i] *= 1.5f;) }
  for (int i = 0; i < n; ++i) { CHECK(x[i] >= 0.0f) x[i] = sqrtf(x[i]); }
  FOR_EACH(i, n) x[i] += 1.0f;
  UNROLL for (int i = 0; i < 16; ++i) x[i] += 2.0f;
}

#undef FENCE
#define FENCE __threadfence_block();

__global__ void after(float* x, int n) {
  for (int i = 0; i < n; ++i) { x[i] += 1.0f; FENCE }
#if defined(TRACE) && TRACE > 1
  for (int i = 0; i < n; ++i) printf("%f ", x[i]);
#endif
#pragma clang loop unroll(disable)
  for (int i = 0; i < n; ++i) x[i] += 3.0f;
#pragma nounroll
  while (n > 0) {
    n -= 2;
    x[n] = 0.0f;
  }
}
