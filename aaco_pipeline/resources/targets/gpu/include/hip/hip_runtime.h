// HIP's names for what CUDA has under its own, so that a plain HIP source is read by nvcc unchanged.
// Names only: no behaviour is added, but for the cross-lane functions, which CUDA wants a mask of lanes for.
// A wavefront is 32 lanes wide here and 64 on CDNA: __ballot fills the lower 32 bits of its 64 alone.
#pragma once

#if !defined(__CUDACC_RTC__)
#include <cuda_runtime.h>
#endif

#define __HIP_PLATFORM_NVIDIA__ 1
#define HIP_DYNAMIC_SHARED(type, name) extern __shared__ type name[];
#define hipThreadIdx_x threadIdx.x
#define hipThreadIdx_y threadIdx.y
#define hipThreadIdx_z threadIdx.z
#define hipBlockIdx_x blockIdx.x
#define hipBlockIdx_y blockIdx.y
#define hipBlockIdx_z blockIdx.z
#define hipBlockDim_x blockDim.x
#define hipBlockDim_y blockDim.y
#define hipBlockDim_z blockDim.z
#define hipGridDim_x gridDim.x
#define hipGridDim_y gridDim.y
#define hipGridDim_z gridDim.z
#define unsafeAtomicAdd atomicAdd

namespace hip_names {
template <typename T> __device__ __forceinline__ T shfl(T value, int lane, int width = 32) {
  return __shfl_sync(__activemask(), value, lane, width);
}
template <typename T> __device__ __forceinline__ T shfl_up(T value, unsigned int lanes, int width = 32) {
  return __shfl_up_sync(__activemask(), value, lanes, width);
}
template <typename T> __device__ __forceinline__ T shfl_down(T value, unsigned int lanes, int width = 32) {
  return __shfl_down_sync(__activemask(), value, lanes, width);
}
template <typename T> __device__ __forceinline__ T shfl_xor(T value, int lanes, int width = 32) {
  return __shfl_xor_sync(__activemask(), value, lanes, width);
}
__device__ __forceinline__ unsigned long long ballot(int predicate) { return __ballot_sync(__activemask(), predicate); }
__device__ __forceinline__ int any(int predicate) { return __any_sync(__activemask(), predicate); }
__device__ __forceinline__ int all(int predicate) { return __all_sync(__activemask(), predicate); }
__device__ __forceinline__ unsigned int lane() {
  return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32;
}
}  // namespace hip_names

#define __shfl hip_names::shfl
#define __shfl_up hip_names::shfl_up
#define __shfl_down hip_names::shfl_down
#define __shfl_xor hip_names::shfl_xor
#define __ballot hip_names::ballot
#define __any hip_names::any
#define __all hip_names::all
#define __lane_id hip_names::lane

// What the host part of a source names. Of a candidate it is read, and never built or run.
#if !defined(__CUDACC_RTC__)
#define hipLaunchKernelGGL(kernel, grid, block, lds_bytes, stream, ...) \
  kernel<<<(grid), (block), (lds_bytes), (stream)>>>(__VA_ARGS__)
#define hipDeviceAttributeMultiprocessorCount cudaDevAttrMultiProcessorCount
#define hipDeviceAttributeWarpSize cudaDevAttrWarpSize
#define hipDeviceGetAttribute cudaDeviceGetAttribute
#define hipDeviceProp_t cudaDeviceProp
#define hipDeviceReset cudaDeviceReset
#define hipDeviceSynchronize cudaDeviceSynchronize
#define hipError_t cudaError_t
#define hipEventCreate cudaEventCreate
#define hipEventDestroy cudaEventDestroy
#define hipEventElapsedTime cudaEventElapsedTime
#define hipEventRecord cudaEventRecord
#define hipEventSynchronize cudaEventSynchronize
#define hipEvent_t cudaEvent_t
#define hipFree cudaFree
#define hipFreeAsync cudaFreeAsync
#define hipFuncSetAttribute cudaFuncSetAttribute
#define hipFuncAttributeMaxDynamicSharedMemorySize cudaFuncAttributeMaxDynamicSharedMemorySize
#define hipGetDevice cudaGetDevice
#define hipGetDeviceCount cudaGetDeviceCount
#define hipGetDeviceProperties cudaGetDeviceProperties
#define hipGetErrorName cudaGetErrorName
#define hipGetErrorString cudaGetErrorString
#define hipGetLastError cudaGetLastError
#define hipPeekAtLastError cudaPeekAtLastError
#define hipHostFree cudaFreeHost
#define hipHostMalloc cudaMallocHost
#define hipMalloc cudaMalloc
#define hipMallocAsync cudaMallocAsync
#define hipMallocManaged cudaMallocManaged
#define hipMemGetInfo cudaMemGetInfo
#define hipMemcpy cudaMemcpy
#define hipMemcpyAsync cudaMemcpyAsync
#define hipMemcpyDefault cudaMemcpyDefault
#define hipMemcpyDeviceToDevice cudaMemcpyDeviceToDevice
#define hipMemcpyDeviceToHost cudaMemcpyDeviceToHost
#define hipMemcpyFromSymbol cudaMemcpyFromSymbol
#define hipMemcpyHostToDevice cudaMemcpyHostToDevice
#define hipMemcpyToSymbol cudaMemcpyToSymbol
#define hipMemset cudaMemset
#define hipMemsetAsync cudaMemsetAsync
#define hipSetDevice cudaSetDevice
#define hipStreamCreate cudaStreamCreate
#define hipStreamDestroy cudaStreamDestroy
#define hipStreamSynchronize cudaStreamSynchronize
#define hipStream_t cudaStream_t
#define hipSuccess cudaSuccess
#endif
