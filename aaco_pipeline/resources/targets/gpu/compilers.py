"""Compiles device code, and nothing else of a source, under limits of memory, CPU time and the clock."""

import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from aaco_pipeline.errors import UnavailableError
from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.resources.targets.gpu import code_objects
from aaco_pipeline.resources.toolchains.installation import parts_of
from aaco_pipeline.resources.toolchains.limited import Limits, Reach, ending, run_limited

INCLUDE: Final = Path(__file__).with_name("include")
_SOURCE: Final = "kernel.hip"
_LIMITS: Final = Limits(memory_bytes=8 << 30, cpu_seconds=120, file_bytes=256 << 20)
#: Ends only what waits for ever: what a compiler computes is limited in CPU time.
_LIMIT_SECONDS: Final = 3_600.0
_TOLD_LINES: Final = 4
#: Where a toolkit lies that is not on the path.
_TOOLKIT: Final = "/usr/local/cuda/bin"
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
class Compiled:
    """Device code in a file; `symbol` is the kernel's name in it. The rest is as in `optimization.targets.Build`."""

    artefact: Path
    symbol: str
    code_sha256: str
    compiler: str
    flags: tuple[str, ...]
    resources: Mapping[str, int]
    warnings: tuple[str, ...] = ()


class Compiler(Protocol):
    """Compiles a kernel of a source into a folder. Refused (guards `compile`, `kernel`) when it cannot."""

    def __call__(self, source: bytes, kernel: str, folder: Path) -> Compiled: ...


def cuda_compiler(architecture: str, flags: tuple[str, ...]) -> Compiler | None:
    """nvcc for one architecture, such as sm_90, with the user's flags last; None where it is not."""
    program = shutil.which("nvcc") or shutil.which("nvcc", path=_TOOLKIT)
    if program is None:
        return None
    stated = ("-x", "cu", "-cubin", f"-arch={architecture}", "-Xptxas", "-v", "-O3", "-std=c++17", *flags)
    return _Nvcc(program, stated, _version(program))


def amd_compiler(architecture: str, flags: tuple[str, ...]) -> Compiler | None:
    """ROCm's compiler, or another that makes code for AMD GPUs, with the user's flags; None where there is none."""
    # Not for those who have the other vendor's GPU: it brings Polars.
    from aaco_pipeline.resources.toolchains.amdgpu.code_object import CodeObject
    from aaco_pipeline.resources.toolchains.amdgpu.compiling import compile_kernel
    from aaco_pipeline.resources.toolchains.amdgpu.finding import Toolchain, find_toolchain

    toolchain = find_toolchain()
    if not isinstance(toolchain, Toolchain):
        return None

    def compile_amd(source: bytes, kernel: str, folder: Path) -> Compiled:
        built = compile_kernel(toolchain, source, kernel, architecture, folder, flags=flags)
        taken = built.resources
        return Compiled(
            artefact=built.artefact,
            symbol=CodeObject(built.artefact.read_bytes()).kernel(kernel).symbol,
            code_sha256=taken.code_sha256,
            compiler=built.compiler,
            flags=built.flags,
            resources={
                "registers": taken.vgprs,
                "sgprs": taken.sgprs,
                "lds_bytes": taken.lds_bytes,
                "stack_bytes": taken.scratch_bytes,
                "vgpr_spills": taken.vgpr_spills,
                "sgpr_spills": taken.sgpr_spills,
            },
        )

    return compile_amd


@dataclass(frozen=True)
class _Nvcc:
    program: str
    stated: tuple[str, ...]
    version: str

    def __call__(self, source: bytes, kernel: str, folder: Path) -> Compiled:
        (folder / _SOURCE).write_bytes(source)
        artefact = folder / "kernel.cubin"
        said = self._run(folder, ("-I", str(INCLUDE), _SOURCE, "-o", artefact.name))
        code = code_objects.read(artefact.read_bytes())
        symbol = code_objects.symbol_of(code, kernel)
        return Compiled(
            artefact=artefact,
            symbol=symbol,
            code_sha256=code_objects.code_digest(code, symbol),
            compiler=self.version,
            flags=self.stated,
            resources=ptxas_resources(said, symbol),
            warnings=tuple(line.strip() for line in said.splitlines() if "warning" in line.lower()),
        )

    def _run(self, folder: Path, files: tuple[str, ...]) -> str:
        log = folder / "log"
        status = run_limited(
            [self.program, *self.stated, *files],
            folder,
            log=log,
            limit_seconds=_LIMIT_SECONDS,
            limits=_LIMITS,
            reach=Reach((*parts_of(self.program), INCLUDE)),
            # Nothing of the user's environment, in which NVCC_APPEND_FLAGS would change what is compiled.
            environment={"PATH": os.defpath, "HOME": str(folder), "TMPDIR": str(folder), "LC_ALL": "C"},
        )
        said = log.read_text(errors="replace")
        if status is None:
            raise Refused("compile", f"nvcc took more than {_LIMIT_SECONDS:g} s")
        if status:
            lines = [line.strip() for line in said.splitlines() if "error" in line or "fatal" in line]
            told = "; ".join(lines[:_TOLD_LINES]) or "it says nothing"
            raise Refused("compile", f"nvcc ended with {ending(status)}: {told}")
        return said


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
    with tempfile.TemporaryDirectory(prefix="aaco-nvcc-") as name:
        log = Path(name, "log")
        status = run_limited([program, "--version"], Path(name), log=log, limit_seconds=_LIMIT_SECONDS, limits=_LIMITS)
        release = re.search(r"release .*", log.read_text(errors="replace"))
    if status or release is None:
        raise UnavailableError(f"{program} does not tell its version; install the CUDA toolkit again")
    return f"nvcc {release[0]}"
