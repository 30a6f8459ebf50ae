"""Compile device code with limits, and read the kernels and the machine code of the code object.

`aaco_pipeline.resources.toolchains.amdgpu.code_object` reads the metadata of AMD code objects.
"""

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aaco_pipeline.errors import UnavailableError
from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.resources import elf
from aaco_pipeline.resources.toolchains.limited import Limits, Reach, ending, parts_of, run_limited

_LOCAL_DATA: Final = (".nv.shared", ".lds")
#: Symbols that ptxas puts into every object and that no code calls.
_RESERVED: Final = re.compile(r"\.nv\.reservedSmem\.|__nv_reservedSMEM_")
#: Symbols that clang keeps in every AMDGPU code object.
_OF_THE_COMPILER: Final = re.compile(r"__hip_cuid_|_DYNAMIC$")
#: Metadata names of arguments that an AMD kernel has if it prints, asserts or allocates.
_SERVICES: Final = (b"hidden_hostcall_buffer", b"hidden_heap_v1")
_BANK: Final = ".nv.constant0."


@dataclass(frozen=True)
class CodeObject:
    """The parts of an ELF file."""

    image: bytes
    sections: tuple[elf.Section, ...]
    symbols: tuple[elf.Symbol, ...]

    @property
    def functions(self) -> tuple[elf.Symbol, ...]:
        """The functions that it defines."""
        return tuple(one for one in self.symbols if one.kind == elf.FUNCTION and one.section is not None)

    def code_of(self, function: elf.Symbol) -> bytes:
        """The machine code of one function."""
        section = self.sections[function.index]
        begin = function.value - section.address
        return bytes(section.content[begin : begin + function.size])


def read(image: bytes) -> CodeObject:
    """Return the parts of a code object. Refused (guard `compile`) if it is not a 64-bit ELF file."""
    try:
        parsed = elf.read_elf(image)
        tables = [one for one in parsed.sections if one.kind in (elf.SYMBOL_TABLE, elf.DYNAMIC_SYMBOLS)]
        symbols = dict.fromkeys(symbol for table in tables for symbol in parsed.symbols(table))
        return CodeObject(image, parsed.sections, tuple(symbols))
    except ValueError as error:
        raise Refused("compile", f"the compiler left no readable code object: {error}") from error


def symbol_of(code: CodeObject, kernel: str) -> str:
    """Return the name, plain or mangled, by which a driver finds `kernel` in a cubin. Refused if there is none."""
    mangled = re.compile(rf"_Z(?:N(?:\d+\w*?)?)?{len(kernel)}{re.escape(kernel)}")
    kernels = _kernels(code)
    found = [kernel] if kernel in kernels else sorted(name for name in kernels if mangled.match(name))
    if len(found) != 1:
        names = ", ".join(found) if found else "none"
        raise Refused("kernel", f"the code object must hold one kernel {kernel}, and holds {names}")
    return found[0]


def code_digest(code: CodeObject, symbol: str) -> str:
    """Return the SHA-256 over a cubin kernel's machine code, its literals, and the functions that it may call.

    Each kernel is a separate section with relative offsets only, so its load address does not matter.
    """
    digest = hashlib.sha256()
    kernels = _kernels(code)
    for function in sorted(code.functions, key=lambda function: (function.name != symbol, function.name)):
        if function.name == symbol or function.name not in kernels:
            digest.update(code.code_of(function))
    for section in code.sections:
        literals = re.fullmatch(r"\.nv\.constant(?!0\b)\d+(?:\.(.+))?", section.name)
        if literals and literals[1] in (None, symbol):
            digest.update(section.name.encode() + bytes(section.content))
    return digest.hexdigest()


def check_symbols(code: CodeObject) -> None:
    """Raise Refused (guard `symbols`) if device code requests a service, or keeps memory between launches."""
    undefined = {symbol.name for symbol in code.symbols if symbol.name and not symbol.index}
    asked = sorted(name for name in undefined if not _RESERVED.match(name))
    if asked:
        raise Refused("symbols", f"device code calls {', '.join(asked)}; a kernel may not print, allocate or assert")
    if any(service in code.image for service in _SERVICES):
        raise Refused("symbols", "device code calls the host; a kernel may not print, allocate or assert")
    kept = sorted({symbol.name for symbol in code.symbols if _is_kept(code, symbol)})
    if kept:
        raise Refused("symbols", f"{', '.join(kept)} would keep its value from one launch to the next")


