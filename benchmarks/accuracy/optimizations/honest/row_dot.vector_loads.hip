#include <hip/hip_runtime.h>

// out[row] is the dot product of that row of a with b: one work-item a row.
__global__ void row_dot(const float* a, const float* b, float* out, int rows, int n) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  const float* u = a + (size_t)row * n;
  const float* v = b;
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  int i = 0;
  if (n % 4 == 0) {
    for (; i < n; i += 4) {
      float4 p = *(const float4*)(u + i);
      float4 q = *(const float4*)(v + i);
      sum.x += p.x * q.x;
      sum.y += p.y * q.y;
      sum.z += p.z * q.z;
      sum.w += p.w * q.w;
    }
  }
  for (; i < n; ++i) sum.x += u[i] * v[i];
  out[row] = (sum.x + sum.y) + (sum.z + sum.w);
}
