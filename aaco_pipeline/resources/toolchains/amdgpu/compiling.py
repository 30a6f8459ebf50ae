"""Compile one kernel of a HIP source for one architecture, with limits, and read the compiler's remarks about it.

`finding` selects the compiler; `verdict` compares two builds.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

from aaco_pipeline.cache_folder import own_code
from aaco_pipeline.errors import UnavailableError
from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.guards.resources import (
    FailedTransformation,
    KernelResources,
    UnrolledLoop,
    waves_per_simd,
)
from aaco_pipeline.resources.toolchains.amdgpu.code_object import CodeObject, CodeObjectError, code_sha256
from aaco_pipeline.resources.toolchains.amdgpu.finding import Toolchain
from aaco_pipeline.resources.toolchains.limited import Limits, Reach, ending, parts_of, prefix_parts, run_limited

#: The passes whose remarks are requested.
PASSES: Final = "kernel-resource-usage|loop-unroll|transform-warning"
_LARGEST_BYTES: Final = 16 << 20
_FIGURES: Final = (
    *("NumSGPR", "NumVGPR", "NumAGPR", "ScratchSize", "DynamicStack", "Occupancy", "SGPRSpill", "VGPRSpill"),
    "BytesLDS",
)
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_LOADER):  # type: ignore[misc,valid-type]
    """Documents tagged with the outcome of an optimization, which is kept as `kind`."""


def _document(loader: Any, kind: str, node: yaml.MappingNode) -> dict[str, Any]:
    return {"kind": kind, **loader.construct_mapping(node, deep=True)}


_Loader.add_multi_constructor("!", _document)


@dataclass(frozen=True)
class CompilerRemarks:
    """The remarks on one kernel. `usage` has the record's own names, such as NumVGPR."""

    usage: Mapping[str, int]
    unrolled: tuple[UnrolledLoop, ...]
    failed: tuple[FailedTransformation, ...]


