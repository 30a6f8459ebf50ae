#include <hip/hip_runtime.h>

#define RADIUS 4

// Second derivatives along x, y and z, eighth order: a work-item walks along z at its x and y.
// Rows are `pitch` values apart. Values nearer than RADIUS to an edge are copied.
__global__ void stencil(const float* in, float* out, int nx, int ny, int nz, int pitch) {
  int x = blockIdx.x * blockDim.x + threadIdx.x;
  int y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= nx || y >= ny) return;
  size_t plane = (size_t)pitch * ny;
  bool inside = x >= RADIUS && x < nx - RADIUS && y >= RADIUS && y < ny - RADIUS;
  if (!inside || nz <= 2 * RADIUS) {
    for (int z = 0; z < nz; ++z) {
      size_t at = z * plane + (size_t)y * pitch + x;
      out[at] = in[at];
    }
    return;
  }
  for (int z = 0; z < RADIUS; ++z) {
    size_t low = z * plane + (size_t)y * pitch + x;
    size_t high = (nz - 1 - z) * plane + (size_t)y * pitch + x;
    out[low] = in[low];
    out[high] = in[high];
  }
  size_t start = (size_t)y * pitch + x;
  float q0 = in[start + 0 * plane], q1 = in[start + 1 * plane], q2 = in[start + 2 * plane], q3 = in[start + 3 * plane], q4 = in[start + 4 * plane], q5 = in[start + 5 * plane], q6 = in[start + 6 * plane], q7 = in[start + 7 * plane];
  int z = RADIUS;
  for (; z + 1 < nz - RADIUS; z += 2) {
    size_t at = z * plane + start;
    float q8 = in[at + 4 * plane];
    float sum = -8.541667f * q4;
    sum += 1.6f * (in[at - 1] + in[at + 1] + in[at - pitch] + in[at + pitch] + q3 + q5);
    sum += -0.2f * (in[at - 2] + in[at + 2] + in[at - 2 * pitch] + in[at + 2 * pitch] + q2 + q6);
    sum += 0.025396825f * (in[at - 3] + in[at + 3] + in[at - 3 * pitch] + in[at + 3 * pitch] + q1 + q7);
    sum += -0.0017857143f * (in[at - 4] + in[at + 4] + in[at - 4 * pitch] + in[at + 4 * pitch] + q0 + q8);
    out[at] = sum;
    at += plane;
    float q9 = in[at + 4 * plane];
    sum = -8.541667f * q5;
    sum += 1.6f * (in[at - 1] + in[at + 1] + in[at - pitch] + in[at + pitch] + q4 + q6);
    sum += -0.2f * (in[at - 2] + in[at + 2] + in[at - 2 * pitch] + in[at + 2 * pitch] + q3 + q7);
    sum += 0.025396825f * (in[at - 3] + in[at + 3] + in[at - 3 * pitch] + in[at + 3 * pitch] + q2 + q8);
    sum += -0.0017857143f * (in[at - 4] + in[at + 4] + in[at - 4 * pitch] + in[at + 4 * pitch] + q1 + q9);
    out[at] = sum;
    q0 = q2;
    q1 = q3;
    q2 = q4;
    q3 = q5;
    q4 = q6;
    q5 = q7;
    q6 = q8;
    q7 = q9;
  }
  if (z < nz - RADIUS) {
    size_t at = z * plane + start;
    float q8 = in[at + 4 * plane];
    float sum = -8.541667f * q4;
    sum += 1.6f * (in[at - 1] + in[at + 1] + in[at - pitch] + in[at + pitch] + q3 + q5);
    sum += -0.2f * (in[at - 2] + in[at + 2] + in[at - 2 * pitch] + in[at + 2 * pitch] + q2 + q6);
    sum += 0.025396825f * (in[at - 3] + in[at + 3] + in[at - 3 * pitch] + in[at + 3 * pitch] + q1 + q7);
    sum += -0.0017857143f * (in[at - 4] + in[at + 4] + in[at - 4 * pitch] + in[at + 4 * pitch] + q0 + q8);
    out[at] = sum;
  }
}
