"""The target `amd-emulated`: a real AMD code object, and a fresh confined process that emulates it, without time.

The process runs `driver`. Everything it returns is checked here, because it ran untrusted code.
"""

import base64
import json
import mmap
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

import numpy as np

from aaco_pipeline.errors import UnavailableError
from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.targets import Buffer, Build, Call, Content, Execution, Layout, NotEmulated, Parameter
from aaco_pipeline.resources.targets import AnsweringProcess, answering_process
from aaco_pipeline.resources.targets.emulated.program import Program, argument_bytes, dispatch_packet, read_program
from aaco_pipeline.resources.toolchains.amdgpu.compiling import compile_kernel, why_no_kernel
from aaco_pipeline.resources.toolchains.amdgpu.finding import (
    Emulator,
    NoEmulator,
    Toolchain,
    find_emulator,
    find_toolchains,
)
from aaco_pipeline.resources.toolchains.limited import ending

_MEMORY_BYTES: Final = 4 << 30
_CPU_SECONDS: Final = 120
_MOST_ANSWER_BYTES: Final = 256 << 20
_MOST_TOLD: Final = 400
_ENDING_SECONDS: Final = 20.0
#: Instructions that one launch's wavefronts may execute: some seconds of the emulator's time.
MOST_INSTRUCTIONS: Final = 1_000_000
#: Bit patterns that are neither a meaningful float nor a small integer; the second is the complement of the first.
_POISONS: Final = (0xA5, 0x5A)
_INSTRUCTION_CLASSES: Final = ("scalar", "vector", "matrix", "scalar_memory", "vector_memory", "lds", "control")


