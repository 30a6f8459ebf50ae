#include <hip/hip_runtime.h>
__device__ int lock;
__global__ void pointers(float* x, int n) {
  extern __shared__ __attribute__((aligned(16))) unsigned char raw[];
  auto* tile = reinterpret_cast<float*>(raw);
  float (*rows)[8] = (float (*)[8])tile;
  float* row = rows[threadIdx.x];
  for (int i = 0; i < 8; ++i) x[i] = row[i];
  for (int i = 0; i < 8; ++i) x[i] += 1.0f;
  for (int i = 0; i < n; ++i) { while (atomicExch(&lock, 1) != 0); x[0] += 1.0f; __threadfence(); atomicExch(&lock, 0); }
}
