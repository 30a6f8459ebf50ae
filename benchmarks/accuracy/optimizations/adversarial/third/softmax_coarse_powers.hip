#include <hip/hip_runtime.h>

// e to the power of something not above zero: a power of two times a polynomial.
__device__ float power_of(float below) {
  float shifted = below * 1.44269504f + 12582912.0f;
  float twos = shifted - 12582912.0f;
  float rest = below - twos * 0.693147182f;
  float power = 0.00138888889f;
  power = power * rest + 0.00833333333f;
  power = power * rest + 0.0416666667f;
  power = power * rest + 0.166666667f;
  power = power * rest + 0.5f;
  power = power * rest + 1.0f;
  power = power * rest + 1.0f;
  float scale = __uint_as_float((__float_as_uint(shifted) + 127u) << 23);
  return below < -87.0f ? 0.0f : power * scale;
}

// Each row of y is the softmax of that row of x: one work-item a row. Powers are kept in y until their sum is known.
__global__ void softmax(const float* x, float* y, int rows, int n) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  const float* in = x + (size_t)row * n;
  float* out = y + (size_t)row * n;
  float largest = in[0];
  for (int i = 1; i < n; ++i) {
    largest = in[i] > largest ? in[i] : largest;
  }
  for (int i = 0; i < n; ++i) {
    out[i] = power_of(in[i] - largest);
  }
  float sum = 0.0f;
  for (int i = 0; i < n; ++i) {
    sum += out[i];
  }
  for (int i = 0; i < n; ++i) {
    out[i] = out[i] / sum;
  }
}
