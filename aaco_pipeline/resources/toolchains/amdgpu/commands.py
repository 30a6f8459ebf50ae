"""What a toolchain's compiler is told: where HIP's headers and the bitcode of device functions lie.

Bitcode is linked with constants that say which architecture it is for. Device libraries that are older than an
architecture are given its constants, by one number changed in those of the next older one.
"""

import hashlib
import shutil
from pathlib import Path
from typing import Final

from aaco_pipeline.cache_folder import own_code
from aaco_pipeline.errors import UnavailableError
from aaco_pipeline.resources.toolchains.amdgpu.finding import Toolchain
from aaco_pipeline.resources.toolchains.amdgpu.remarks import PASSES
from aaco_pipeline.resources.toolchains.amdgpu.running import Runner

_CONTROL: Final = "oclc_isa_version_{}.bc"
_STATED_VERSIONS: Final = {"gfx90a": 9010, "gfx942": 9402, "gfx950": 9500}
_MADE_OF: Final = {"gfx942": ("gfx940", 9400)}


def compile_command(toolchain: Toolchain, architecture: str, runner: Runner) -> list[str]:
    """The compiler with all that a HIP source needs to be compiled for one architecture.

    UnavailableError when the toolchain has nothing for that architecture.
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
    # The resources go into the record only where their remarks are asked for, too.
    command += [f"-foptimization-record-passes={PASSES}", "-Rpass-analysis=kernel-resource-usage"]
    if toolchain.kind == "packages":
        return command + _packages_flags(toolchain, architecture, runner)
    libraries = _with_control_file(toolchain, architecture, runner)
    return [*command, f"--rocm-path={toolchain.rocm}", f"--rocm-device-lib-path={libraries}"]


def _with_control_file(toolchain: Toolchain, architecture: str, runner: Runner) -> Path:
    """The folder of device libraries, with the file that names the architecture's version to them.

    Where only that file is missing, a folder beside the source has links to the others and one made of an older
    architecture's, from the cache: the two differ in one number.
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
    runner.prepare([*toolchain.compiler, *target, "-x", "ir", "-emit-llvm", "-c", "control.ll", "-o", "control.bc"])
    flags = ["-nogpulib", "-nogpuinc", "-resource-dir", str(toolchain.resource_folder), "-nostdinc", "-nostdinc++"]
    for folder in toolchain.headers:
        flags += ["-isystem", str(folder)]
    flags += ["-D__HIP_PLATFORM_AMD__", "-include", "__clang_hip_runtime_wrapper.h", "-mcode-object-version=5"]
    for bitcode in (toolchain.device_libraries / "ocml.bc", toolchain.device_libraries / "ockl.bc", Path("control.bc")):
        flags += ["-Xclang", "-mlink-builtin-bitcode", "-Xclang", str(bitcode)]
    return flags
