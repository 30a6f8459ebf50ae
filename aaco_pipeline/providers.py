"""The names of ONNX Runtime's execution providers."""

from typing import Final

CPU_PROVIDER: Final = "CPUExecutionProvider"
MIGRAPHX_PROVIDER: Final = "MIGraphXExecutionProvider"
ROCM_PROVIDER: Final = "ROCMExecutionProvider"
CUDA_PROVIDER: Final = "CUDAExecutionProvider"
#: Providers that accept a `device_id`.
GPU_PROVIDERS: Final = (MIGRAPHX_PROVIDER, ROCM_PROVIDER, CUDA_PROVIDER, "TensorrtExecutionProvider")