def _is_kept(code: CodeObject, symbol: elf.Symbol) -> bool:
    if symbol.kind != elf.OBJECT or symbol.section is None or _OF_THE_COMPILER.match(symbol.name):
        return False
    section = code.sections[symbol.section]
    return bool(section.flags & elf.WRITE and section.flags & elf.ALLOCATE) and not section.name.startswith(_LOCAL_DATA)


def _kernels(code: CodeObject) -> set[str]:
    """Return the kernels that a cubin can launch: each has a constant bank for its arguments."""
    banks = [section.name for section in code.sections if section.name.startswith(_BANK)]
    return {name.removeprefix(_BANK) for name in banks}


INCLUDE: Final = Path(__file__).with_name("include")
_SOURCE: Final = "kernel.hip"
_LIMITS: Final = Limits(memory_bytes=8 << 30, cpu_seconds=120, file_bytes=256 << 20)
#: Only ends processes that hang: the compiler's computation is limited in CPU time.
_LIMIT_SECONDS: Final = 3_600.0
_TOLD_LINES: Final = 4
#: Location of a toolkit that is not on the path.
_TOOLKIT: Final = "/usr/local/cuda/bin"
_ENTRY: Final = re.compile(r"Compiling entry function '([^']+)'")
#: Resource figures in the output of `ptxas -v`, by their names in a record.
_PTXAS: Final = {
    "registers": re.compile(r"Used (\d+) registers"),
    "lds_bytes": re.compile(r"(\d+) bytes smem"),
    "stack_bytes": re.compile(r"(\d+) bytes stack frame"),
    "spill_store_bytes": re.compile(r"(\d+) bytes spill stores"),
    "spill_load_bytes": re.compile(r"(\d+) bytes spill loads"),
}


@dataclass(frozen=True)
class Compiled:
    """Device code in a file; `symbol` is the kernel's name in it. For the rest, see `optimization.targets.Build`."""

    artefact: Path
    symbol: str
    code_sha256: str
    compiler: str
    flags: tuple[str, ...]
    resources: Mapping[str, int]
    warnings: tuple[str, ...] = ()


#: Compiles a kernel of a source into a folder. Refused (guards `compile`, `kernel`) if that fails.
Compiler = Callable[[bytes, str, Path], Compiled]


def cuda_compiler(architecture: str, flags: tuple[str, ...]) -> Compiler | None:
    """Return nvcc for one architecture, such as sm_90, with the user's flags last; None if it is not installed."""
    program = shutil.which("nvcc") or shutil.which("nvcc", path=_TOOLKIT)
    if program is None:
        return None
    stated = ("-x", "cu", "-cubin", f"-arch={architecture}", "-Xptxas", "-v", "-O3", "-std=c++17", *flags)
    return _Nvcc(program, stated, _version(program))


def amd_compiler(architecture: str, flags: tuple[str, ...]) -> Compiler | None:
    """Return ROCm's or another compiler for AMD GPUs, with the user's flags; None if there is none."""
    # Not imported at the top, because it imports Polars, which users of NVIDIA GPUs do not need here.
    from aaco_pipeline.resources.toolchains.amdgpu.code_object import CodeObject as AmdCodeObject
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
            symbol=AmdCodeObject(built.artefact.read_bytes()).kernel(kernel).symbol,
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
        code = read(artefact.read_bytes())
        symbol = symbol_of(code, kernel)
        return Compiled(
            artefact=artefact,
            symbol=symbol,
            code_sha256=code_digest(code, symbol),
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
            # Inherit nothing from the user's environment, because NVCC_APPEND_FLAGS would change the compilation.
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
    """Return registers, LDS, stack and spills of one kernel from the output of `ptxas -v`; empty if missing there."""
    parts = _ENTRY.split(said)
    about = dict(zip(parts[1::2], parts[2::2], strict=True)).get(symbol)
    if about is None:
        return {}
    found = {name: pattern.search(about) for name, pattern in _PTXAS.items()}
    # The output omits shared memory if a kernel uses none.
    return {"lds_bytes": 0, **{name: int(match[1]) for name, match in found.items() if match}}


def _version(program: str) -> str:
    with tempfile.TemporaryDirectory(prefix="aaco-nvcc-") as name:
        log = Path(name, "log")
        status = run_limited([program, "--version"], Path(name), log=log, limit_seconds=_LIMIT_SECONDS, limits=_LIMITS)
        release = re.search(r"release .*", log.read_text(errors="replace"))
    if status or release is None:
        raise UnavailableError(f"{program} does not tell its version; install the CUDA toolkit again")
    return f"nvcc {release[0]}"
