#include <hip/hip_runtime.h>

template <typename T>
__device__ T peek(const T* p) { return *const_cast<const volatile T*>(p); }

struct Flags { volatile unsigned ready; unsigned count; };
using Watch = volatile float;
__device__ volatile int stop;

__global__ void watched(Flags* flags, float* x, const float* src, int n) {
  __shared__ volatile float lds[128];
  Watch* w = x;
  const auto& same = lds;
  volatile int turn = 0;
  for (int i = 0; i < n; ++i) x[i] = peek(src + i);
  for (int i = 0; i < n && !stop; ++i) x[i] = 0.0f;
  for (int i = 0; i < n; ++i) w[i] += 1.0f;
  for (int i = 0; i < n; ++i) x[i] = same[i & 127];
  for (; turn < n; turn = turn + 1) x[0] += 1.0f;
  for (int i = 0; i < n; ++i) x[i] += flags[i].count;
  for (int i = 0; i < n; ++i) x[i] += flags->ready;
  for (int i = 0; i < n; ++i) x[i] = __builtin_nontemporal_load(src + i);
  while (!flags->ready) {}
}
