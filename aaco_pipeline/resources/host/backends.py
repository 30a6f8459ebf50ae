"""Check what each backend needs on this host, what is missing, and how to fix it; shown by `aaco info`.

The runtime's own availability list is not sufficient: a provider can be listed but fail to load. The measured process
checks whether it is really used (`aaco_pipeline.resources.measure.inference_worker`).
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aaco_pipeline.providers import CPU_PROVIDER, CUDA_PROVIDER, MIGRAPHX_PROVIDER, ROCM_PROVIDER
from aaco_pipeline.resources.configuration import BackendEntry
from aaco_pipeline.resources.toolchains.amdgpu.finding import ARCHITECTURES, INSTALL, Missing, find_toolchain

_ROCM_LIBRARIES: Final = (Path("/opt/rocm/lib"), Path("/usr/lib/x86_64-linux-gnu"))


@dataclass(frozen=True)
class BackendState:
    """Availability of a backend on this host; `lacks` and `fix` are empty if it is usable."""

    backend: str
    provider: str
    usable: bool
    lacks: str
    fix: str


@dataclass(frozen=True)
class ToolState:
    """Availability of a tool on this host, and its purpose."""

    tool: str
    path: str | None
    purpose: str
    fix: str


def backend_states(backends: Mapping[str, BackendEntry]) -> list[BackendState]:
    """Return the state of each configured backend, as far as it is known without running a session."""
    import onnxruntime

    available = onnxruntime.get_available_providers()
    return [_state(name, entry.provider, entry.provider in available) for name, entry in sorted(backends.items())]


def tool_states() -> list[ToolState]:
    """Return the availability of the optional profilers and helpers of later stages."""
    wanted = (
        ("rocprofv3", "kernel traces, counters and thread traces on AMD GPUs", "install ROCm's rocprofiler-sdk"),
        ("rocminfo", "agents of a ROCm host", "install ROCm"),
        ("amd-smi", "telemetry and partition modes of AMD GPUs", "install ROCm's amd-smi-lib"),
        ("bpftrace", "scheduler events beside a run", "apt-get install bpftrace"),
    )
    tools = [ToolState(tool, shutil.which(tool), purpose, fix) for tool, purpose, fix in wanted]
    compiler = find_toolchain()
    path = None if isinstance(compiler, Missing) else compiler.compiler[0]
    purpose = f"static verdict on {' and '.join(ARCHITECTURES)} when kernels are optimized"
    return [*tools, ToolState("clang for AMD GPUs", path, purpose, INSTALL)]


def _state(name: str, provider: str, listed: bool) -> BackendState:
    if provider == CPU_PROVIDER:
        return BackendState(name, provider, listed, "" if listed else "the runtime has no CPU provider", "")
    lacks: list[str] = []
    fixes: list[str] = []
    if not listed:
        lacks.append(f"the installed onnxruntime has no {provider}")
        fixes.append(_PACKAGES.get(provider, f"install an onnxruntime built with {provider}"))
    if provider in (MIGRAPHX_PROVIDER, ROCM_PROVIDER):
        if not Path("/dev/kfd").exists():
            lacks.append("no AMD GPU driver (/dev/kfd is absent)")
            fixes.append("load the amdgpu driver on a host with an AMD GPU")
        if not any(folder.glob("libamdhip64.so*") for folder in _ROCM_LIBRARIES if folder.is_dir()):
            lacks.append("no HIP runtime (libamdhip64)")
            fixes.append("install ROCm, and add the user to the groups render and video")
    if provider == CUDA_PROVIDER and not Path("/dev/nvidiactl").exists():
        lacks.append("no NVIDIA driver (/dev/nvidiactl is absent)")
        fixes.append("run on a host with an NVIDIA GPU")
    return BackendState(name, provider, not lacks, "; ".join(lacks), "; ".join(fixes))


_PACKAGES: Final[Mapping[str, str]] = {
    MIGRAPHX_PROVIDER: "pip install onnxruntime-migraphx instead of onnxruntime (needs ROCm 7)",
    ROCM_PROVIDER: "install onnxruntime-rocm of a ROCm release up to 7.0; later ones use migraphx",
    CUDA_PROVIDER: "pip install onnxruntime-gpu instead of onnxruntime",
}
