#include <hip/hip_runtime.h>
typedef float floatx4 __attribute__((ext_vector_type(4)));

__global__ void mfma(const float* a, const float* b, float* c, int n) {
  floatx4 sum = {0, 0, 0, 0};
  for (int k = 0; k < n; k += 4)
    sum = __builtin_amdgcn_mfma_f32_16x16x4f32(a[k + threadIdx.x], b[k + threadIdx.x], sum, 0, 0, 0);
  for (int k = 0; k < n; ++k) sum += a[k] * b[k];
  for (int i = 0; i < 4; ++i) c[threadIdx.x * 4 + i] = sum[i];
  for (int k = 0; k < n; ++k) { c[k] = a[k]; __builtin_amdgcn_s_barrier(); }
  for (int k = 0; k < n; ++k) { c[k] += b[k]; __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup"); }
}
