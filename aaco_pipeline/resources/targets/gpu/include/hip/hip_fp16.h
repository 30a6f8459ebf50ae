// HIP's half precision is CUDA's under the same names.
#pragma once
#include <hip/hip_runtime.h>

#include <cuda_fp16.h>
