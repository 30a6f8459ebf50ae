#include <hip/hip_runtime.h>

// out[row] is the dot product of that row of a with b: one work-item a row.
__global__ void row_dot(const float* a, const float* b, float* out, int rows, int n) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  const float* in = a + (size_t)row * n;
  if (n % 4 == 0) {
    const float4* left = (const float4*)in;
    const float4* right = (const float4*)b;
    float s0 = 0.0f, s1 = 0.0f, s2 = 0.0f, s3 = 0.0f;
    for (int i = 0; i < n / 4; ++i) {
      float4 p = left[i], q = right[i];
      s0 += p.x * q.x;
      s1 += p.y * q.y;
      s2 += p.z * q.z;
      s3 += p.w * q.w;
    }
    out[row] = (s0 + s1) + (s2 + s3);
    return;
  }
  float sum = 0.0f;
  for (int i = 0; i < n; ++i) sum += in[i] * b[i];
  out[row] = sum;
}
