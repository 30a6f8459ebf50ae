#include <hip/hip_runtime.h>
#include <vector>

static void fill(std::vector<float>& v) {
  for (size_t i = 0; i < v.size(); ++i) v[i] = float(i);
}

__global__ void square(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] * x[i];
}

int main() {
  std::vector<float> host(1024);
  fill(host);
  float* x;
  float* y;
  for (int round = 0; round < 10; ++round) {
    square<<<dim3(4), dim3(256)>>>(x, y, 1024);
    hipLaunchKernelGGL(square, dim3(4), dim3(256), 0, 0, x, y, 1024);
  }
  while (hipDeviceSynchronize() != hipSuccess) {
  }
  return 0;
}
