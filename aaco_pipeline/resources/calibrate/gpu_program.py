"""The program that measures a GPU's roofs: its compiler, its command, and what its output says.

The kernels are `gpu_roofs.hip`, beside this module. Nothing but the standard library is needed here, so that it can
be built and run on a GPU node without the rest of the package.
"""

import json
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from aaco_pipeline.errors import UnavailableError

SOURCE: Final = Path(__file__).with_name("gpu_roofs.hip")
#: HIP's names as CUDA's, for nvcc.
NAMES: Final = Path(__file__).parents[1] / "targets" / "gpu" / "include"
ROUNDS: Final = 4
_TOOLKIT: Final = "/usr/local/cuda/bin"
_ROCM: Final = "/opt/rocm/bin"
_LIBRARIES: Final = {
    "nvcc": ("libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so.11", "libcublasLt.so"),
    "hipcc": ("libhipblaslt.so.1", "libhipblaslt.so.0", "libhipblaslt.so"),
}


@dataclass(frozen=True)
class GpuCompiler:
    """A compiler that makes the program for the GPU of this machine: `nvcc` or `hipcc`."""

    name: str
    program: Path

    def compiling(self, program: Path) -> tuple[str, ...]:
        """The command that compiles the source to `program`."""
        if self.name == "nvcc":
            own: tuple[str, ...] = ("-x", "cu", "-arch=native", "-I", str(NAMES))
        else:
            own = ("--offload-arch=native",)
        return (str(self.program), *own, "-O3", "-std=c++17", str(SOURCE), "-o", str(program), "-ldl")

    def measuring(self, program: Path, device: int, seconds: float, result: Path) -> tuple[str, ...]:
        """The command that measures within about `seconds` and writes what `read_result` reads."""
        return (str(program), str(device), f"{seconds:g}", str(ROUNDS), str(result), *self.libraries())

    def libraries(self) -> tuple[str, ...]:
        """Under which names the vendor's library of products is tried: as the loader finds it, then by place."""
        names = _LIBRARIES[self.name]
        roots = dict.fromkeys((self.program.resolve().parents[1], Path(_TOOLKIT).parent, Path(_ROCM).parent))
        wheels = (folder for place in sys.path for folder in Path(place).glob("nvidia/*/lib"))
        folders = (*(root / "lib64" for root in roots), *(root / "lib" for root in roots), *wheels)
        return (*names, *(str(folder / name) for folder in folders for name in names if (folder / name).exists()))


def find_compiler(environment: Mapping[str, str] | None = None) -> GpuCompiler:
    """hipcc, or else nvcc, of the path or where ROCm and CUDA install them; UnavailableError when there is neither."""
    known = os.environ if environment is None else environment
    path = known.get("PATH", os.defpath)
    for name, place in (("hipcc", _ROCM), ("nvcc", _TOOLKIT)):
        found = shutil.which(name, path=path) or shutil.which(name, path=place)
        if found is not None:
            return GpuCompiler(name, Path(found))
    raise UnavailableError(
        "calibrate: no hipcc and no nvcc to build the measuring program with; install ROCm's HIP SDK or the CUDA "
        "toolkit"
    )


def read_result(text: str) -> tuple[Mapping[str, Any], list[dict[str, Any]]]:
    """What the program wrote: the device, and each measurement.

    UnavailableError when it says that it failed, or says nothing of a device.
    """
    documents = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    failed = next((one["failed"] for one in documents if "failed" in one and "resource" not in one), None)
    if failed is not None:
        raise UnavailableError(f"calibrate: the GPU cannot be measured: {failed}")
    device = next((one["device"] for one in documents if "device" in one), None)
    if device is None:
        raise UnavailableError("calibrate: the measuring program ended before it told its device; try it again")
    return device, [one for one in documents if "resource" in one]