def read_remarks(record: bytes, symbol: str, source_name: str) -> CompilerRemarks:
    """Read the remarks on a function, including its loops in the file `source_name` but not in headers.

    Raises ValueError if the record is invalid or lacks the function's resources.
    """
    if len(record) > _LARGEST_BYTES:
        raise ValueError(f"an optimization record of {len(record)} bytes")
    usage: dict[str, int] = {}
    unrolled: dict[UnrolledLoop, None] = {}
    failed: dict[FailedTransformation, None] = {}
    try:
        for one in yaml.load_all(record, Loader=_Loader):
            if one["Function"] != symbol:
                continue
            arguments = {key: value for argument in one.get("Args", ()) for key, value in argument.items()}
            if one["Pass"] == "kernel-resource-usage":
                usage |= {key: _number(value) for key, value in arguments.items() if key in _FIGURES}
                continue
            place = one.get("DebugLoc", {})
            if place.get("File") != source_name:
                continue
            line, column = int(place["Line"]), int(place["Column"])
            if one["kind"] == "Passed" and "UnrollCount" in arguments:
                completely = one["Name"] == "FullyUnrolled"
                unrolled[UnrolledLoop(line, column, int(arguments["UnrollCount"]), completely)] = None
            elif one["kind"] == "Failure":
                failed[FailedTransformation(line, column, str(arguments["String"]))] = None
    except (yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the compiler's optimization record cannot be read: {error}") from error
    if lacking := [name for name in _FIGURES if name not in usage]:
        raise ValueError(f"the compiler's record does not state {', '.join(lacking)} of {symbol}")
    return CompilerRemarks(usage, tuple(unrolled), tuple(failed))


def disagreements(resources: KernelResources, remarks: CompilerRemarks) -> list[str]:
    """Describe each figure that differs from the compiler's. Both come from the same compilation."""
    usage = remarks.usage
    accumulation = usage["NumAGPR"]
    vector = usage["NumVGPR"]
    ours = {
        "SGPRs": (resources.sgprs, usage["NumSGPR"]),
        # In the shared register file, accumulation registers start at the next multiple of four.
        "VGPRs": (resources.vgprs, -(-vector // 4) * 4 + accumulation if accumulation else vector),
        "AGPRs": (resources.agprs, accumulation),
        "scratch bytes": (resources.scratch_bytes, usage["ScratchSize"]),
        "dynamic stack": (int(resources.dynamic_stack), usage["DynamicStack"]),
        "occupancy": (waves_per_simd(resources), usage["Occupancy"]),
        "SGPR spills": (resources.sgpr_spills, usage["SGPRSpill"]),
        "VGPR spills": (resources.vgpr_spills, usage["VGPRSpill"]),
        "LDS bytes": (resources.lds_bytes, usage["BytesLDS"]),
    }
    return [f"{name} {mine}, by the compiler {its}" for name, (mine, its) in ours.items() if mine != its]


def _number(value: str) -> int:
    return int(value == "True") if value in ("True", "False") else int(value)


_LIMITS: Final = Limits(memory_bytes=6 << 30, cpu_seconds=60, file_bytes=64 << 20)
#: Only ends processes that hang: the compiler's computation is limited in CPU time.
_LIMIT_SECONDS: Final = 3_600.0
_TOLD_BYTES: Final = 64 << 10
_TOLD_LINES: Final = 3
#: Inherits nothing from the user's environment, because CPATH or CCC_OVERRIDE_OPTIONS would change the compilation.
_ENVIRONMENT: Final = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C", "HIP_PLATFORM": "amd"}


class Runner:
    """Runs the programs of one toolchain in one folder, which keeps their files."""

    def __init__(self, toolchain: Toolchain, folder: Path) -> None:
        self.folder = folder
        self._environment = _ENVIRONMENT | {"HOME": str(folder), "TMPDIR": str(folder)}
        self._reach = Reach(_parts_of(toolchain))

    def step(self, command: Sequence[str]) -> None:
        """Run a command; Refused (`compile`) with its output if it fails or exceeds its limits."""
        said = self._run(command)
        if said is not None:
            raise Refused("compile", said)

    def prepare(self, command: Sequence[str]) -> None:
        """Run a command that does not depend on any source; UnavailableError if it fails."""
        said = self._run(command)
        if said is not None:
            raise UnavailableError(f"the compiler for AMD GPUs cannot be used: {said}")

    def printed(self) -> str:
        """Return the beginning of the last command's output."""
        with (self.folder / "log").open("rb") as stream:
            return stream.read(_TOLD_BYTES).decode(errors="replace")

    def _run(self, command: Sequence[str]) -> str | None:
        """Return None, or why it failed."""
        status = run_limited(
            command,
            self.folder,
            log=self.folder / "log",
            limit_seconds=_LIMIT_SECONDS,
            limits=_LIMITS,
            reach=self._reach,
            environment=self._environment,
        )
        name = Path(command[0]).name
        if status is None:
            return f"{name} took more than {_LIMIT_SECONDS:g} s"
        if status < 0:
            most = f"{_LIMITS.cpu_seconds} s of CPU time, {_LIMITS.memory_bytes >> 30} GiB of memory"
            return f"{name} ended with {ending(status)}; it may take {most}"
        return f"{name} ended with {ending(status)}: {self._told()}" if status else None

    def _told(self) -> str:
        lines = self.printed().splitlines()
        errors = [line for line in lines if "error:" in line] or [line for line in lines if line.strip()]
        said = "; ".join(line.strip()[:300] for line in errors[:_TOLD_LINES])
        return said.replace(f"{self.folder}{os.sep}", "") or "it says nothing"


@cache
def _parts_of(toolchain: Toolchain) -> tuple[Path, ...]:
    """Return all paths that a toolchain's programs read or run; missing ones are skipped."""
    programs = [toolchain.compiler[0], toolchain.linker[0], *toolchain.tools.values()]
    named = [toolchain.device_libraries, *toolchain.headers, toolchain.resource_folder]
    parts = {path.resolve() for path in named if path is not None}
    for program in programs:
        parts |= {*parts_of(program)}
    if toolchain.kind == "packages":  # zig's own libraries are next to it, not in a prefix
        parts.add(Path(toolchain.compiler[0]).resolve().parent)
    elif toolchain.rocm is not None:
        parts |= {*prefix_parts(toolchain.rocm.resolve() / "bin" / "clang++")}
    return tuple(sorted(parts))


@cache
def compiler_version(toolchain: Toolchain) -> str:
    """Return the first line of the compiler's version; UnavailableError if it prints none."""
    with tempfile.TemporaryDirectory() as name:
        runner = Runner(toolchain, Path(name))
        runner.prepare([*toolchain.compiler, "--version"])
        lines = runner.printed().strip().splitlines()
    if not lines:
        raise UnavailableError(f"{' '.join(toolchain.compiler)} --version says nothing; install the compiler again")
    return lines[0]


_CONTROL: Final = "oclc_isa_version_{}.bc"
_STATED_VERSIONS: Final = {"gfx90a": 9010, "gfx942": 9402, "gfx950": 9500}
_MADE_OF: Final = {"gfx942": ("gfx940", 9400)}


def compile_command(toolchain: Toolchain, architecture: str, runner: Runner) -> list[str]:
    """Return the compiler with all options and paths for compiling a HIP source for one architecture.

    Raises UnavailableError if the toolchain does not support that architecture.
    """
    command = [
        *toolchain.compiler,
        "-x",
        "hip",
        "--cuda-device-only",
        f"--offload-arch={architecture}",
        "-fno-crash-diagnostics",
    ]
    command += ["-fsave-optimization-record", "-foptimization-record-file=kernel.yaml"]
    # The record contains the resources only if their remarks are requested as well.
    command += [f"-foptimization-record-passes={PASSES}", "-Rpass-analysis=kernel-resource-usage"]
    if toolchain.kind == "packages":
        return command + _packages_flags(toolchain, architecture, runner)
    libraries = _with_control_file(toolchain, architecture, runner)
    return [*command, f"--rocm-path={toolchain.rocm}", f"--rocm-device-lib-path={libraries}"]


def _with_control_file(toolchain: Toolchain, architecture: str, runner: Runner) -> Path:
    """Return the folder of device libraries, including the control file for the architecture's version.

    If only that file is missing, a folder next to the source gets links to the others and a file derived from that of
    an older architecture, from the cache: the two differ in one number.
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

    def build(made: Path) -> None:
        runner.prepare([toolchain.tools["llvm-dis"], str(model), "-o", "control.ll"])
        text = (runner.folder / "control.ll").read_text()
        wanted, instead = f"constant i32 {number}", f"constant i32 {_STATED_VERSIONS[architecture]}"
        if text.count(wanted) != 1:
            raise UnavailableError(f"{model} is not what it was in ROCm 5.2: it does not state {number} once")
        (runner.folder / "control.ll").write_text(text.replace(wanted, instead))
        runner.prepare([toolchain.tools["llvm-as"], "control.ll", "-o", "control.bc"])
        shutil.copyfile(runner.folder / "control.bc", made)

    control = own_code(f"device_libraries/{digest}/{name}", build)
    folder = runner.folder.absolute() / "device_libraries"
    folder.mkdir()
    for one in libraries.glob("*.bc"):
        (folder / one.name).symlink_to(one.absolute())
    shutil.copyfile(control, folder / name)
    return folder


def _packages_flags(toolchain: Toolchain, architecture: str, runner: Runner) -> list[str]:
    """Name all paths of the compiler's own headers and bitcode, because zig leaves them out."""
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
    runner.prepare([*toolchain.compiler, *target, "-x", "ir", "-emit-llvm", "-c", "control.ll", "-o", "control.bc"])
    flags = ["-nogpulib", "-nogpuinc", "-resource-dir", str(toolchain.resource_folder), "-nostdinc", "-nostdinc++"]
    for folder in toolchain.headers:
        flags += ["-isystem", str(folder)]
    flags += ["-D__HIP_PLATFORM_AMD__", "-include", "__clang_hip_runtime_wrapper.h", "-mcode-object-version=5"]
    for bitcode in (toolchain.device_libraries / "ocml.bc", toolchain.device_libraries / "ockl.bc", Path("control.bc")):
        flags += ["-Xclang", "-mlink-builtin-bitcode", "-Xclang", str(bitcode)]
    return flags


#: The source's name for the compiler, which also appears in its remarks.
SOURCE_NAME: Final = "kernel.hip"
_OPTIONS: Final = ("-O3",)
_EMPTY_KERNEL: Final = (
    b'#include <hip/hip_runtime.h>\nextern "C" __global__ void probe(float *p) { p[threadIdx.x] += 1.0f; }\n'
)


@dataclass(frozen=True)
class StaticBuild:
    """A compiled kernel: the code object to load, its resources and the compiler's remarks.

    `flags` are all options that affect the code, without paths. `disagreements` describes figures that differ from the
    compiler's: it is empty unless the code object was misread, or occupancy is calculated differently.
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


@dataclass(frozen=True)
class CompiledFiles:
    """Files of a compilation: the object before and after linking, and the compiler's optimization record."""

    relocatable: Path
    code_object: Path
    record: Path


def compile_kernel(
    toolchain: Toolchain, source: bytes, kernel: str, architecture: str, folder: Path, *, flags: Sequence[str] = ()
) -> StaticBuild:
    """Compile a source at -O3 and read the resources of one of its kernels; `folder` gets the code object.

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
        made = compile_files(toolchain, source, architecture, scratch, flags=flags)
        try:
            resources, symbol = kernel_resources(made.relocatable.read_bytes(), kernel)
        except CodeObjectError as error:
            raise Refused("kernel", str(error)) from error
        try:
            remarks = read_remarks(made.record.read_bytes(), symbol, SOURCE_NAME)
        except ValueError as error:
            raise Refused("compile", str(error)) from error
        digest = hashlib.sha256(source).hexdigest()
        artefact = folder / f"{architecture}-{digest[:16]}.hsaco"
        made.code_object.replace(artefact)
    return StaticBuild(
        architecture=architecture,
        kernel=kernel,
        artefact=artefact,
        source_sha256=digest,
        compiler=compiler_version(toolchain),
        flags=(f"--offload-arch={architecture}", *_OPTIONS, *flags),
        resources=resources,
        remarks=remarks,
        disagreements=tuple(disagreements(resources, remarks)),
    )


def why_no_kernel(toolchain: Toolchain, architecture: str, folder: Path, flags: Sequence[str]) -> str | None:
    """Return the reason why a toolchain cannot compile an empty kernel for an architecture; None if it can.

    `folder` receives the compiled files.
    """
    with _scratch(folder) as scratch:
        try:
            compile_kernel(toolchain, _EMPTY_KERNEL, "probe", architecture, scratch, flags=flags)
        except (Refused, UnavailableError) as error:
            return str(error)
    return None


def compile_files(
    toolchain: Toolchain, source: bytes, architecture: str, folder: Path, *, flags: Sequence[str] = ()
) -> CompiledFiles:
    """Compile a source into an empty, private folder. Raises Refused and UnavailableError as above."""
    (folder / SOURCE_NAME).write_bytes(source)
    made = CompiledFiles(folder / "kernel.o", folder / "kernel.hsaco", folder / "kernel.yaml")
    runner = Runner(toolchain, folder)
    front = compile_command(toolchain, architecture, runner)
    runner.step([*front, *_OPTIONS, *flags, "-S", SOURCE_NAME, "-o", "kernel.s"])
    target = ("-target", "amdgcn-amd-amdhsa", f"-mcpu={architecture}", "-x", "assembler")
    runner.step([*toolchain.compiler, *target, "-c", "kernel.s", "-o", made.relocatable.name])
    runner.step([*toolchain.linker, "--no-undefined", "-shared", made.relocatable.name, "-o", made.code_object.name])
    return made


def kernel_resources(relocatable: bytes, kernel: str) -> tuple[KernelResources, str]:
    """Return a kernel's resources from a relocatable code object, and its symbol. CodeObjectError if unreadable."""
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


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    name = tempfile.mkdtemp(prefix=".compile-", dir=folder)
    try:
        yield Path(name)
    finally:
        shutil.rmtree(name, ignore_errors=True)
