#include <hip/hip_runtime.h>
#include <hip/hip_cooperative_groups.h>
using namespace cooperative_groups;

template <unsigned Width>
__device__ float tile_sum(const thread_block_tile<Width>& tile, float v) {
  for (int d = tile.size() / 2; d > 0; d /= 2) v += tile.shfl_down(v, d);
  return v;
}

__global__ void layer_norm(const float* __restrict__ x, const float* __restrict__ gain, float* __restrict__ y, int columns, int rounds) {
  thread_block block = this_thread_block();
  auto tile = tiled_partition<32>(block);
  float sum = 0.0f, squares = 0.0f;
  for (int c = threadIdx.x; c < columns; c += blockDim.x) {
    const float v = x[blockIdx.x * columns + c];
    sum += v;
    squares = __fmaf_rn(v, v, squares);
  }
  for (int d = 16; d >= 1; d /= 2) sum += tile.shfl_xor(sum, d);
  for (int r = 0; r < rounds; ++r) squares = tile_sum<32>(tile, squares);
  const float mean = sum / columns, scale = rsqrtf(squares / columns - mean * mean + 1e-5f);
  for (int c = threadIdx.x; c < columns; c += blockDim.x)
    y[blockIdx.x * columns + c] = (x[blockIdx.x * columns + c] - mean) * scale * gain[c];
  for (int r = 0; r < rounds; ++r) {
    y[r] += 1.0f;
    sync(block);
  }
  for (int r = 0; r < rounds; ++r) y[r] += __syncthreads_count(r);
}
