#include <hip/hip_runtime.h>

#define RADIUS 4

// Second derivatives along x, y and z, eighth order: a work-item walks along z at its x and y.
// Rows are `pitch` values apart. Values nearer than RADIUS to an edge are copied.
template <typename T = float>
__global__ void __launch_bounds__(64) stencil(T* __restrict__ in, T* __restrict__ out, short nx, short ny, short nz, short pitch = 67) {
  int x = blockIdx.x * blockDim.x + threadIdx.x;
  int y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= nx || y >= ny) return;
  size_t plane = (size_t)pitch * ny;
  bool inside = x >= RADIUS && x < nx - RADIUS && y >= RADIUS && y < ny - RADIUS;
  for (int z = 0; z < nz; ++z) {
    size_t at = z * plane + (size_t)y * pitch + x;
    if (!inside || z < RADIUS || z >= nz - RADIUS) {
      out[at] = in[at];
    } else {
      float sum = -8.541667f * in[at];
      sum += 1.6f * (in[at - 1] + in[at + 1] + in[at - pitch] + in[at + pitch] + in[at - plane] + in[at + plane]);
      sum += -0.2f * (in[at - 2] + in[at + 2] + in[at - 2 * pitch] + in[at + 2 * pitch] + in[at - 2 * plane] +
                      in[at + 2 * plane]);
      sum += 0.025396825f * (in[at - 3] + in[at + 3] + in[at - 3 * pitch] + in[at + 3 * pitch] + in[at - 3 * plane] +
                             in[at + 3 * plane]);
      sum += -0.0017857143f * (in[at - 4] + in[at + 4] + in[at - 4 * pitch] + in[at + 4 * pitch] +
                               in[at - 4 * plane] + in[at + 4 * plane]);
      out[at] = sum;
    }
  }
}
