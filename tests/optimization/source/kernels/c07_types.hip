#include <hip/hip_runtime.h>
struct Complex { float re, im; __device__ Complex operator*(Complex o) const { return {re * o.re - im * o.im, re * o.im + im * o.re}; } };
template <class T> struct Sum { T value{}; __device__ void operator()(T v) { value += v; } };
__global__ void typed(const Complex* x, Complex* y, const int4* z, int n) {
  Complex product{1, 0};
  for (int i = 0; i < n; ++i) product = product * x[i];
  Sum<float> sum;
  for (int i = 0; i < n; ++i) sum(x[i].re);
  int total = 0;
  for (int i = 0; i < n; ++i) { const int4 v = z[i]; total += v.x + v.y; total += __builtin_popcount(v.z); }
  *y = product;
}
