#include <hip/hip_runtime.h>

// The helper of many samples: templates may not declare an extern array of their own type.
template <class T>
struct SharedMemory {
  __device__ inline operator T*() {
    extern __shared__ int smem[];
    return (T*)smem;
  }
};

template <class T, unsigned int blockSize, bool nIsPow2>
__global__ void reduce6(const T* __restrict__ g_idata, T* __restrict__ g_odata, unsigned int n) {
  T* sdata = SharedMemory<T>();
  unsigned int tid = threadIdx.x;
  unsigned int i = blockIdx.x * blockSize * 2 + threadIdx.x;
  const unsigned int gridSize = blockSize * 2 * gridDim.x;
  T mySum = 0;
  while (i < n) {
    mySum += g_idata[i];
    if (nIsPow2 || i + blockSize < n) mySum += g_idata[i + blockSize];
    i += gridSize;
  }
  sdata[tid] = mySum;
  __syncthreads();
  for (unsigned int s = blockSize / 2; s > 32; s >>= 1) {
    if (tid < s) sdata[tid] = mySum = mySum + sdata[tid + s];
    __syncthreads();
  }
  if (tid == 0) {
    for (unsigned int j = 1; j < 32 && j < blockSize; ++j) mySum += sdata[j];
    g_odata[blockIdx.x] = mySum;
  }
}
