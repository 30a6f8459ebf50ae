"""What of a captured or living process's environment may be kept: an allow-list, and nothing that looks like a secret.

What the kept facts mean is `aaco_pipeline.analysis.sessions.environment`.
"""

import json
import re
from collections.abc import Mapping
from typing import Final

from aaco_pipeline.formats.parsing.redaction.commands import safe_prose
from aaco_pipeline.formats.parsing.redaction.text import REDACTED, safe_value

#: Environment variables that change what runs or how fast; no other is ever looked at.
MEASURED_VARIABLES: Final = (
    # the C library, threads and memory
    *("GLIBC_TUNABLES", "LD_PRELOAD", "MALLOC_ARENA_MAX", "MALLOC_CONF", "NUMEXPR_NUM_THREADS"),
    *("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "KMP_BLOCKTIME", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"),
    *("OMP_DYNAMIC", "OMP_NUM_THREADS", "OMP_PLACES", "OMP_PROC_BIND", "OMP_SCHEDULE", "OMP_WAIT_POLICY"),
    # ONNX Runtime
    *("ORT_LOAD_CONFIG_FROM_MODEL", "ORT_MIGRAPHX_BF16_ENABLE", "ORT_MIGRAPHX_CACHE_PATH"),
    *("ORT_MIGRAPHX_EXHAUSTIVE_TUNE", "ORT_MIGRAPHX_FP16_ENABLE", "ORT_MIGRAPHX_FP8_ENABLE"),
    *("ORT_MIGRAPHX_INT8_CALIBRATION_TABLE_NAME", "ORT_MIGRAPHX_INT8_ENABLE", "ORT_MIGRAPHX_LOAD_COMPILED_MODEL"),
    *("ORT_MIGRAPHX_LOAD_COMPILED_PATH", "ORT_MIGRAPHX_MODEL_CACHE_PATH", "ORT_MIGRAPHX_SAVE_COMPILED_MODEL"),
    *("ORT_MIGRAPHX_SAVE_COMPILED_PATH", "ORT_MIGRAPHX_USE_NATIVE_CALIBRATION_TABLE"),
    # MIGraphX
    *("MIGRAPHX_DISABLE_MIOPEN_FUSION", "MIGRAPHX_DISABLE_MLIR", "MIGRAPHX_DISABLE_POINTWISE_FUSION"),
    *("MIGRAPHX_DISABLE_REDUCE_FUSION", "MIGRAPHX_DISABLE_SCHEDULE_PASS", "MIGRAPHX_ENABLE_CK"),
    *("MIGRAPHX_ENABLE_HIPBLASLT_GEMM", "MIGRAPHX_ENABLE_NHWC", "MIGRAPHX_ENABLE_NULL_STREAM"),
    *("MIGRAPHX_ENABLE_SPLIT_REDUCE", "MIGRAPHX_GPU_COMPILE_PARALLEL", "MIGRAPHX_GPU_HIP_FLAGS"),
    *("MIGRAPHX_GPU_OPTIMIZE", "MIGRAPHX_MLIR_ENABLE_SPLITK", "MIGRAPHX_MLIR_TUNE_EXHAUSTIVE"),
    *("MIGRAPHX_MLIR_TUNING_CFG", "MIGRAPHX_MLIR_TUNING_DB", "MIGRAPHX_MLIR_USE_SPECIFIC_OPS", "MIGRAPHX_NSTREAMS"),
    *("MIGRAPHX_PROBLEM_CACHE", "MIGRAPHX_SET_GEMM_PROVIDER", "MIGRAPHX_TRACE_BENCHMARKING"),
    # HIP and the ROCm runtime
    *("AMD_DIRECT_DISPATCH", "AMD_LOG_LEVEL", "AMD_SERIALIZE_COPY", "AMD_SERIALIZE_KERNEL", "CUDA_VISIBLE_DEVICES"),
    *("GPU_DEVICE_ORDINAL", "GPU_MAX_HW_QUEUES", "HIP_FORCE_DEV_KERNARG", "HIP_HOST_COHERENT", "HIP_LAUNCH_BLOCKING"),
    *("HIP_VISIBLE_DEVICES", "HSA_CU_MASK", "HSA_DISABLE_CACHE", "HSA_ENABLE_DEBUG", "HSA_ENABLE_INTERRUPT"),
    *("HSA_ENABLE_PEER_SDMA", "HSA_ENABLE_SDMA", "HSA_FORCE_FINE_GRAIN_PCIE", "HSA_NO_SCRATCH_RECLAIM"),
    *("HSA_OVERRIDE_GFX_VERSION", "HSA_SCRATCH_SINGLE_LIMIT", "HSA_TOOLS_LIB", "HSA_XNACK", "ROCR_VISIBLE_DEVICES"),
    # its libraries
    *("HIPBLASLT_TENSILE_LIBPATH", "HIPBLASLT_TUNING_FILE", "HIPBLASLT_TUNING_OVERRIDE_FILE"),
    *("MIOPEN_COMPILE_PARALLEL_LEVEL", "MIOPEN_CUSTOM_CACHE_DIR", "MIOPEN_DEBUG_CONV_DIRECT", "MIOPEN_DEBUG_CONV_FFT"),
    *("MIOPEN_DEBUG_CONV_GEMM", "MIOPEN_DEBUG_CONV_IMPLICIT_GEMM", "MIOPEN_DEBUG_CONV_WINOGRAD"),
    *("MIOPEN_DEBUG_DISABLE_FIND_DB", "MIOPEN_DISABLE_CACHE", "MIOPEN_ENABLE_LOGGING", "MIOPEN_FIND_ENFORCE"),
    *("MIOPEN_FIND_MODE", "MIOPEN_LOG_LEVEL", "MIOPEN_SYSTEM_DB_PATH", "MIOPEN_USER_DB_PATH"),
    *("ROCBLAS_DEFAULT_ATOMICS_MODE", "ROCBLAS_LAYER", "ROCBLAS_TENSILE_LIBPATH", "ROCBLAS_USE_HIPBLASLT"),
    *("TENSILE_SOLUTION_SELECTION_METHOD", "NCCL_DEBUG", "NCCL_MAX_NCHANNELS", "NCCL_MIN_NCHANNELS"),
    # Triton and PyTorch
    *("PYTORCH_TUNABLEOP_ENABLED", "PYTORCH_TUNABLEOP_FILENAME", "TRITON_ALWAYS_COMPILE", "TRITON_CACHE_DIR"),
    *("TRITON_DEFAULT_FP_FUSION", "TRITON_HIP_GLOBAL_PREFETCH", "TRITON_HIP_LOCAL_PREFETCH"),
    *("TRITON_HIP_USE_BLOCK_PINGPONG", "TRITON_HOME"),
)
#: Environment variables in which launchers of distributed jobs state the rank. What PyTorch reads comes first: torchrun
#: sets it for each process, while those that it starts all inherit the one number of a launcher around it.
RANK_VARIABLES: Final = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
#: Names under which a table of settings keeps an environment: a variable a row, or all of them in one value.
_ONE_VARIABLE: Final = "ENVIRONMENT_VARIABLE"
_ALL_VARIABLES: Final = "DeviceEnvironment"
_ASSIGNED: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
#: Fewer words between zeros than these are no environment.
_LEAST_OF_A_BLOCK: Final = 2
#: A longer value of a variable is no setting.
_LONGEST_VALUE: Final = 200


