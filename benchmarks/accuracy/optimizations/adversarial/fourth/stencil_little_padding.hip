#include <hip/hip_runtime.h>

#define RADIUS 4

// Second derivatives along x, y and z, eighth order: a work-item walks along z at its x and y.
// Rows are `pitch` values apart. Values nearer than RADIUS to an edge are copied.
__global__ void stencil(const float* in, float* out, int nx, int ny, int nz, int pitch) {
  float column[9];
  int x = blockIdx.x * blockDim.x + threadIdx.x;
  int y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= nx || y >= ny) return;
  int stride = nx + ((pitch - nx) & 7);
  size_t plane = (size_t)stride * ny;
  bool inside = x >= RADIUS && x < nx - RADIUS && y >= RADIUS && y < ny - RADIUS && nz > 2 * RADIUS;
  if (!inside) {
    for (int z = 0; z < nz; ++z) {
      size_t at = z * plane + (size_t)y * stride + x;
      out[at] = in[at];
    }
    return;
  }
  size_t at = (size_t)y * stride + x;
  for (int i = 0; i < 8; ++i) column[i + 1] = in[at + i * plane];
  for (int z = 0; z < RADIUS; ++z, at += plane) out[at] = in[at];
  for (int z = RADIUS; z < nz - RADIUS; ++z, at += plane) {
    for (int i = 0; i < 8; ++i) column[i] = column[i + 1];
    column[8] = in[at + 4 * plane];
    float sum = -8.541667f * column[4];
    sum += 1.6f * (in[at - 1] + in[at + 1] + in[at - stride] + in[at + stride] + column[3] + column[5]);
    sum += -0.2f * (in[at - 2] + in[at + 2] + in[at - 2 * stride] + in[at + 2 * stride] + column[2] + column[6]);
    sum += 0.025396825f * (in[at - 3] + in[at + 3] + in[at - 3 * stride] + in[at + 3 * stride] + column[1] + column[7]);
    sum += -0.0017857143f * (in[at - 4] + in[at + 4] + in[at - 4 * stride] + in[at + 4 * stride] + column[0] + column[8]);
    out[at] = sum;
  }
  for (int z = nz - RADIUS; z < nz; ++z, at += plane) out[at] = in[at];
}
