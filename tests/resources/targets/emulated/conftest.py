"""An emulator that stands in for the user's, in a folder that looks like a checkout."""

import shutil
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from aaco_pipeline.optimization.targets import Buffer, Call, Launch
from aaco_pipeline.resources.targets.emulated.finding import VARIABLE, Emulator, find_emulator
from aaco_pipeline.resources.targets.emulated.program import Program
from aaco_pipeline.resources.targets.emulated.target import EmulatorProcess, started
from aaco_pipeline.resources.toolchains.amdgpu.code_object import KernelArgument, KernelMetadata

STAND_IN = Path(__file__).with_name("stand_in_emulator.py")
HOSTILE = Path(__file__).with_name("hostile_emulator.py")
#: Two wavefronts in each of two workgroups.
LAUNCH = Launch((2, 1, 1), (128, 1, 1))
Started = Callable[..., AbstractContextManager[EmulatorProcess]]


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that looks like a checkout of tinygrad, with the stand-in for its emulator."""
    folder = tmp_path_factory.mktemp("checkout")
    for package in ("test/mockgpu/amd", "tinygrad/renderer/amd"):
        (folder / package).mkdir(parents=True)
        for part in (folder / package, *(folder / package).parents):
            if part.is_relative_to(folder) and part != folder:
                (part / "__init__.py").touch()
    shutil.copyfile(STAND_IN, folder / "test/mockgpu/amd/emu.py")
    (folder / "tinygrad/renderer/amd/__init__.py").write_text(
        "from test.mockgpu.amd.emu import decode_inst as decode_inst\n"
    )
    return folder


@pytest.fixture
def emulator(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Emulator:
    """The stand-in as the user's setting names it, on a host that has clang."""
    monkeypatch.setenv(VARIABLE, str(checkout))
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    found = find_emulator()
    assert isinstance(found, Emulator)
    return found


def program(*words: int, lds_bytes: int = 16) -> Program:
    """A kernel of the stand-in's instructions, with one argument: a buffer of 32-bit words."""
    image = struct.pack(f"<{len(words)}I", *words)
    arguments = (KernelArgument("global_buffer", 0, 8),)
    kernel = KernelMetadata("k", 4, 0, 4, 0, 0, lds_bytes, 0, 8, 256, 64, False, arguments)
    return Program(image, 0, (0, len(image)), (), ("arguments.0", "arguments.1"), (2,), 64, kernel)


def call(elements: int = 2) -> Call:
    """A call with an output of so many words."""
    return Call(LAUNCH, (Buffer("out", "uint32", elements, "out"),), {})


@contextmanager
def hostile(way: str, folder: Path, seconds: float = 20.0) -> Iterator[EmulatorProcess]:
    """A program that answers a launch in a way of its own, with a kernel loaded."""
    with started((sys.executable, "-I", "-S", str(HOSTILE), way), {}, "gfx950", (), seconds) as process:
        process.load(program(0), folder / "image")
        yield process


@pytest.fixture
def load(emulator: Emulator, tmp_path: Path) -> Started:
    """Starts the driver with the stand-in and loads a kernel of these instructions."""

    @contextmanager
    def starting(*words: int, seconds: float = 20.0, lds_bytes: int = 16) -> Iterator[EmulatorProcess]:
        given = (emulator.command, dict(emulator.environment), "gfx950", (tmp_path, *emulator.readable), seconds)
        with started(*given) as process:
            process.load(program(*words, lds_bytes=lds_bytes), tmp_path / "image")
            yield process

    return starting
