#include <hip/hip_runtime.h>

constexpr int RADIUS = 4;

// Second derivatives along three axes, eighth order, in double precision: a work-item walks along z.
extern "C" __global__ void star(const double* __restrict__ in, double* __restrict__ out, int nx, int ny, int nz) {
  int x = blockIdx.x * blockDim.x + threadIdx.x;
  int y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x < RADIUS || y < RADIUS || x >= nx - RADIUS || y >= ny - RADIUS) return;
  const double weight[RADIUS + 1] = {-8.541667, 1.6, -0.2, 0.025396825, -0.0017857143};
  for (int z = RADIUS; z < nz - RADIUS; ++z) {
    int at = (z * ny + y) * nx + x;
    double sum = weight[0] * in[at];
    for (int r = 1; r <= RADIUS; ++r) {
      sum += weight[r] * (in[at - r] + in[at + r] + in[at - r * nx] + in[at + r * nx] + in[at - r * nx * ny] +
                          in[at + r * nx * ny]);
    }
    out[at] = sum;
  }
}
