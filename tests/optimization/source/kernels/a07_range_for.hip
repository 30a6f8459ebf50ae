#include <hip/hip_runtime.h>

template <typename Container>
__device__ float all_of(const Container& values) {
  float sum = 0.0f;
  for (float value : values) sum += value;
  return sum;
}

struct Rows {
  float* first;
  __device__ float* begin() const;
  __device__ float* end() const;
};

__global__ void ranges(const float* x, float* y, Rows rows) {
  float taps[5] = {1, 4, 6, 4, 1};
  float sum = 0.0f;
  for (float tap : taps) sum += tap * x[threadIdx.x];
  for (float row : rows) sum += row;
  for (int lane : {0, 1, 2}) sum += x[lane];
  y[threadIdx.x] = sum;
}
