"""Compiles device code, and nothing else of a source, under limits of memory, CPU time and the clock."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aaco_pipeline.errors import UnavailableError
from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.resources.toolchains.making import OUTPUT, MakeError, make

INCLUDE: Final = Path(__file__).with_name("include")
#: The user's flags stand before these, which decide what is made and never how fast it is.
DEFAULT_FLAGS: Final = ("-O3", "-std=c++17")
_WALL_SECONDS: Final = 180.0
_CPU_SECONDS: Final = 120
_MEMORY_KIB: Final = 8 << 20
_FILE_BLOCKS: Final = (256 << 20) // 512
_VERSION_SECONDS: Final = 30.0
#: The shell is given the command as its arguments, and sets the limits that all it starts inherit.
_LIMITS: Final = (f"-t {_CPU_SECONDS}", f"-v {_MEMORY_KIB}", f"-f {_FILE_BLOCKS}", "-c 0")
_LIMITED: Final = ("/bin/sh", "-c", " && ".join([*(f"ulimit {limit}" for limit in _LIMITS), 'exec "$@"']), "sh")
_ENTRY: Final = re.compile(r"Compiling entry function '([^']+)'")
#: What `ptxas -v` says of a kernel, with the name that it has in a record.
_PTXAS: Final = {
    "registers": re.compile(r"Used (\d+) registers"),
    "lds_bytes": re.compile(r"(\d+) bytes smem"),
    "stack_bytes": re.compile(r"(\d+) bytes stack frame"),
    "spill_store_bytes": re.compile(r"(\d+) bytes spill stores"),
    "spill_load_bytes": re.compile(r"(\d+) bytes spill loads"),
}


@dataclass(frozen=True)
class Compiler:
    """A compiler of device code: its program, what it says of its version, and what it must be told for a device."""

    program: str
    version: str
    device_flags: tuple[str, ...]

    def compile(self, source: Path, artefact: Path, flags: Sequence[str]) -> str:
        """Make `artefact` of `source`, in the source's folder; what the compiler said. Refused (guard `compile`)."""
        log = artefact.with_suffix(".log")
        command = (*_LIMITED, self.program, *flags, *self.device_flags, source.name, "-o", OUTPUT)
        try:
            make(command, "", artefact, source.parent, log=log, limit_seconds=_WALL_SECONDS)
        except MakeError as error:
            raise Refused("compile", "; ".join([str(error), *error.lines])) from error
        return log.read_text(errors="replace")


def nvcc(architecture: str) -> Compiler | None:
    """CUDA's compiler for one architecture, such as sm_90; None where it is not on the path or in its usual place."""
    program = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if program is None:
        return None
    own = ("-x", "cu", "-cubin", f"-arch={architecture}", "-I", str(INCLUDE), "-Xptxas", "-v")
    return Compiler(program, _version(program), own)


def hipcc(architecture: str) -> Compiler | None:
    """ROCm's compiler for one architecture, such as gfx942; None where it is not on the path or in its usual place."""
    rocm = Path(os.environ.get("ROCM_PATH", "/opt/rocm"))
    program = shutil.which("hipcc") or shutil.which("hipcc", path=str(rocm / "bin"))
    if program is None:
        return None
    own = ("-x", "hip", "--cuda-device-only", "--no-gpu-bundle-output", f"--offload-arch={architecture}")
    return Compiler(program, _version(program), own)


def ptxas_resources(said: str, symbol: str) -> Mapping[str, int]:
    """Registers, LDS, stack and spills of one kernel as `ptxas -v` said them; empty where it said nothing of it."""
    parts = _ENTRY.split(said)
    about = dict(zip(parts[1::2], parts[2::2], strict=True)).get(symbol)
    if about is None:
        return {}
    found = {name: pattern.search(about) for name, pattern in _PTXAS.items()}
    # It leaves out shared memory where a kernel has none.
    return {"lds_bytes": 0, **{name: int(match[1]) for name, match in found.items() if match}}


def _version(program: str) -> str:
    try:
        said = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=_VERSION_SECONDS, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise UnavailableError(f"{program} does not tell its version: {error}") from error
    lines = [line for line in said.splitlines() if re.search(r"release|version", line, re.IGNORECASE)]
    return f"{Path(program).name}: {lines[0].strip() if lines else 'no version'}"