def safe_environment(variables: Mapping[str, object]) -> dict[str, str]:
    """The variables that may be kept: those of `MEASURED_VARIABLES`, each without secrets, in order of name."""
    return {name: safe_variable(str(variables[name])) for name in sorted(MEASURED_VARIABLES) if name in variables}


def safe_variable(value: str) -> str:
    """The value of a variable that may be kept, without secrets; said to be empty where it is."""
    return (REDACTED if len(value) > _LONGEST_VALUE else safe_prose(value)) or "(empty)"


def safe_environment_text(text: str) -> str:
    """An environment as JSON text reduced to what may be kept of it, ranks of a distributed job included."""
    try:
        variables = json.loads(text)
    except (ValueError, RecursionError):
        return "{}"
    if not isinstance(variables, dict):
        return "{}"
    stated = {name: str(variables.get(name, "")) for name in RANK_VARIABLES}
    ranks = {name: value for name, value in stated.items() if value.isascii() and value.isdigit()}
    kept = {**safe_environment(variables), **ranks}
    return text if kept == variables else json.dumps(kept)


def safe_environment_block(text: str) -> str:
    """An environment as the system keeps it, `NAME=value` after `NAME=value` with zeros between, reduced to what may be
    kept of it; any other text as it is. Nsight Systems has those of all processes among its names."""
    parts = text.split("\0")
    assigned = sum(_ASSIGNED.fullmatch(part) is not None for part in parts)
    if len(parts) < _LEAST_OF_A_BLOCK or assigned * 2 < len(parts):
        return text
    return "\0".join(filter(None, map(_safe_assignment, parts)))


def safe_setting(name: str, value: str) -> str:
    """A value of a table of settings without its secrets, as its name demands.

    Of an environment (`PROCESS_0:ENVIRONMENT_VARIABLE` with `NAME="value"`, or `DeviceEnvironment` with all variables
    in a row, as Nsight Systems exports them) there stays what may be kept of it, ranks of a distributed job included.
    """
    kind = name.rpartition(":")[2]
    if kind == _ONE_VARIABLE:
        return _safe_assignment(value) or REDACTED
    if kind == _ALL_VARIABLES:
        return ";".join(filter(None, map(_safe_assignment, value.split(";"))))
    return safe_value(name, value)


def _safe_assignment(text: str) -> str | None:
    """`NAME=value` or `NAME="value"` where the variable may be kept; None otherwise."""
    found = _ASSIGNED.fullmatch(text)
    if found is None:
        return None
    name, value = found.groups()
    if name in MEASURED_VARIABLES:
        clean = safe_variable(value)
        return text if clean == value or not value.strip('"') else f"{name}={clean}"
    digits = value.strip('"')
    return text if name in RANK_VARIABLES and digits.isascii() and digits.isdigit() else None
