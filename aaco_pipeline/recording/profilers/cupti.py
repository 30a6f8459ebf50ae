"""NVIDIA's CUPTI for a program: find headers and library, compile the injected library, set the environment.

`injection.cpp` is the library inside the program; its output is read by
`aaco_pipeline.formats.cupti`.
"""

import ctypes
import hashlib
import os
import pkgutil
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aaco_pipeline.cache_folder import own_code
from aaco_pipeline.errors import UnavailableError
from aaco_pipeline.recording.profilers import ncu

#: Folder of the streams within a recording.
STREAMS: Final = "cupti"
_DRIVER: Final = "libcuda.so.1"
_COMPILERS: Final = ("g++", "c++", "clang++")
_ASK_SECONDS: Final = 60.0
#: Runs a program with a limit of two minutes of CPU time.
_LIMITED: Final = ("/bin/sh", "-c", 'ulimit -t 120 && exec "$@"', "sh")
_FLAGS: Final = ("-x", "c++", "-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden")
#: The program may bring a libstdc++ older than the compiler's, so the library links its own and hides the symbols.
_OWN_RUNTIME: Final = ("-static-libstdc++", "-static-libgcc", "-Wl,--exclude-libs,ALL")
#: Linker names of the libraries that are missing if only the shared runtime is installed.
_NO_STATIC_RUNTIME: Final = (b"stdc++", b"libgcc")
#: A folder without these files does not contain the CUPTI headers.
_OWN_HEADERS: Final = ("cupti_version.h", "cupti_activity.h", "cupti_callbacks.h", "cupti_result.h")
#: CUDA headers that CUPTI's headers include.
_CUDA_HEADERS: Final = ("cuda.h", "builtin_types.h")
_API_VERSION: Final = re.compile(r"^\s*#\s*define\s+CUPTI_API_VERSION\s+(\d{1,9})", re.MULTILINE)
#: `CUPTI_API_VERSION` of CUDA 12.0, and the value from which it follows CUDA's numbering (130001 is 13.0 update 1).
_FIRST_OF_12: Final = 18
_AS_CUDA: Final = 10_000


@dataclass(frozen=True)
class Cupti:
    """A CUPTI to build against: header folders, its library, and the CUDA major version of both."""

    includes: tuple[Path, ...]
    library: Path
    major: int
    api_version: int


@dataclass(frozen=True)
class Injection:
    """The compiled library, and the CUPTI that it loads if the program has not loaded one."""

    library: Path
    cupti: Cupti

    def environment(self, folder: Path) -> dict[str, str]:
        """Return the environment variables that make every process of the program write a stream into `folder`."""
        return {
            "CUDA_INJECTION64_PATH": str(self.library),
            "NVTX_INJECTION64_PATH": str(self.library),
            "AACO_CUPTI_FOLDER": str(folder.absolute()),
            "AACO_CUPTI_LIBRARY": str(self.cupti.library),
        }

    def around(self, program: Sequence[str], folder: Path) -> tuple[str, ...]:
        """Return the command unchanged: environment variables load the library into the program's processes."""
        return tuple(program)

    @property
    def version(self) -> str:
        return str(self.cupti.api_version)

    def counting(
        self, sets: str, first: int | None, known: object, environment: Mapping[str, str]
    ) -> tuple[ncu.Counting, ...]:
        """Return the run in which ncu counts the sets, for the `first` launches of each kernel if given. AacoError."""
        return ncu.counting(sets, first, environment)


