"""One kernel of a HIP source compiled for one architecture, under limits, in a folder of its own.

In three steps, the same with every toolchain: to assembly, to a relocatable object (whose machine code is compared,
since addresses are not filled in), to a code object. Nothing is run on a GPU.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from aaco_pipeline.cache_folder import default_cache_dir
from aaco_pipeline.errors import UnavailableError
from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.guards.resources import KernelResources
from aaco_pipeline.resources.toolchains.amdgpu.code_object import CodeObject, CodeObjectError
from aaco_pipeline.resources.toolchains.amdgpu.finding import Toolchain
from aaco_pipeline.resources.toolchains.amdgpu.machine_code import code_sha256
from aaco_pipeline.resources.toolchains.amdgpu.remarks import PASSES, CompilerRemarks, disagreements, read_remarks
from aaco_pipeline.resources.toolchains.limited import Limits, ending, run_limited

_LIMITS: Final = Limits(memory_bytes=6 << 30, cpu_seconds=60, file_bytes=64 << 20)
_LIMIT_SECONDS: Final = 240.0
_SOURCE: Final = "kernel.hip"
_TOLD_BYTES: Final = 64 << 10
_TOLD_LINES: Final = 3
#: Of the bitcode with what kernels call; the control constants are added for each architecture.
_CONTROL: Final = "oclc_isa_version_{}.bc"
_STATED_VERSIONS: Final = {"gfx90a": 9010, "gfx942": 9402, "gfx950": 9500}
_MADE_OF: Final = {"gfx942": ("gfx940", 9400)}


@dataclass(frozen=True)
class StaticBuild:
    """A compiled kernel, the code object to load, and what it and the compiler say of the kernel.

    `flags` are what decides the code beside the source, without paths. `disagreements` are figures that are not the
    compiler's own, in words: empty unless the code object was misread, or occupancy is reckoned otherwise.
    """

    architecture: str
    kernel: str
    artefact: Path
    source_sha256: str
    compiler: str
    flags: tuple[str, ...]
    resources: KernelResources
    remarks: CompilerRemarks
    disagreements: tuple[str, ...]


def compile_kernel(
    toolchain: Toolchain, source: bytes, kernel: str, architecture: str, folder: Path, *, flags: Sequence[str] = ()
) -> StaticBuild:
    """Compile a source at -O3 and read what one of its kernels takes; the code object is left in `folder`.

    Args:
        toolchain: as found on this host.
        source: the whole HIP source.
        kernel: its name, as the source or the linker has it.
        architecture: such as gfx942.
        folder: where the code object goes; it is there already.
        flags: further flags of the user's, for baseline and candidate alike.

    Raises:
        Refused: `compile` when the compiler will not have the source, or takes more than its limits; `kernel` when
            there is no such kernel, or several.
        UnavailableError: the toolchain itself does not work.
    """
    with _scratch(folder) as scratch:
        (scratch / _SOURCE).write_bytes(source)
        runner = _Runner(toolchain, scratch)
        options = ("-O3", *flags)
        runner.step(
            "compile", [*_compile_command(toolchain, architecture, runner), *options, "-S", _SOURCE, "-o", "kernel.s"]
        )
        target = ("-target", "amdgcn-amd-amdhsa", f"-mcpu={architecture}", "-x", "assembler")
        runner.step("compile", [*toolchain.compiler, *target, "-c", "kernel.s", "-o", "kernel.o"])
        runner.step("compile", [*toolchain.linker, "--no-undefined", "-shared", "kernel.o", "-o", "kernel.hsaco"])
        try:
            resources, symbol = kernel_resources((scratch / "kernel.o").read_bytes(), kernel)
        except CodeObjectError as error:
            raise Refused("kernel", str(error)) from error
        remarks = read_remarks((scratch / "kernel.yaml").read_bytes(), symbol, _SOURCE)
        digest = hashlib.sha256(source).hexdigest()
        artefact = folder / f"{architecture}-{digest[:16]}.hsaco"
        (scratch / "kernel.hsaco").replace(artefact)
        return StaticBuild(
            architecture=architecture,
            kernel=kernel,
            artefact=artefact,
            source_sha256=digest,
            compiler=compiler_version(toolchain),
            flags=(f"--offload-arch={architecture}", *options),
            resources=resources,
            remarks=remarks,
            disagreements=tuple(disagreements(resources, remarks)),
        )


def kernel_resources(relocatable: bytes, kernel: str) -> tuple[KernelResources, str]:
    """What a kernel of a relocatable code object takes, and its symbol. CodeObjectError when it cannot be read."""
    code = CodeObject(relocatable)
    stated = code.kernel(kernel)
    function = code.symbols_by_name.get(stated.symbol)
    if function is None:
        raise CodeObjectError(f"the code object has a kernel {stated.symbol} and no code of it")
    resources = KernelResources(
        architecture=code.architecture,
        vgprs=stated.vgprs,
        agprs=stated.agprs,
        sgprs=stated.sgprs,
        vgpr_spills=stated.vgpr_spills,
        sgpr_spills=stated.sgpr_spills,
        lds_bytes=stated.lds_bytes,
        scratch_bytes=stated.scratch_bytes,
        dynamic_stack=stated.dynamic_stack,
        max_workgroup_work_items=stated.max_workgroup_work_items,
        wavefront_size=stated.wavefront_size,
        code_bytes=function.size,
        code_sha256=code_sha256(code, stated.symbol),
    )
    return resources, stated.symbol


@cache
def _version(compiler: tuple[str, ...], environment: tuple[tuple[str, str], ...]) -> str:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        status = run_limited(
            [*compiler, "--version"],
            folder,
            log=folder / "log",
            limit_seconds=_LIMIT_SECONDS,
            limits=_LIMITS,
            environment=dict(environment) | {"HOME": name, "TMPDIR": name},
        )
        text = (folder / "log").read_text(errors="replace").strip()
    if status or not text:
        raise UnavailableError(f"{' '.join(compiler)} --version says nothing; install the compiler again")
    return text.splitlines()[0]


def compiler_version(toolchain: Toolchain) -> str:
    """The first line of what the compiler says of itself; UnavailableError when it says nothing."""
    return _version(toolchain.compiler, tuple(sorted(_ENVIRONMENT.items())))


# ---- inside ----------------------------------------------------------------------------------------------------------

#: Nothing of the user's environment, in which CPATH or CCC_OVERRIDE_OPTIONS would change what is compiled.
_ENVIRONMENT: Final = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C", "HIP_PLATFORM": "amd"}


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    name = tempfile.mkdtemp(prefix=".compile-", dir=folder)
    try:
        yield Path(name)
    finally:
        shutil.rmtree(name, ignore_errors=True)


class _Runner:
    """Runs a toolchain's programs in one folder; what they leave is there."""

    def __init__(self, toolchain: Toolchain, folder: Path) -> None:
        self.folder = folder
        home = {"HOME": str(folder), "TMPDIR": str(folder)}
        self._environment = _ENVIRONMENT | home
        if toolchain.kind == "packages":  # zig keeps what it makes, and would do so in the user's home
            kept = str(_made(default_cache_dir() / "zig"))
            self._environment |= {"ZIG_GLOBAL_CACHE_DIR": kept, "ZIG_LOCAL_CACHE_DIR": kept}

    def step(self, guard: str, command: Sequence[str]) -> None:
        """Run a command; Refused by `guard` with what it says when it fails or takes more than its limits."""
        log = self.folder / "log"
        status = run_limited(
            command,
            self.folder,
            log=log,
            limit_seconds=_LIMIT_SECONDS,
            limits=_LIMITS,
            environment=self._environment,
        )
        name = Path(command[0]).name
        if status is None:
            raise Refused(guard, f"{name} took more than {_LIMIT_SECONDS:g} s")
        if status:
            raise Refused(guard, f"{name} ended with {ending(status)}: {self._told(log)}")

    def _told(self, log: Path) -> str:
        with log.open("rb") as stream:
            lines = stream.read(_TOLD_BYTES).decode(errors="replace").splitlines()
        errors = [line for line in lines if "error:" in line] or [line for line in lines if line.strip()]
        said = "; ".join(line.strip()[:300] for line in errors[:_TOLD_LINES])
        return said.replace(f"{self.folder}{os.sep}", "") or "it says nothing"


