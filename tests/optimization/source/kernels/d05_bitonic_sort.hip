#include <hip/hip_runtime.h>

template <typename K>
__device__ inline void compare_swap(K& a, K& b, bool up) {
  if ((a > b) == up) {
    K t = a;
    a = b;
    b = t;
  }
}

template <typename K, int N>
__device__ void sort_registers(K (&keys)[N]) {
  for (int size = 2; size <= N; size <<= 1)
    for (int stride = size >> 1; stride > 0; stride >>= 1)
      for (int i = 0; i < N; ++i)
        if ((i & stride) == 0) compare_swap(keys[i], keys[i | stride], (i & size) == 0);
}

__global__ void bitonic_block(unsigned* data, unsigned n) {
  __shared__ unsigned tile[1024];
  for (unsigned i = threadIdx.x; i < 1024; i += blockDim.x) tile[i] = blockIdx.x * 1024 + i < n ? data[blockIdx.x * 1024 + i] : ~0u;
  for (unsigned size = 2; size <= 1024; size <<= 1) {
    for (unsigned stride = size / 2; stride > 0; stride >>= 1) {
      __syncthreads();
      const unsigned pos = 2 * threadIdx.x - (threadIdx.x & (stride - 1));
      compare_swap(tile[pos], tile[pos + stride], (pos & size) == 0);
    }
  }
  __syncthreads();
  for (unsigned i = threadIdx.x; i < 1024; i += blockDim.x)
    if (blockIdx.x * 1024 + i < n) data[blockIdx.x * 1024 + i] = tile[i];
}

__global__ void sort_rows(int* rows, int count) {
  for (int r = blockIdx.x * blockDim.x + threadIdx.x; r < count; r += gridDim.x * blockDim.x) {
    int keys[8];
    for (int i = 0; i < 8; ++i) keys[i] = rows[r * 8 + i];
    sort_registers(keys);
    for (int i = 0; i < 8; ++i) rows[r * 8 + i] = keys[i];
  }
  for (int pass = 0; pass < count; ++pass) {
    bool swapped = false;
    for (int i = 0; i + 1 < count; ++i) {
      if (rows[i] <= rows[i + 1]) continue;
      compare_swap(rows[i], rows[i + 1], true);
      swapped = true;
    }
    rows[count] = swapped;
  }
}
