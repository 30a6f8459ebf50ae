#include <hip/hip_runtime.h>

// Each row of y is the softmax of that row of x: one work-item a row, in three passes.
__global__ void softmax(const float* x, float* y, int rows, int n) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  const float* in = x + (size_t)row * n;
  float* out = y + (size_t)row * n;
  float largest = in[0];
  for (int i = 1; i < n; ++i) {
    if (in[i] > largest) largest = in[i];
  }
  int lowest = 0;
  for (int i = 0; i < n; ++i) {
    int whole = (int)(in[i] - largest);
    lowest = whole < lowest ? whole : lowest;
  }
  bool plain = lowest > -80;
  float sum = 0.0f;
  for (int i = 0; i < n; ++i) {
    float d = in[i] - largest;
    out[i] = plain ? expf(d > -80.0f ? d : -80.0f) : expf(d);
    sum += out[i];
  }
  for (int i = 0; i < n; ++i) {
    out[i] = out[i] / sum;
  }
}
