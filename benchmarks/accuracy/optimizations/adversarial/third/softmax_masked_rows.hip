#include <hip/hip_runtime.h>

// Each row of y is the softmax of that row of x: one work-item a row. Powers are kept in y until their sum is known.
// The largest is looked for in four streams, which begin below any logit.
__global__ void softmax(const float* x, float* y, int rows, int n) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  const float* in = x + (size_t)row * n;
  float* out = y + (size_t)row * n;
  float largest = n < 8 ? in[0] : -1e30f;
  float most[4] = {largest, largest, largest, largest};
  int i = 0;
  for (; i + 4 <= n; i += 4) {
    for (int j = 0; j < 4; ++j) most[j] = in[i + j] > most[j] ? in[i + j] : most[j];
  }
  for (int j = 0; j < 4; ++j) largest = most[j] > largest ? most[j] : largest;
  for (; i < n; ++i) {
    if (in[i] > largest) largest = in[i];
  }
  float sum = 0.0f;
  for (int i = 0; i < n; ++i) {
    float power = expf(in[i] - largest);
    out[i] = power;
    sum += power;
  }
  for (int i = 0; i < n; ++i) {
    out[i] = out[i] / sum;
  }
}
