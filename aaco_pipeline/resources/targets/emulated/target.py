"""The target `amd-emulated`: a real AMD code object, and a fresh confined process that emulates it, without time."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from aaco_pipeline.errors import UnavailableError
from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.targets import Build, Layout, Parameter
from aaco_pipeline.resources.targets.emulated.finding import Emulator, NoEmulator, find_emulator
from aaco_pipeline.resources.targets.emulated.process import EmulatorProcess, started
from aaco_pipeline.resources.targets.emulated.program import read_program
from aaco_pipeline.resources.toolchains.amdgpu.compiling import compile_kernel
from aaco_pipeline.resources.toolchains.amdgpu.finding import Toolchain, find_toolchains

#: In the order in which one is taken. The emulator knows the instructions of gfx950, and those of gfx942 among them.
ARCHITECTURES: Final = ("gfx950", "gfx942")
#: How long an answer may take by the clock; what it computes is limited in CPU time, and the host may be busy.
DEADLINE_SECONDS: Final = 7_200.0
_PROBE: Final = (
    b'#include <hip/hip_runtime.h>\nextern "C" __global__ void probe(float *p) { p[threadIdx.x] += 1.0f; }\n'
)


@dataclass(frozen=True)
class EmulatedTarget:
    """One architecture, the toolchain that compiles for it, and the emulator that runs what it made.

    `flags` are the user's own. What a build computes here says what the instructions mean to the emulator: a division,
    a root, an exponential are the host's, and their last bits need not be a GPU's.
    """

    emulator: Emulator
    toolchain: Toolchain
    architecture: str
    flags: tuple[str, ...] = ()
    deadline_seconds: float = DEADLINE_SECONDS

    @property
    def name(self) -> Literal["amd-emulated"]:
        return "amd-emulated"

    @property
    def executed_on(self) -> str:
        return f"emulated {self.architecture} ({self.emulator.name})"

    @property
    def clock(self) -> str:
        return "none: what an emulator takes says nothing of a GPU's time"

    @property
    def wavefront_size(self) -> int:
        return 64

    def build(self, source: bytes, kernel: str, parameters: Sequence[Parameter], layout: Layout, folder: Path) -> Build:
        """The code object of a source; a layout changes nothing of it. Refused (guards `compile`, `kernel`)."""
        folder.mkdir(parents=True, exist_ok=True)
        built = compile_kernel(self.toolchain, source, kernel, self.architecture, folder, flags=self.flags)
        return Build(
            target=self.name,
            kernel=kernel,
            artefact=built.artefact,
            source_sha256=built.source_sha256,
            code_sha256=built.resources.code_sha256,
            compiler=built.compiler,
            flags=built.flags,
            layout=layout,
        )

    @contextmanager
    def start(self, build: Build) -> Iterator[EmulatorProcess]:
        """A fresh confined process with the build loaded. NotEmulated where the emulator cannot load it."""
        program = read_program(build.artefact.read_bytes(), build.kernel)
        with tempfile.TemporaryDirectory(prefix="aaco-emulated-") as name:
            folder, emulator = Path(name), self.emulator
            readable = (folder, *emulator.readable)
            environment = dict(emulator.environment)
            with started(emulator.command, environment, self.architecture, readable, self.deadline_seconds) as process:
                process.load(program, folder / "image")
                yield process


def emulated_target(folder: Path, *, flags: Sequence[str] = ()) -> EmulatedTarget | NoEmulator:
    """The user's emulator with the first architecture that a compiler here makes code for, or why there is none.

    `folder` is the caller's, and takes what is compiled. Nothing is emulated yet.
    """
    emulator = find_emulator()
    if isinstance(emulator, NoEmulator):
        return emulator
    toolchains = find_toolchains()
    for architecture in ARCHITECTURES:
        for toolchain in toolchains:
            if _compiles(toolchain, architecture, folder, flags):
                return EmulatedTarget(emulator, toolchain, architecture, tuple(flags))
    return NoEmulator(f"no compiler for {' or '.join(ARCHITECTURES)}", "see the static verdict")


def _compiles(toolchain: Toolchain, architecture: str, folder: Path, flags: Sequence[str]) -> bool:
    with tempfile.TemporaryDirectory(dir=folder) as name:
        try:
            compile_kernel(toolchain, _PROBE, "probe", architecture, Path(name), flags=flags)
        except (Refused, UnavailableError):
            return False
    return True
