#include <hip/hip_runtime.h>

// Each row of y is the softmax of that row of x: one work-item a row, in three passes.
__global__ void softmax(const float* x, float* y, int rows, int n) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  const float* in = x + (size_t)row * n;
  float* out = y + (size_t)row * n;
  float largest = in[0];
  float m0 = largest, m1 = largest, m2 = largest, m3 = largest;
  int at = 0;
  for (; at + 4 <= n; at += 4) {
    m0 = in[at] > m0 ? in[at] : m0;
    m1 = in[at + 1] > m1 ? in[at + 1] : m1;
    m2 = in[at + 2] > m2 ? in[at + 2] : m2;
    m3 = in[at + 3] > m3 ? in[at + 3] : m3;
  }
  for (; at < n; ++at) m0 = in[at] > m0 ? in[at] : m0;
  m0 = m1 > m0 ? m1 : m0;
  m2 = m3 > m2 ? m3 : m2;
  largest = m2 > m0 ? m2 : m0;
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
