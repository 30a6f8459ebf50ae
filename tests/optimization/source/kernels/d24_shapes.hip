#include <hip/hip_runtime.h>

constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
template <int N> struct Extent { static constexpr int value = N; };
static constexpr unsigned kShape[3] = {3, 5, 7};

struct Params {
  int strides[4];
  int rank;
};

__device__ int offset_of(const Params& p, const int* at) {
  int offset = 0;
  for (int d = 0; d < p.rank; ++d) offset += at[d] * p.strides[d];
  return offset;
}

template <typename F>
__device__ void grid_stride(int n, F f) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) f(i);
}

__global__ void shapes(const float* __restrict__ x, float* __restrict__ y, Params p, int n) {
  for (int i = 0; i < ceil_div(100, 8); ++i) y[i] = x[i];
  for (unsigned i = 0; i < kShape[1]; ++i) y[i] += x[i];
  for (int i = 0; i < Extent<6>::value; ++i) y[i] *= x[i];
  for (int i = 0; i < n; ++i) {
    int at[4] = {i, i / 2, i / 3, i / 4};
    y[offset_of(p, at)] = x[i];
  }
  for (int round = 0; round < p.rank; ++round) grid_stride(n, [&](int i) { y[i] += x[i]; });
  for (int round = 0; round < p.rank; ++round) grid_stride(n, [&](int i) { atomicMin((int*)&y[0], i); });
  for (int i = 0, *q = &p.rank; i < 4 && *q > i; ++i) y[i] = 0.0f;
  for (long i = n - 1; i >= 0; i -= 2)
    if (auto v = x[i]; v > 0)
      y[i] = v;
    else
      y[i] = -v;
  for (int i = 0; i < 3; ++i)
    for (int j = i; j < 3; ++j)
      for (int k = 0; k < 3; ++k) y[i * 9 + j * 3 + k] = x[k];
}
