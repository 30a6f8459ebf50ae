#include <hip/hip_runtime.h>

// One name, several bodies: which of them a call means is for the compiler to say.
__device__ inline void accumulate(double* to, double v) { atomicAdd(to, v); }
__device__ inline void accumulate(float& to, float v) { to += v; }

template <typename T>
__device__ T rotate(T v) { return v + T(1); }
template <>
__device__ float rotate<float>(float v) { return __shfl(v, (threadIdx.x + 1) & 63); }

template <bool kShared>
__device__ void visit(float* x, int i) {
  if constexpr (kShared) {
    __syncthreads();
  } else {
    x[i] *= 2.0f;
  }
}

struct Base {
  float v;
  __device__ float get() const { return __int_as_float(__builtin_amdgcn_readlane(__float_as_int(v), 0)); }
  __device__ virtual float weight() const { return 1.0f; }
};
struct Derived : Base {
  __device__ float twice() const { return 2.0f * v; }
};

__device__ float shifted(float v, float other = __shfl_down(1.0f, 1)) { return v + other; }

__global__ void chosen(double* total, float* x, Derived item, const Base* some, int n) {
  for (int i = 0; i < n; ++i) accumulate(total, (double)x[i]);
  for (int i = 0; i < n; ++i) x[i] = rotate<float>(x[i]);
  for (int i = 0; i < n; ++i) x[i] = rotate(x[i]);
  for (int i = 0; i < n; ++i) visit<true>(x, i);
  for (int i = 0; i < n; ++i) x[i] = item.get();
  for (int i = 0; i < n; ++i) x[i] = item.twice();
  for (int i = 0; i < n; ++i) x[i] = some->weight();
  for (int i = 0; i < n; ++i) x[i] = shifted(x[i]);
  for (int i = 0; i < n; ++i) x[i] = fminf(fmaxf(x[i], -1.0f), 1.0f);
}
