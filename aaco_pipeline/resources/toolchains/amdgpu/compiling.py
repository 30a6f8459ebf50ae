"""One kernel of a HIP source compiled for one architecture, under limits, in a folder of its own.

In three steps, the same with every toolchain: to assembly, to a relocatable object (whose machine code is compared,
since addresses are not filled in), to a code object. Nothing is run on a GPU.
"""

import hashlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.guards.resources import KernelResources
from aaco_pipeline.resources.toolchains.amdgpu.code_object import CodeObject, CodeObjectError
from aaco_pipeline.resources.toolchains.amdgpu.commands import compile_command
from aaco_pipeline.resources.toolchains.amdgpu.finding import Toolchain
from aaco_pipeline.resources.toolchains.amdgpu.machine_code import code_sha256
from aaco_pipeline.resources.toolchains.amdgpu.remarks import CompilerRemarks, disagreements, read_remarks
from aaco_pipeline.resources.toolchains.amdgpu.running import Runner, compiler_version

#: What the source is called to the compiler, and so in its remarks.
SOURCE_NAME: Final = "kernel.hip"
_OPTIONS: Final = ("-O3",)


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


@dataclass(frozen=True)
class CompiledFiles:
    """What a compilation leaves: the object before and after it was linked, and the compiler's optimization record."""

    relocatable: Path
    code_object: Path
    record: Path


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


def compile_files(
    toolchain: Toolchain, source: bytes, architecture: str, folder: Path, *, flags: Sequence[str] = ()
) -> CompiledFiles:
    """Compile a source into an empty folder, which nobody else uses. Refused and UnavailableError as above."""
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


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    name = tempfile.mkdtemp(prefix=".compile-", dir=folder)
    try:
        yield Path(name)
    finally:
        shutil.rmtree(name, ignore_errors=True)