def _compile_command(toolchain: Toolchain, architecture: str, runner: _Runner) -> list[str]:
    command = [*toolchain.compiler, "-x", "hip", "--cuda-device-only", f"--offload-arch={architecture}"]
    command += ["-fsave-optimization-record", "-foptimization-record-file=kernel.yaml"]
    # The resources go into the record only where their remarks are asked for, too.
    command += [f"-foptimization-record-passes={PASSES}", "-Rpass-analysis=kernel-resource-usage"]
    if toolchain.kind == "packages":
        return command + _packages_flags(toolchain, architecture, runner)
    libraries = _with_control_file(toolchain, architecture, runner)
    return [*command, f"--rocm-path={toolchain.rocm}", f"--rocm-device-lib-path={libraries}"]


def _with_control_file(toolchain: Toolchain, architecture: str, runner: _Runner) -> Path:
    """The folder of device libraries, with the file that names the architecture's version to them.

    Where only that file is missing, a folder in the cache has links to the others and one made of an older
    architecture's: the two differ in one number.
    """
    libraries = toolchain.device_libraries
    name = _CONTROL.format(architecture.removeprefix("gfx"))
    if (libraries / name).exists():
        return libraries
    if architecture not in _MADE_OF or "llvm-dis" not in toolchain.tools:
        raise UnavailableError(f"{libraries} has no {name}: these device libraries do not know {architecture}")
    older, number = _MADE_OF[architecture]
    model = libraries / _CONTROL.format(older.removeprefix("gfx"))
    if not model.exists():
        raise UnavailableError(f"{libraries} has neither {name} nor {model.name}")
    digest = hashlib.sha256(model.read_bytes() + str(libraries).encode()).hexdigest()[:16]
    made = default_cache_dir() / f"device-libraries-{digest}"
    if (made / name).exists():
        return made
    runner.step("compile", [toolchain.tools["llvm-dis"], str(model), "-o", "control.ll"])
    text = (runner.folder / "control.ll").read_text()
    wanted, instead = f"constant i32 {number}", f"constant i32 {_STATED_VERSIONS[architecture]}"
    if text.count(wanted) != 1:
        raise UnavailableError(f"{model} is not what it was in ROCm 5.2: it does not state {number} once")
    (runner.folder / "control.ll").write_text(text.replace(wanted, instead))
    staged = Path(tempfile.mkdtemp(prefix=f".{made.name}-", dir=_made(made.parent)))
    try:
        runner.step("compile", [toolchain.tools["llvm-as"], "control.ll", "-o", str(staged / name)])
        for one in libraries.glob("*.bc"):
            (staged / one.name).symlink_to(one)
        if not made.exists():
            staged.rename(made)
    except OSError:
        if not (made / name).exists():  # somebody else made it meanwhile
            raise
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return made


