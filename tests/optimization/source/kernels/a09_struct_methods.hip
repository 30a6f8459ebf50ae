#include <hip/hip_runtime.h>

struct Accumulator {
  float sum = 0.0f;
  __device__ void add(float v) { sum += v; }
  __device__ void share() { sum += __shfl_xor(sum, 1, 64); }
};

__global__ void methods(const float* x, float* y, int n) {
  Accumulator first;
  for (int i = 0; i < n; ++i) first.add(x[i]);
  for (int i = 0; i < n; ++i) first.share();
  Accumulator* pointer = &first;
  for (int i = 0; i < n; ++i) pointer->share();
  y[0] = first.sum;
}
