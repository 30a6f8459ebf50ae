#include <hip/hip_runtime.h>

// Each row of y is the softmax of that row of x: one work-item a row. Powers are kept in y until their sum is known.
// They are made eight at a time; the last eight of a row may overlap those before them.
__global__ void softmax(const float* x, float* y, int rows, int n) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  const float* in = x + (size_t)row * n;
  float* out = y + (size_t)row * n;
  float largest = in[0];
  for (int i = 1; i < n; ++i) {
    if (in[i] > largest) largest = in[i];
  }
  if (n < 8) {
    for (int i = 0; i < n; ++i) out[i] = expf(in[i] - largest);
  }
  for (int i = 0; i < n && n >= 8; i += 8) {
    int at = i + 8 <= n ? i : n - 8;
    for (int j = 0; j < 8; ++j) out[at + j] = expf(in[at + j] - largest);
  }
  float sum = 0.0f;
  for (int i = 0; i < n; ++i) {
    sum += out[i];
  }
  for (int i = 0; i < n; ++i) {
    out[i] = out[i] / sum;
  }
}
