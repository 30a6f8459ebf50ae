#include <hip/hip_runtime.h>

__device__ int counter;

__global__ void first(int* x, int n) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) atomicAdd(&counter, x[i]);
}

__global__ void second(int* x, int n) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] = x[i] * 2 + 1;
}

__global__ void third(int* x, int n) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) __hip_atomic_fetch_add(&x[0], i, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
