#include <hip/hip_runtime.h>
#include <type_traits>

typedef _Float16 half8 __attribute__((ext_vector_type(8)));
typedef float float16v __attribute__((ext_vector_type(16)));
template <class T, int... Is> struct Seq {};

template <typename... Ts>
__device__ float sum_of(Ts... v) { return (0.0f + ... + v); }

__device__ float horner(const float (&c)[6], float x) {
  float y = 0;
  for (float k : c) y = y * x + k;
  return y;
}

__global__ void builtins(const half8* a, const half8* b, float* x, unsigned* u, int n) {
  const float taps[] = {0.25f, 0.5f, 0.25f};
  const float poly[6] = {1, 2, 3, 4, 5, 6};
  float16v acc = {};
  for (int k = 0; k < n; ++k) acc = __builtin_amdgcn_mfma_f32_32x32x16_f16(a[k], b[k], acc, 0, 0, 0);
  for (int i = 0; i < n; ++i) u[i] = __clz(u[i]) + __ffs(u[i]) + __builtin_ctz(u[i] | 1u);
  for (int i = 0; i < n; ++i) x[i] = __builtin_amdgcn_fmed3f(x[i], 0.0f, 6.0f);
  for (int i = 0; i < n; ++i) { x[i] += 1.0f; __builtin_amdgcn_s_waitcnt(0); }
  for (int i = 0; i < n; ++i) { x[i] += 1.0f; __builtin_amdgcn_sched_barrier(0); }
  for (int i = 0; i < n; ++i) x[i] = sum_of(x[i], 1.0f, 2.0f);
  for (float tap : taps) x[0] += tap;
  for (int i = 0; i < n; ++i) x[i] = horner(poly, x[i]);
  for (int i = 0; i < n; ++i) u[i] = __reduce_add_sync(0xffffffffu, u[i]);
  for (int i = 0; i < n; ++i) { float* p = new float(x[i]); x[i] = *p; delete p; }
  for (int i = 0; i < n; ++i) u[i] = __builtin_amdgcn_mbcnt_lo(~0u, u[i]);
  for (int i = 0; i < n; ++i) u[i] = clock64();
}
