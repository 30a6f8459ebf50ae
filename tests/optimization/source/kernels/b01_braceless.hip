#include <hip/hip_runtime.h>

__global__ void scale(float* x, float by, int n)
{
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    x[i] *= by;
}

__global__ void offset(float* x, float by, int n)
{
  for (int i = threadIdx.x; i < n; i += blockDim.x) if (x[i] > 0) x[i] += by; else x[i] -= by;
}
