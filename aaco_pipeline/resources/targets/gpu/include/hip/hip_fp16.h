// HIP's half precision is CUDA's under the same names.
#pragma once
#include <hip/hip_runtime.h>

// CUDA's header declares functions of the names that HIP's are given here.
#pragma push_macro("__shfl")
#undef __shfl
#pragma push_macro("__shfl_up")
#undef __shfl_up
#pragma push_macro("__shfl_down")
#undef __shfl_down
#pragma push_macro("__shfl_xor")
#undef __shfl_xor
#pragma push_macro("__ballot")
#undef __ballot
#pragma push_macro("__any")
#undef __any
#pragma push_macro("__all")
#undef __all
#include <cuda_fp16.h>
#pragma pop_macro("__shfl")
#pragma pop_macro("__shfl_up")
#pragma pop_macro("__shfl_down")
#pragma pop_macro("__shfl_xor")
#pragma pop_macro("__ballot")
#pragma pop_macro("__any")
#pragma pop_macro("__all")
