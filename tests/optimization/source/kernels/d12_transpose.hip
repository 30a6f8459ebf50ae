#include <hip/hip_runtime.h>

template <typename T, int TILE_DIM, int BLOCK_ROWS>
__global__ void transpose(T* __restrict__ odata, const T* __restrict__ idata, int width, int height) {
  __shared__ T tile[TILE_DIM][TILE_DIM + 1];
  int x = blockIdx.x * TILE_DIM + threadIdx.x;
  int y = blockIdx.y * TILE_DIM + threadIdx.y;
  for (int j = 0; j < TILE_DIM; j += BLOCK_ROWS)
    if (x < width && (y + j) < height) tile[threadIdx.y + j][threadIdx.x] = idata[(y + j) * width + x];
  __syncthreads();
  x = blockIdx.y * TILE_DIM + threadIdx.x;
  y = blockIdx.x * TILE_DIM + threadIdx.y;
  for (int j = 0; j < TILE_DIM; j += BLOCK_ROWS) {
    if (x >= height || y + j >= width) continue;
    odata[(y + j) * height + x] = tile[threadIdx.x][threadIdx.y + j];
  }
}
template __global__ void transpose<float, 32, 8>(float*, const float*, int, int);

__global__ void transpose_dynamic(float* out, const float* in, int n) {
  extern __shared__ __align__(16) char bytes[];
  float* const tile = (float*)bytes;
  auto put = [=](int i, float v) { tile[i] = v; };
  struct View {
    float* base;
    __device__ float get(int i) const { return base[i]; }
  } view{tile};
  for (int i = threadIdx.x; i < n; i += blockDim.x) put(i, in[i]);
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = view.get(n - 1 - i);
  for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] *= 0.5f;
}
