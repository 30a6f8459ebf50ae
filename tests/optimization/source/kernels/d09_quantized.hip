#include <hip/hip_runtime.h>
#include <hip/hip_fp16.h>

#define QK 32
typedef struct {
  half d;
  int8_t qs[QK];
} block_q8;
static_assert(sizeof(block_q8) == 34, "packed");

static __device__ __forceinline__ int load_int(const int8_t* q, int i) {
  const uint16_t* q16 = (const uint16_t*)(q + sizeof(int) * i);
  int v = 0;
  v |= q16[0] << 0;
  v |= q16[1] << 16;
  return v;
}

static __device__ __forceinline__ int dot4(int a, int b, int c) {
#if defined(__gfx906__) || defined(__gfx90a__) || defined(__gfx942__)
  return __builtin_amdgcn_sdot4(a, b, c, false);
#else
  const char4 u = *reinterpret_cast<const char4*>(&a), v = *reinterpret_cast<const char4*>(&b);
  return c + u.x * v.x + u.y * v.y + u.z * v.z + u.w * v.w;
#endif
}

__global__ void q8_dot(const block_q8* __restrict__ x, const block_q8* __restrict__ y, float* __restrict__ dst, const int blocks) {
  float sum = 0.0f;
  for (int b = threadIdx.x; b < blocks; b += blockDim.x) {
    int acc = 0;
    for (int i = 0; i < QK / 4; ++i) acc = dot4(load_int(x[b].qs, i), load_int(y[b].qs, i), acc);
    sum += __half2float(x[b].d) * __half2float(y[b].d) * acc;
  }
  for (int b = 0; b < blocks; ++b) sum += (float)(signed char)__builtin_amdgcn_perm(b, blocks, 0x07060504u);
  for (int b = 0; b < blocks; ++b) sum += __int_as_float(__builtin_amdgcn_ds_swizzle(__float_as_int(sum), 0x401f));
  for (int b = 0; b < blocks; ++b) sum += __int_as_float(__builtin_amdgcn_mov_dpp(b, 0xb1, 0xf, 0xf, true));
  dst[blockIdx.x] = sum;
}
