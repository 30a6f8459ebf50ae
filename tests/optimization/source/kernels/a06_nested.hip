#include <hip/hip_runtime.h>

__global__ void stencil(const float* in, float* out, int width, int height) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x;
  for (int y = 0; y < height; ++y) {
    float sum = 0.0f;
    for (int dy = -1; dy <= 1; ++dy)
      for (int dx = -2; dx <= 2; ++dx)
        sum += in[(y + dy) * width + x + dx];
    out[y * width + x] = sum / 15.0f;
  }
  for (int y = 0; y < height; ++y)
    for (int k = 0; k < width; ++k)
      out[y * width + k] *= 0.5f;
}
