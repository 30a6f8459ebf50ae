#include <hip/hip_runtime.h>

#define BINS 16
#define COPIES 4
#define COUNT(bin) ++mine[(bin) & (BINS - 1)]
#define FLUSH(p, v) \
  do {              \
    if (v) atomicAdd_system((p), (v)); \
  } while (0)

extern "C" __global__ void histogram_private(const uint4* __restrict__ data, unsigned int* __restrict__ bins, size_t n) {
  __shared__ unsigned int shared_bins[COPIES][BINS];
  unsigned int mine[BINS];
  for (unsigned int& bin : mine) bin = 0u;
  for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
    const uint4 v = data[i];
    COUNT(v.x); COUNT(v.y); COUNT(v.z); COUNT(v.w);
  }
  for (int b = threadIdx.x; b < BINS * COPIES; b += blockDim.x) (&shared_bins[0][0])[b] = 0;
  __syncthreads();
  for (int b = 0; b < BINS; ++b) __hip_atomic_fetch_add(&shared_bins[threadIdx.x % COPIES][b], mine[b], __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
  __syncthreads();
  for (int b = threadIdx.x; b < BINS; b += blockDim.x) {
    unsigned int sum = 0;
    for (int c = 0; c < COPIES; c++) sum += shared_bins[c][b];
    FLUSH(&bins[b], sum);
  }
}