class EmulatorProcess:
    """A confined process of `driver`, or of another program with the same protocol, with one kernel loaded.

    The first refusal ends it, and all later calls are refused. `instructions` counts those of the last call, by class.
    """

    def __init__(self, process: AnsweringProcess, seconds: float) -> None:
        self.channel = process
        self._seconds = seconds
        self._program: Program | None = None
        self._ended: Exception | None = None
        self.instructions: Mapping[str, int] = {}
        self.unconfined: tuple[str, ...] = ()

    def open(self, architecture: str, readable: Sequence[Path]) -> None:
        """Load the emulator and confine the process. UnavailableError if it cannot be used."""
        try:
            answer = self._ask(
                "open",
                {
                    "architecture": architecture,
                    "readable": [str(path) for path in readable],
                    "memory_bytes": _MEMORY_BYTES,
                    "cpu_seconds": _CPU_SECONDS,
                },
            )
        except (Refused, NotEmulated) as error:
            raise UnavailableError(f"the emulator cannot be used: {error}") from error
        said = answer.get("unconfined")
        if not isinstance(said, list) or not all(isinstance(one, str) for one in said):
            raise UnavailableError("the emulator cannot be used: it does not say whether it is confined")
        self.unconfined = tuple(said)

    def load(self, program: Program, image: Path) -> None:
        """Load a kernel; `image` is a file with the program's image, which the process may read."""
        image.write_bytes(program.image)
        self._program = program
        self._ask(
            "load",
            {
                "image": str(image),
                "entry": program.entry,
                "code": program.code,
                "writable": program.writable,
                "user_registers": program.user_registers,
                "group_registers": program.group_registers,
                "wavefront_size": program.wavefront_size,
                "progress": self.channel.shared,
            },
        )

    def run(self, call: Call) -> Execution:
        """Make one call, as described by `optimization.targets.Worker`; NotEmulated if it is not supported."""
        return self.emulate(call, backwards=False)

    def emulate(self, call: Call, *, backwards: bool) -> Execution:
        """Make one call with workgroups and their wavefronts in numerical order, or `backwards`."""
        if self._program is None:
            raise ValueError("no kernel is loaded")
        poison = _POISONS[backwards]
        content, addresses = argument_bytes(self._program, call)
        buffers = [one for one in call.arguments if isinstance(one, Buffer)]
        kernel = self._program.kernel
        answer = self._ask(
            "run",
            {
                "grid": [int(size) for size in call.launch.grid],
                "block": [int(size) for size in call.launch.block],
                "lds_bytes": kernel.lds_bytes + call.launch.dynamic_lds_bytes,
                "scratch_bytes": kernel.scratch_bytes,
                "arguments": content.hex(),
                "addresses": addresses,
                "packet": dispatch_packet(self._program, call.launch).hex(),
                "buffers": [_described(one, call.contents.get(one.name)) for one in buffers],
                "poison": poison,
                "backwards": backwards,
                "most_instructions": MOST_INSTRUCTIONS,
            },
        )
        try:
            return self._execution(answer, buffers, poison)
        except Refused as error:
            self._give_up(error)
            raise

    def _execution(self, answer: Mapping[str, Any], buffers: Sequence[Buffer], poison: int) -> Execution:
        if "trespass" in answer:
            raise Refused("memory", f"the kernel wrote beside {str(answer['trespass'])[:_MOST_TOLD]}")
        results, counts = answer.get("results"), answer.get("instructions")
        if not isinstance(results, list) or len(results) != len(buffers) or not isinstance(counts, dict):
            raise Refused("result", "the emulator's answer has not the form of one")
        if not all(name in _INSTRUCTION_CLASSES and _is_count(count) for name, count in counts.items()):
            raise Refused("result", "the emulator's answer counts what are no instructions")
        outputs = {
            buffer.name: _values(result, buffer)
            for buffer, result in zip(buffers, results, strict=True)
            if buffer.role != "in"
        }
        self.instructions = {name: counts.get(name, 0) for name in _INSTRUCTION_CLASSES}
        kept = {
            buffer.name: bytes([0xFF if _floating(buffer) else poison]) * np.dtype(buffer.dtype).itemsize
            for buffer in buffers
            if buffer.role == "out"
        }
        return Execution(outputs, None, poison=kept)

    def _ask(self, what: str, given: Mapping[str, Any]) -> dict[str, Any]:
        if self._ended is not None:
            raise self._ended
        nonce = self.channel.send({"do": what, "with": given})
        try:
            return self._answer(self._line(), nonce)
        except (Refused, NotEmulated) as error:
            self._give_up(error)
            raise

    def _answer(self, line: bytes, nonce: str) -> dict[str, Any]:
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise Refused("result", "the emulator's answer is no line of JSON") from error
        if not isinstance(answer, dict) or answer.get("nonce") != nonce:
            raise Refused("result", "the emulator answered what it was not asked")
        if "lacking" in answer:
            raise NotEmulated(str(answer["lacking"])[:_MOST_TOLD])
        if not isinstance(answer.get("ok"), dict):
            raise Refused("result", "the emulator's answer has not the form of one")
        return dict(answer["ok"])

    def _line(self) -> bytes:
        try:
            line = self.channel.line(self._seconds, _MOST_ANSWER_BYTES)
        except ValueError as error:
            raise Refused("result", f"the emulator's answer has more than {_MOST_ANSWER_BYTES} bytes") from error
        if line is None:
            raise NotEmulated(f"the emulator did not answer within {self._seconds:g} s{self._at()}")
        if not line:
            raise self._death()
        return line

    def _death(self) -> Exception:
        try:
            status = self.channel.process.wait(_ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            return NotEmulated("the emulator closed its answers and went on")
        if status == -signal.SIGSEGV and self._program is not None:
            return Refused("memory", f"the kernel touched memory that it was not given{self._at()}")
        if status == -signal.SIGXCPU:
            return NotEmulated(f"the emulator used more than {_CPU_SECONDS} s of CPU time{self._at()}")
        return NotEmulated(f"the emulator ended with {ending(status)}: {self.channel.last_words(_MOST_TOLD)}")

    def _at(self) -> str:
        """Locate the last instruction in the kernel's code, from the memory shared with the process."""
        if self._program is None:
            return ""
        with mmap.mmap(self.channel.shared, 8, access=mmap.ACCESS_READ) as place:
            offset = int.from_bytes(place[:], "little", signed=True) - self._program.code[0]
        return f", at byte {offset:#x} of its code" if 0 <= offset < self._program.code[1] else ""

    def _give_up(self, error: Exception) -> None:
        self._ended = error
        self.end()

    def end(self) -> None:
        """Kill it and all processes that it started, and wait until they are gone."""
        with suppress(ProcessLookupError):
            os.killpg(self.channel.process.pid, signal.SIGKILL)
        self.channel.process.wait(_ENDING_SECONDS)


@contextmanager
def started(
    command: Sequence[str], environment: Mapping[str, str], architecture: str, readable: Sequence[Path], seconds: float
) -> Iterator[EmulatorProcess]:
    """Start a fresh confined process of `command`, which gets its descriptors as arguments, for `architecture`.

    `environment` is complete except for temporary home and scratch folders. An answer may take `seconds`. Raises
    UnavailableError if it cannot be started or reports that it cannot be used.
    """

    def with_descriptors(answers: int, _: int) -> tuple[str, ...]:
        return (*command, str(answers), str(os.getpid()))

    with tempfile.TemporaryDirectory(prefix="aaco-emulator-") as name, ExitStack() as stack:
        home = {**environment, "HOME": name, "TMPDIR": name}
        try:
            process = stack.enter_context(answering_process(with_descriptors, home, Path(name)))
        except OSError as error:
            raise UnavailableError(f"the emulator cannot be started: {command[0]}: {error.strerror}") from error
        os.ftruncate(process.shared, 8)
        worker = EmulatorProcess(process, seconds)
        try:
            worker.open(architecture, [Path(name), *readable])
            yield worker
        finally:
            worker.end()


def _described(buffer: Buffer, content: Content | None) -> dict[str, Any]:
    values = None if content is None else np.ascontiguousarray(content, dtype=buffer.dtype).tobytes()
    size = np.dtype(buffer.dtype).itemsize * buffer.elements
    if values is not None and len(values) != size:
        raise ValueError(f"{buffer.name} has {size} bytes and was given {len(values)}")
    return {
        "size": size,
        "floating": _floating(buffer),
        "content": None if values is None else base64.b64encode(values).decode(),
        "result": buffer.role != "in",
    }


def _floating(buffer: Buffer) -> bool:
    return np.dtype(buffer.dtype).kind in "fc"


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_INSTRUCTIONS


def _values(result: object, buffer: Buffer) -> Content:
    try:
        content = base64.b64decode(result, validate=True) if isinstance(result, str) else b""
    except ValueError:
        content = b""
    dtype = np.dtype(buffer.dtype)
    if len(content) != dtype.itemsize * buffer.elements:
        raise Refused(
            "result", f"the emulator's answer has not the {dtype.itemsize * buffer.elements} bytes of {buffer.name}"
        )
    return np.frombuffer(content, dtype=dtype).copy()


#: In order of preference. The emulator implements gfx950, whose instructions include those of gfx942.
ARCHITECTURES: Final = ("gfx950", "gfx942")
#: Longest wall-clock time for an answer; its computation is limited in CPU time, and the host may be busy.
DEADLINE_SECONDS: Final = 7_200.0


@dataclass(frozen=True)
class EmulatedTarget:
    """One architecture, the toolchain that compiles for it, and the emulator that runs the result.

    `flags` are the user's own. Results show what the emulator computes: divisions, roots and exponentials are the
    host's, and their last bits may differ from a GPU's.
    """

    emulator: Emulator
    toolchain: Toolchain
    architecture: str
    flags: tuple[str, ...] = ()
    deadline_seconds: float = DEADLINE_SECONDS
    name: ClassVar[Literal["amd-emulated"]] = "amd-emulated"
    clock: ClassVar[str] = "none: what an emulator takes says nothing of a GPU's time"
    wavefront_size: ClassVar[int] = 64

    @property
    def executed_on(self) -> str:
        return f"emulated {self.architecture} ({self.emulator.name})"

    def build(self, source: bytes, kernel: str, parameters: Sequence[Parameter], layout: Layout, folder: Path) -> Build:
        """Return a source's code object; layouts do not change it. Refused (guards `compile`, `kernel`)."""
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
        """Return a fresh confined process with the build loaded. NotEmulated if the emulator cannot load it."""
        program = read_program(build.artefact.read_bytes(), build.kernel)
        with tempfile.TemporaryDirectory(prefix="aaco-emulated-") as name:
            folder, emulator = Path(name), self.emulator
            readable = (folder, *emulator.readable)
            environment = dict(emulator.environment)
            with started(emulator.command, environment, self.architecture, readable, self.deadline_seconds) as process:
                process.load(program, folder / "image")
                yield process


def emulated_target(folder: Path, *, flags: Sequence[str] = ()) -> EmulatedTarget | NoEmulator:
    """Return the user's emulator with the first architecture that a local compiler supports, or the reason for none.

    `folder` belongs to the caller and receives compiled files. Nothing is emulated yet.
    """
    emulator = find_emulator()
    if isinstance(emulator, NoEmulator):
        return emulator
    toolchains = find_toolchains()
    for architecture in ARCHITECTURES:
        for toolchain in toolchains:
            if why_no_kernel(toolchain, architecture, folder, flags) is None:
                return EmulatedTarget(emulator, toolchain, architecture, tuple(flags))
    return NoEmulator(f"no compiler for {' or '.join(ARCHITECTURES)}", "see the static verdict")
