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
  float sum = 0.0f;
  int i = 0;
  for (; i + 16 <= n; i += 16) {
    float top = in[i];
    for (int j = 1; j < 16; ++j) top = in[i + j] > top ? in[i + j] : top;
    float part = 0.0f;
    for (int j = 0; j < 16; ++j) {
      out[i + j] = expf(in[i + j] - top);
      part += out[i + j];
    }
    float scale = expf(top - largest);
    sum += part * scale;
    for (int j = 0; j < 16; ++j) out[i + j] *= scale;
  }
  for (; i < n; ++i) {
    out[i] = expf(in[i] - largest);
    sum += out[i];
  }
  for (i = 0; i < n; ++i) {
    out[i] /= sum;
  }
}