def prepared(command: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> Injection:
    """Return the injection library for the program of `command`, compiled unless it is cached.

    Args:
        command: the program's command line: of a Python program its interpreter's packages are searched first, because
            it is their CUPTI that the program loads.
        environment: where CUDA_HOME, PATH and the like are looked up; this process's without one.

    Raises:
        UnavailableError: no driver, compiler, headers or library, or it does not compile; says what to do.
    """
    known = os.environ if environment is None else environment
    driver = _driver_major()
    if driver is None:
        raise UnavailableError(f"no NVIDIA driver on this host: {_DRIVER} cannot be loaded")
    compiler = next(filter(None, (shutil.which(name, path=known.get("PATH")) for name in _COMPILERS)), None)
    if compiler is None:
        raise UnavailableError("no C++ compiler to build the CUPTI injection library with; install g++, or --trace off")
    found = list(candidates(known, python_folders(command, known)))
    usable = [one for one in found if one.major <= driver]
    if not usable:
        raise UnavailableError(_nothing_usable(found, driver))
    # A wheel with CUPTI's headers includes headers from other wheels, which may not be installed.
    elsewhere = tuple(dict.fromkeys(folder for one in found for folder in one.includes))
    reasons = []
    for cupti in usable:
        try:
            return Injection(compiled(compiler, cupti, elsewhere), cupti)
        except UnavailableError as error:
            reasons.append(str(error))
    raise UnavailableError(reasons[0])


def _nothing_usable(found: Sequence[Cupti], driver: int) -> str:
    if found:
        majors = ", ".join(sorted({str(one.major) for one in found}))
        return (
            f"the CUPTI found is of CUDA {majors}, newer than the driver's CUDA {driver}: update the driver, or "
            f"pip install nvidia-cuda-cupti-cu{driver} nvidia-cuda-runtime-cu{driver} for the program's Python"
        )
    return (
        "no CUPTI of CUDA 12 or later (headers and libcupti.so): set CUDA_HOME to a CUDA toolkit, or pip install "
        "nvidia-cuda-cupti nvidia-cuda-runtime nvidia-cuda-crt for the program's Python"
    )


def _driver_major() -> int | None:
    """Return the major version of CUDA that the driver supports; None without a driver."""
    try:
        driver = ctypes.CDLL(_DRIVER)
        version = ctypes.c_int()
        status = int(driver.cuDriverGetVersion(ctypes.byref(version)))
    except (OSError, AttributeError):
        return None
    return version.value // 1000 if status == 0 else None


def python_folders(command: Sequence[str], environment: Mapping[str, str]) -> list[Path]:
    """Return the package folders of the Python that runs `command`, then this interpreter's, without duplicates."""
    folders = []
    interpreter = _interpreter(command, environment)
    if interpreter is not None:
        question = [interpreter, "-c", "import sys; print(*filter(None, sys.path), sep='\\n')"]
        try:
            asked = subprocess.run(
                question, capture_output=True, text=True, timeout=_ASK_SECONDS, env=dict(environment), check=False
            )
            folders = asked.stdout.splitlines() if asked.returncode == 0 else []
        except (OSError, subprocess.TimeoutExpired):
            pass  # the program itself will report a faulty interpreter
    return [Path(folder) for folder in dict.fromkeys([*folders, *filter(None, sys.path)])]


def _interpreter(command: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """Return the Python that runs the command: its first word, or the interpreter in the script's first line."""
    program = shutil.which(command[0], path=environment.get("PATH")) if command else None
    if program is None:
        return None
    if re.fullmatch(r"python[\d.]*t?", Path(program).name):
        return program
    try:
        with Path(program).open("rb") as file:
            first = file.readline(512)
    except OSError:
        return None
    words = first[2:].decode(errors="replace").split() if first.startswith(b"#!") else []
    named = [word for word in words if re.fullmatch(r"python[\d.]*t?", Path(word).name)]
    return shutil.which(named[0], path=environment.get("PATH")) if named else None


def candidates(environment: Mapping[str, str], packages: Iterable[Path]) -> Iterator[Cupti]:
    """Return every CUPTI of CUDA 12 or later on this host: Python packages first, then toolkits, newest first."""
    for folder in packages:
        wheels = [*sorted(folder.glob("nvidia/cu[1-9][0-9]"), reverse=True), folder / "nvidia" / "cuda_cupti"]
        cuda = [folder / "nvidia" / "cuda_runtime" / "include"]
        for wheel in wheels:
            yield from _at(wheel, (wheel / "include", *cuda), (wheel / "lib",))
        triton = folder / "triton" / "backends" / "nvidia"
        if (triton / "include").is_dir():  # headers only: the library comes from a wheel next to it
            yield from _at(
                triton, (triton / "include", *cuda), (*(one / "lib" for one in wheels), triton / "lib/cupti")
            )
    named = [Path(place) for name in ("CUDA_HOME", "CUDA_PATH") if (place := environment.get(name))]
    installed = sorted(Path("/usr/local").glob("cuda-[1-9]*"), key=_numbers, reverse=True)
    for root in dict.fromkeys([*named, Path("/usr/local/cuda"), *installed, Path("/opt/cuda")]):
        targets = sorted(root.glob("targets/*"))
        extras = root / "extras" / "CUPTI"
        includes = (root / "include", *(one / "include" for one in targets), extras / "include")
        libraries = (*(one / "lib" for one in targets), root / "lib64", root / "lib", extras / "lib64")
        yield from _at(root, includes, libraries)


def _numbers(path: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d{1,6}", path.name)]


def _at(root: Path, includes: Sequence[Path], libraries: Sequence[Path]) -> Iterator[Cupti]:
    """Return the CUPTI in one place if its headers are complete and a library of their major version is beside them."""
    own = next((folder for folder in includes if all((folder / name).is_file() for name in _OWN_HEADERS)), None)
    if own is None:
        return
    try:
        stated = _API_VERSION.search((own / "cupti_version.h").read_text(errors="replace"))
    except OSError:
        return
    version = int(stated[1]) if stated else 0
    if version < _FIRST_OF_12:
        return
    major = version // _AS_CUDA if version >= _AS_CUDA else 12
    needed = [next((folder for folder in includes if (folder / name).is_file()), None) for name in _CUDA_HEADERS]
    names = (f"libcupti.so.{major}", "libcupti.so")
    library = next((folder / name for folder in libraries for name in names if (folder / name).is_file()), None)
    if library is not None and None not in needed:
        folders = dict.fromkeys([own, *(folder for folder in needed if folder is not None)])
        yield Cupti(tuple(folders), library.resolve(), major, version)


def compiled(compiler: str, cupti: Cupti, elsewhere: Sequence[Path] = ()) -> Path:
    """Return the injection library built by this compiler against these headers; one build per combination.

    Headers that are missing from these folders come from the folders `elsewhere`. Concurrent builds both succeed,
    because each moves a complete file into place. Raises UnavailableError with the compiler's first error.
    """
    source = pkgutil.get_data(__package__, "injection.cpp")
    if source is None:
        raise UnavailableError(f"{__package__}: injection.cpp is missing; install aaco_pipeline again")
    content = hashlib.sha256(source)
    for name in (*_OWN_HEADERS, "cupti_activity_deprecated.h", *_CUDA_HEADERS):
        found = next((folder / name for folder in cupti.includes if (folder / name).is_file()), None)
        content.update(found.read_bytes() if found else b"none")
    content.update(_compiler_version(compiler).encode())
    return own_code(
        f"cupti/{content.hexdigest()[:32]}.so", lambda made: _compile(compiler, cupti, source, made, elsewhere)
    )


def _compiler_version(compiler: str) -> str:
    asking = [compiler, "--version"]
    try:
        asked = subprocess.run(asking, capture_output=True, text=True, timeout=_ASK_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"{compiler} does not run: {error}; install g++") from error
    return f"{compiler}\n{asked.stdout}"


def _compile(compiler: str, cupti: Cupti, source: bytes, target: Path, elsewhere: Sequence[Path]) -> None:
    includes = [f"-I{folder}" for folder in cupti.includes] + [f"-idirafter{folder}" for folder in elsewhere]
    errors = b""
    for runtime in (_OWN_RUNTIME, ()):  # if no static libstdc++ is available, use the host's
        command = [compiler, *_FLAGS, *includes, "-", "-o", str(target), *runtime, "-lpthread", "-ldl"]
        done = subprocess.run([*_LIMITED, *command], input=source, capture_output=True, check=False)
        if done.returncode == 0:
            return
        errors = errors or done.stderr
        if not any(word in done.stderr for word in _NO_STATIC_RUNTIME):
            break
    lines = errors.decode(errors="replace").splitlines()
    first = next((line for line in lines if "error" in line), lines[0] if lines else "no message")
    raise UnavailableError(
        f"{compiler} cannot build the CUPTI injection library against {cupti.includes[0]}: {first.strip()}; "
        "set CUDA_HOME to a whole CUDA toolkit"
    )
