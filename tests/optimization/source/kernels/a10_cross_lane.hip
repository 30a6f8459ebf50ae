#include <hip/hip_runtime.h>

__global__ void wavefront(const float* x, float* y, int n) {
  float v = x[threadIdx.x];
  for (int offset = warpSize / 2; offset > 0; offset /= 2) v += __shfl_down(v, offset);
  for (int i = 0; i < n; ++i) if (__any(x[i] > v)) y[i] = 1.0f;
  for (int i = 0; i < n; ++i) y[i] = __popcll(__ballot(x[i] > 0));
  for (int i = 0; i < n; ++i) y[i] = __int_as_float(__builtin_amdgcn_readfirstlane(__float_as_int(x[i])));
  for (int i = 0; i < n; ++i) y[i] = __int_as_float(__builtin_amdgcn_update_dpp(0, __float_as_int(x[i]), 0x111, 0xf, 0xf, false));
  for (int i = 0; i < n; ++i) y[i] = __builtin_amdgcn_rcpf(x[i]);
  for (int i = 0; i < n; ++i) y[i] = __popc(__float_as_uint(x[i]));
}
