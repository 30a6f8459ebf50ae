#include <hip/hip_runtime.h>
#include <hip/hip_fp16.h>

__global__ void halves(const __half* x, const half2* z, float* y, int n) {
  float sum = 0.0f;
  for (int i = threadIdx.x; i < n; i += blockDim.x) sum += __half2float(x[i]);
  half2 two = z[0];
  for (int i = 0; i < n; ++i) two = __hfma2(z[i], z[i], two);
  for (int i = 0; i < n; ++i) sum += (float)x[i] * std::numeric_limits<float>::epsilon();
  y[threadIdx.x] = sum + __low2float(two);
}
