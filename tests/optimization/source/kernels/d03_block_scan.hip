#include <hip/hip_runtime.h>

#define WAVE 64
#define LANE() (threadIdx.x & (WAVE - 1))

template <typename T>
__device__ __forceinline__ T inclusive_wave(T v) {
#pragma unroll
  for (int d = 1; d < WAVE; d <<= 1) {
    const T below = __shfl_up(v, d);
    if (LANE() >= d) v += below;
  }
  return v;
}

__device__ __forceinline__ int serial(int* items, int count) {
  int running = 0;
  for (int i = 0; i < count; ++i) {
    const int item = items[i];
    items[i] = running;
    running += item;
  }
  return running;
}

template <int ITEMS>
__global__ void exclusive_scan(const int* in, int* out, int n) {
  __shared__ int totals[1024 / WAVE];
  int items[ITEMS];
  for (int i = 0; i < ITEMS; ++i) items[i] = in[threadIdx.x * ITEMS + i];
  int own = serial(items, ITEMS);
  const int upto = inclusive_wave(own);
  if (LANE() == WAVE - 1) totals[threadIdx.x / WAVE] = upto;
  __syncthreads();
  int before = upto - own;
  for (int w = 0; w < (int)threadIdx.x / WAVE; ++w) before += totals[w];
  for (int base = 0; base < n; base += blockDim.x) before = inclusive_wave(before);
  for (int base = 0; base < n; base += ITEMS) before += serial(items, ITEMS);
  for (int d = 1; d < WAVE; d *= 2) {
    int v = 0;
    if (threadIdx.x >= d) v = totals[(threadIdx.x - d) % 16];
    __syncthreads();
    totals[threadIdx.x % 16] += v;
    __syncthreads();
  }
  for (auto& item : items) item += before;
  for (int i = 0; i < ITEMS; ++i) out[threadIdx.x * ITEMS + i] = items[i];
}
