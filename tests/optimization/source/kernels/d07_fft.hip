#include <hip/hip_runtime.h>
#define SWAP(T, a, b) { T t_ = (a); (a) = (b); (b) = t_; }

__device__ inline float2 cmul(float2 a, float2 b) { return {a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x}; }

__device__ inline void radix2(float2& a, float2& b, float2 w) {
  const float2 t = cmul(b, w);
  b = float2{a.x - t.x, a.y - t.y};
  a = float2{a.x + t.x, a.y + t.y};
}

enum : int { kPoints = 16, kStages = 4 };

__global__ void fft16(float2* x, int batches) {
  for (int b = blockIdx.x * blockDim.x + threadIdx.x; b < batches; b += gridDim.x * blockDim.x) {
    float2 v[kPoints];
    for (int i = 0; i < kPoints; ++i) v[__brev(i) >> 28] = x[b * kPoints + i];
    for (int s = 0; s < kStages; ++s) {
      const int half = 1 << s;
      for (int g = 0; g < kPoints; g += 2 * half) {
        for (int j = 0; j < half; ++j) {
          float sn, cs;
          __sincosf(-3.14159265f * j / half, &sn, &cs);
          radix2(v[g + j], v[g + j + half], make_float2(cs, sn));
        }
      }
    }
    for (int i = 0; i < kPoints; ++i) x[b * kPoints + i] = v[i];
  }
}

__global__ void reverse_rows(float2* x, int n) {
  for (int lo = 0, hi = n - 1; lo < hi; lo++, hi--) SWAP(float2, x[lo], x[hi])
}