def _packages_flags(toolchain: Toolchain, architecture: str, runner: _Runner) -> list[str]:
    """zig leaves out where its compiler's own headers and bitcode lie: all of it is named."""
    if architecture not in _STATED_VERSIONS:
        raise UnavailableError(f"nothing is known of {architecture} with these packages")
    constants = {
        "ISA_version": ("i32", _STATED_VERSIONS[architecture]),
        "ABI_version": ("i32", 500),
        "wavefrontsize64": ("i8", 1),
        "finite_only_opt": ("i8", 0),
        "unsafe_math_opt": ("i8", 0),
        "daz_opt": ("i8", 0),
        "correctly_rounded_sqrt32": ("i8", 1),
    }
    lines = ['target triple = "amdgcn-amd-amdhsa"']
    for name, (kind, value) in constants.items():
        stated = f"@__oclc_{name} = linkonce_odr protected local_unnamed_addr addrspace(4) constant {kind} {value}"
        lines.append(f"{stated}, align {4 if kind == 'i32' else 1}")
    (runner.folder / "control.ll").write_text("\n".join(lines) + "\n")
    target = ("-target", "amdgcn-amd-amdhsa", f"-mcpu={architecture}", "-nogpulib")
    runner.step(
        "compile", [*toolchain.compiler, *target, "-x", "ir", "-emit-llvm", "-c", "control.ll", "-o", "control.bc"]
    )
    flags = ["-nogpulib", "-nogpuinc", "-resource-dir", str(toolchain.resource_folder), "-nostdinc", "-nostdinc++"]
    for folder in toolchain.headers:
        flags += ["-isystem", str(folder)]
    flags += ["-D__HIP_PLATFORM_AMD__", "-include", "__clang_hip_runtime_wrapper.h", "-mcode-object-version=5"]
    for bitcode in (toolchain.device_libraries / "ocml.bc", toolchain.device_libraries / "ockl.bc", Path("control.bc")):
        flags += ["-Xclang", "-mlink-builtin-bitcode", "-Xclang", str(bitcode)]
    return flags


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
