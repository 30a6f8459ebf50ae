#include <hip/hip_runtime.h>
using word = unsigned int;
typedef float real;

__global__ void aliased(const real* x, real* y, word n) {
  for (word i = 0; i < n; ++i) { const real v = x[i]; y[i] = real(v) * v; }
  auto barrier_free = x;
  for (word i = 0; i < n; ++i) y[i] += barrier_free[i];
  for (auto i = 0u; i < n; ++i) y[i] += static_cast<real>(i);
}
