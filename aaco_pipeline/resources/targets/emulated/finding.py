"""Find the user's emulator of AMD GPUs: a checkout of tinygrad that an environment variable names.

Its instruction emulator is pure Python but for the host's LLVM; it comes with no package, so a checkout is needed.
"""

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: The folder of a checkout of tinygrad.
VARIABLE: Final = "AACO_EMULATOR"
INSTALL: Final = (
    f"git clone https://github.com/tinygrad/tinygrad, then {VARIABLE}=the checkout's folder; it needs clang and libLLVM"
)
_EMULATOR: Final = Path("test/mockgpu/amd/emu.py")
_MODULE: Final = "aaco_pipeline.resources.targets.emulated.driver"
_PACKAGE_FOLDER: Final = Path(__file__).parents[4]
_COMPILERS: Final = ("clang", *(f"clang-{version}" for version in range(22, 13, -1)))
#: What says where the host's LLVM lies; nothing else of the environment reaches the emulator.
_KEPT_VARIABLES: Final = ("PATH", "LD_LIBRARY_PATH", "LLVM_PATH")


@dataclass(frozen=True)
class Emulator:
    """An emulator to start: its command, its whole environment, its readable paths, and its name."""

    name: str
    command: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    readable: tuple[Path, ...]


@dataclass(frozen=True)
class NoEmulator:
    """No emulator of AMD GPUs: why, and what would bring one."""

    reason: str
    fix: str = INSTALL


def find_emulator() -> Emulator | NoEmulator:
    """The emulator that the variable names, by its files alone; else what is missing."""
    stated = os.environ.get(VARIABLE, "").strip()
    if not stated:
        return NoEmulator(f"{VARIABLE} is not set")
    checkout = Path(stated).expanduser().resolve()
    if not (checkout / _EMULATOR).is_file():
        return NoEmulator(f"{VARIABLE} names {checkout}, which has no {_EMULATOR}")
    compiler = next((found for name in _COMPILERS if (found := shutil.which(name))), None)
    if compiler is None:
        return NoEmulator("tinygrad's emulator needs clang, and none is on PATH")
    environment = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ} | {
        "PYTHONPATH": f"{checkout}{os.pathsep}{_PACKAGE_FOLDER}",
        "PYTHONDONTWRITEBYTECODE": "1",
        # Instructions become host code in the process itself, by LLVM; clang only makes what the device starts with.
        "DEV": "CPU:LLVM",
        "CC": compiler,
        "CACHELEVEL": "0",
    }
    command = (sys.executable, "-P", "-m", _MODULE)
    return Emulator(f"tinygrad{_revision(checkout)}", command, tuple(sorted(environment.items())), (checkout,))


def availability() -> str:
    """One line for people: whether kernels can be emulated here, and with what, or how to have it."""
    found = find_emulator()
    if isinstance(found, Emulator):
        return f"emulated gfx950: available, with {found.name} in {found.readable[0]}"
    return f"emulated gfx950: not available ({found.reason}); to have it: {found.fix}"


def _revision(checkout: Path) -> str:
    """The checkout's commit in short, where git's own files say it."""
    try:
        head = (checkout / ".git" / "HEAD").read_text().strip()
        if head.startswith("ref: "):
            head = (checkout / ".git" / head.removeprefix("ref: ")).read_text().strip()
    except OSError:
        return ""
    return f" {head[:12]}" if head.isalnum() else ""
