#include <hip/hip_runtime.h>

template <typename T, int Width>
__device__ __forceinline__ T folded(const T* x) {
  T sum = T(0);
  for (int i = 0; i < Width; ++i) sum += x[i];
  return sum;
}

template <typename T>
__device__ T exchanged(T v) { return __shfl_down(v, 1); }

template <typename T, int Width, bool Last = (Width > 4)>
__global__ void __launch_bounds__(Width) templated(const T* x, T* y, int n) {
  for (int i = 0; i < n; ++i) y[i] = folded<T, Width>(x + i);
  for (int i = 0; i < n; ++i) y[i] = exchanged<T>(x[i]);
  for (int i = 0; i < Width; ++i) y[i] = static_cast<T>(x[i] * 2);
}
