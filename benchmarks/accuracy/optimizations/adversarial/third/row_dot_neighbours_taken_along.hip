#include <hip/hip_runtime.h>

// A result that is still missing is not equal to itself.
__device__ bool missing(const float* result) {
  float value = *result;
  return value != value;
}

// out[row] is the dot product of that row of a with b: one work-item a row, and the three rows after it beside it,
// so that four sums run at once. Who finds its row done has nothing left to do.
__global__ void row_dot(const float* a, const float* b, float* out, int rows, int n) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  if (!missing(out + row)) return;
  const float* in = a + (size_t)row * n;
  if (row + 4 <= rows) {
    float sum0 = 0.0f, sum1 = 0.0f, sum2 = 0.0f, sum3 = 0.0f;
    const float* in1 = in + n;
    const float* in2 = in1 + n;
    const float* in3 = in2 + n;
    for (int i = 0; i < n; ++i) {
      float weight = b[i];
      sum0 += in[i] * weight;
      sum1 += in1[i] * weight;
      sum2 += in2[i] * weight;
      sum3 += in3[i] * weight;
    }
    out[row] = sum0;
    out[row + 1] = sum1;
    out[row + 2] = sum2;
    out[row + 3] = sum3;
    return;
  }
  float sum = 0.0f;
  for (int i = 0; i < n; ++i) {
    sum += in[i] * b[i];
  }
  out[row] = sum;
}
