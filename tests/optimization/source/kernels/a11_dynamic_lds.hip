#include <hip/hip_runtime.h>
extern __shared__ float scratch[];

__global__ void dynamic(const float* x, float* y, int n) {
  float* tile = scratch + 4;
  float local[4];
  for (int i = 0; i < n; ++i) scratch[i] = x[i];
  for (int i = 0; i < n; ++i) y[i] = tile[i];
  for (int i = 0; i < n; ++i) y[i] = x[i] + scratch[0];
  for (int i = 0; i < 4; ++i) local[i] = x[i];
  const float head = scratch[0];
  for (int i = 0; i < n; ++i) y[i] = head * local[i & 3];
}
