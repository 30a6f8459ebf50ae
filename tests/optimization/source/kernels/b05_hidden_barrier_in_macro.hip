#include <hip/hip_runtime.h>
#define SYNC() __syncthreads()
#define STAGE(t, v) do { (t)[threadIdx.x] = (v); SYNC(); } while (0)
#define MADD(s, a, b) do { (s) += (a) * (b); } while (0)
#define WIDTH 256

__global__ void staged(const float* x, float* y, int n) {
  __shared__ float tile[WIDTH];
  float sum = 0.0f;
  for (int i = 0; i < n; i += WIDTH) {
    STAGE(tile, x[i + threadIdx.x]);
    sum += tile[WIDTH - 1 - threadIdx.x];
  }
  for (int i = 0; i < n; ++i) MADD(sum, x[i], x[i]);
  for (int i = 0; i < n; ++i) {
    if (x[i] < 0) LEAVE;
    sum += x[i];
  }
  y[threadIdx.x] = sum;
}
