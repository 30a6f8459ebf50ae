#include <hip/hip_runtime.h>

__global__ void lambdas(const float* x, float* y, int n) {
  auto triple = [](float v) { return v * 3.0f; };
  auto spread = [&](float v) { return __shfl_xor(v, 1); };
  auto total = [&](int from) {
    float sum = 0.0f;
    for (int i = from; i < n; ++i) sum += x[i];
    return sum;
  };
  for (int i = 0; i < n; ++i) y[i] = triple(x[i]);
  for (int i = 0; i < n; ++i) y[i] = spread(x[i]);
  for (int i = 0; i < n; ++i) y[i] = total(i);
  for (int i = 0; i < n; ++i) y[i] = [](float v) { return v + 1.0f; }(x[i]);
}
