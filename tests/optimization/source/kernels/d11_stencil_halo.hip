#include <hip/hip_runtime.h>
#define RADIUS 4
#define BX 32
#define BY 8
#define IN(x, y, z) in[((z) * ny + (y)) * nx + (x)]

__constant__ float coefficients[RADIUS + 1];

__global__ void wave3d(const float* __restrict__ in, float* __restrict__ out, const float* __restrict__ velocity, int nx, int ny, int nz) {
  __shared__ float plane[BY + 2 * RADIUS][BX + 2 * RADIUS];
  const int x = blockIdx.x * BX + threadIdx.x + RADIUS, y = blockIdx.y * BY + threadIdx.y + RADIUS;
  float behind[RADIUS], front[RADIUS], current;
  int r;
  for (r = RADIUS - 1; r >= 0; r--) behind[r] = IN(x, y, RADIUS - 1 - r);
  current = IN(x, y, RADIUS);
  for (r = 0; r < RADIUS; r++) front[r] = IN(x, y, RADIUS + 1 + r);
  for (int z = RADIUS; z < nz - RADIUS; ++z) {
    __syncthreads();
    for (int yy = threadIdx.y; yy < BY + 2 * RADIUS; yy += BY)
      for (int xx = threadIdx.x; xx < BX + 2 * RADIUS; xx += BX)
        plane[yy][xx] = IN(blockIdx.x * BX + xx, blockIdx.y * BY + yy, z);
    __syncthreads();
    float value = coefficients[0] * current;
    for (int i = 1; i <= RADIUS; ++i) {
      value += coefficients[i] * (front[i - 1] + behind[i - 1] + plane[threadIdx.y + RADIUS - i][threadIdx.x + RADIUS] + plane[threadIdx.y + RADIUS + i][threadIdx.x + RADIUS] +
                                  plane[threadIdx.y + RADIUS][threadIdx.x + RADIUS - i] + plane[threadIdx.y + RADIUS][threadIdx.x + RADIUS + i]);
    }
    out[(z * ny + y) * nx + x] = 2.0f * current - out[(z * ny + y) * nx + x] + velocity[(z * ny + y) * nx + x] * value;
    for (int i = RADIUS - 1; i > 0; --i) behind[i] = behind[i - 1];
    behind[0] = current;
    current = front[0];
    for (int i = 0; i + 1 < RADIUS; ++i) front[i] = front[i + 1];
    front[RADIUS - 1] = IN(x, y, min(z + RADIUS + 1, nz - 1));
  }
}
