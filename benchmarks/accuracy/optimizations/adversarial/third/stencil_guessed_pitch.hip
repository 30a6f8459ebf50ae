#include <hip/hip_runtime.h>

#define RADIUS 4

// Second derivatives along x, y and z, eighth order: the first work-item of a row of the workgroup walks along z with
// that row, so that its values are read once. Rows are padded by RADIUS - 1 values.
// Values nearer than RADIUS to an edge are copied.
__global__ void stencil(const float* in, float* out, int nx, int ny, int nz, int pitch) {
  if (threadIdx.x != 0) return;
  int apart = nx + RADIUS - 1;
  int first = blockIdx.x * blockDim.x;
  int y = blockIdx.y * blockDim.y + threadIdx.y;
  if (y >= ny) return;
  int last = first + (int)blockDim.x < nx ? first + (int)blockDim.x : nx;
  size_t plane = (size_t)apart * ny;
  for (int z = 0; z < nz; ++z) {
    bool inside = y >= RADIUS && y < ny - RADIUS && z >= RADIUS && z < nz - RADIUS;
    size_t row = z * plane + (size_t)y * apart;
    int from = first > RADIUS ? first : RADIUS;
    int to = last < nx - RADIUS ? last : nx - RADIUS;
    if (!inside || from >= to) from = to = last;
    for (int x = first; x < from; ++x) out[row + x] = in[row + x];
    for (int x = from; x < to; ++x) {
      size_t at = row + x;
      float sum = -8.541667f * in[at];
      sum += 1.6f * (in[at - 1] + in[at + 1] + in[at - apart] + in[at + apart] + in[at - plane] + in[at + plane]);
      sum += -0.2f * (in[at - 2] + in[at + 2] + in[at - 2 * apart] + in[at + 2 * apart] + in[at - 2 * plane] +
                      in[at + 2 * plane]);
      sum += 0.025396825f * (in[at - 3] + in[at + 3] + in[at - 3 * apart] + in[at + 3 * apart] + in[at - 3 * plane] +
                             in[at + 3 * plane]);
      sum += -0.0017857143f * (in[at - 4] + in[at + 4] + in[at - 4 * apart] + in[at + 4 * apart] +
                               in[at - 4 * plane] + in[at + 4 * plane]);
      out[at] = sum;
    }
    for (int x = to; x < last; ++x) out[row + x] = in[row + x];
  }
}
