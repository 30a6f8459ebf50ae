"""A GPU as an optimization target: device code built for it, and a fresh process for each build that is run.

`runner` runs in the process; `compilers` compiles.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from mmap import mmap
from pathlib import Path
from typing import Any, Final

import numpy as np

from aaco_pipeline.errors import UnavailableError
from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.targets import Buffer, Build, Call, Content, Execution, Layout, Parameter, Scalar
from aaco_pipeline.resources.host.kernel_files import KFD_NODES, kfd_gpus
from aaco_pipeline.resources.targets import AnsweringProcess, answering_process
from aaco_pipeline.resources.targets.gpu import compilers
from aaco_pipeline.resources.targets.gpu.compilers import Compiled, Compiler, amd_compiler, cuda_compiler
from aaco_pipeline.resources.targets.gpu.driver import VENDORS, Vendor, VendorName
from aaco_pipeline.resources.toolchains.limited import ending

#: Starts the runner without address randomization: equal allocations in two processes get equal addresses.
_LAUNCHER: Final = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
libc.personality(libc.personality(0xFFFFFFFF) | 0x0040000)
os.execv(sys.argv[1], sys.argv[1:])
"""
_MODULE: Final = "aaco_pipeline.resources.targets.gpu.runner"
_PACKAGE_FOLDER: Final = Path(__file__).parents[4]
#: Variables that decide which libraries and devices a process sees; no others are passed on.
_KEPT_VARIABLES: Final = (
    *("PATH", "HOME", "LD_LIBRARY_PATH", "ROCM_PATH", "HIP_PATH"),
    *("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
)
_ALIGNMENT: Final = 64
_ENDING_SECONDS: Final = 20.0
_MOST_ANSWER_BYTES: Final = 1 << 30
#: AMD's runtime prints this before it aborts a process whose kernel accessed invalid memory.
_FAULT_WORDS: Final = "Memory access fault"


class GpuProcess:
    """A process of `runner` with a context on the device. The first refusal ends it, and later calls are refused."""

    def __init__(self, process: AnsweringProcess, seconds: float) -> None:
        self.channel = process
        self._seconds = seconds
        self._arguments: tuple[Buffer | Scalar, ...] | None = None
        self._ended: Exception | None = None
        self._due: deque[str] = deque()

    def tell(self, what: str, given: Mapping[str, Any]) -> None:
        """Send a command without waiting: its answer is read together with the next one."""
        self._send({"do": what, "with": given})

    def ask(self, what: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Send a command and wait for its answer; Refused or UnavailableError by the runner's answer or its death."""
        self.tell(what, given)
        return self.heard()

    def greet(self, vendor: Vendor) -> None:
        """Open the device; the answer is the driver's description."""
        self._send({"vendor": vendor.name, "library": vendor.library})

    def heard(self) -> dict[str, Any]:
        """Return the last answer once all pending ones have arrived."""
        if self._ended is not None:
            raise self._ended
        answer: dict[str, Any] = {}
        try:
            while self._due:
                answer = self._answer(self._due.popleft())
        except (Refused, UnavailableError) as error:
            self._ended = error
            self.end()
            raise
        return answer

    def run(self, call: Call) -> Execution:
        """Make one call, as described by `optimization.targets.Worker`."""
        self.heard()
        if call.arguments != self._arguments:
            self._place(call.arguments)
        with mmap(self.channel.shared, max(self._shared_bytes, 1)) as memory, memoryview(memory) as held:
            for name, (offset, buffer) in self._contents.items():
                values = np.ascontiguousarray(call.contents[name], dtype=buffer.dtype)
                if values.size != buffer.elements:
                    raise ValueError(f"{name} has {buffer.elements} elements and was given {values.size}")
                place = np.frombuffer(held, dtype=buffer.dtype, count=buffer.elements, offset=offset)
                place[:] = values.reshape(-1)
                del place  # it would keep the memory from being unmapped
            answer = self.ask("call", self._command(call))
            outputs = {name: _values(held, offset, buffer) for name, (offset, buffer) in self._results.items()}
        buffers = [argument for argument in call.arguments if isinstance(argument, Buffer)]
        poison = {
            buffer.name: bytes([byte]) * np.dtype(buffer.dtype).itemsize
            for buffer, byte in zip(buffers, answer["poisons"], strict=True)
            if buffer.role == "out"
        }
        return Execution(outputs, answer["duration_ns"], poison=poison, conditions=answer["conditions"])

    def _place(self, arguments: Sequence[Buffer | Scalar]) -> None:
        """Place every buffer in the shared memory, and have the runner create it on the device."""
        self._contents: dict[str, tuple[int, Buffer]] = {}
        self._results: dict[str, tuple[int, Buffer]] = {}
        places = []
        end = 0
        for buffer in (argument for argument in arguments if isinstance(argument, Buffer)):
            dtype = np.dtype(buffer.dtype)
            size = dtype.itemsize * buffer.elements
            place: dict[str, Any] = {"size": size, "floating": dtype.kind in "fc", "content": None, "result": None}
            for key, kept, roles in (
                ("content", self._contents, ("in", "inout")),
                ("result", self._results, ("out", "inout")),
            ):
                if buffer.role in roles:
                    place[key] = end
                    kept[buffer.name] = (end, buffer)
                    end = -(-(end + size) // _ALIGNMENT) * _ALIGNMENT
            places.append(place)
        self._shared_bytes = end
        os.ftruncate(self.channel.shared, max(end, 1))
        self.ask("buffers", {"places": places, "shared_bytes": max(end, 1)})
        self._arguments = tuple(arguments)

    def _command(self, call: Call) -> dict[str, Any]:
        arguments: list[dict[str, Any]] = []
        buffers = 0
        for argument in call.arguments:
            if isinstance(argument, Buffer):
                arguments.append({"buffer": buffers})
                buffers += 1
            else:
                arguments.append({"bytes": np.array(argument.value, dtype=argument.dtype).tobytes().hex()})
        launch = call.launch
        return {
            "grid": launch.grid,
            "block": launch.block,
            "dynamic_lds_bytes": launch.dynamic_lds_bytes,
            "arguments": arguments,
        }

    def _send(self, command: dict[str, Any]) -> None:
        self._due.append(self.channel.send(command))

    def _answer(self, nonce: str) -> dict[str, Any]:
        line = self.channel.line(self._seconds, _MOST_ANSWER_BYTES)
        if line is None:
            raise Refused("time", f"the kernel was not done after {self._seconds:g} s, and its process was killed")
        if not line:
            raise self._death()
        answer = json.loads(line)
        if "refused" in answer:
            raise Refused(*answer["refused"])
        if "unavailable" in answer:
            raise UnavailableError(answer["unavailable"])
        if answer["nonce"] != nonce:
            raise Refused("result", "an answer came that was not asked for")
        return dict(answer["ok"])

    def _death(self) -> Refused:
        how = ending(self.channel.process.wait(_ENDING_SECONDS))
        words = self.channel.last_words(500)
        guard = "memory" if _FAULT_WORDS in words else "processes"
        return Refused(guard, f"the process that ran the kernel ended with {how}: {words}")

    def end(self) -> None:
        """Kill it and wait until it is gone: this also removes a hanging kernel from the device."""
        process = self.channel.process
        process.kill()
        try:
            process.wait(_ENDING_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise UnavailableError(f"process {process.pid} does not die: its kernel still holds the device") from error


@contextmanager
def started(vendor: Vendor, seconds: float) -> Iterator[GpuProcess]:
    """Start a fresh process of `runner` that waits for its first command; `seconds` limits each answer."""
    environment = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    environment |= {"PYTHONPATH": str(_PACKAGE_FOLDER), "CUDA_CACHE_DISABLE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    launcher = (sys.executable, "-I", "-S", "-c", _LAUNCHER, sys.executable, "-P", "-m", _MODULE)

    def command(answers: int, shared: int) -> tuple[str, ...]:
        return (*launcher, str(answers), str(shared), str(os.getpid()))

    with (
        tempfile.TemporaryDirectory(prefix="aaco-gpu-") as folder,
        answering_process(command, environment, Path(folder)) as process,
    ):
        worker = GpuProcess(process, seconds)
        try:
            yield worker
        finally:
            worker.end()


def _values(held: memoryview, offset: int, buffer: Buffer) -> Content:
    dtype = np.dtype(buffer.dtype)
    return np.frombuffer(held, dtype=dtype, count=buffer.elements, offset=offset).copy()


#: Longest time for an answer: a call with its copies and checks, and the driver's start.
DEADLINE_SECONDS: Final = 20.0
_KFD: Final = Path("/dev/kfd")
_ACROSS_LANES: Final = re.compile(rb"\bwarpSize\b|\b__(?:shfl|ballot|any|all|activemask|lane_id)")
_NARROW: Final = (
    "wavefronts are 32 lanes wide here and 64 on CDNA: what the source does across lanes, and __ballot's upper half, "
    "differ there"
)


@dataclass(frozen=True)
class GpuTarget:
    """One vendor's GPU in this machine, created by `find_gpu`."""

    vendor: Vendor
    compiler: Compiler
    architecture: str
    wavefront_size: int
    device: str
    deadline_seconds: float = DEADLINE_SECONDS
    _compiled: dict[tuple[Path, bytes, str], Compiled] = field(default_factory=dict, repr=False, compare=False)

    @property
    def name(self) -> VendorName:
        """`cuda` or `amd`."""
        return self.vendor.name

    @property
    def executed_on(self) -> str:
        """The device and its architecture."""
        return f"{self.device} ({self.architecture})"

    @property
    def clock(self) -> str:
        """Meaning of a duration on this target."""
        return f"{self.vendor.people} GPU time between two events around one launch, caches flushed before it"

    def build(self, source: bytes, kernel: str, parameters: Sequence[Parameter], layout: Layout, folder: Path) -> Build:
        """Build only the device code of `source`; Refused (guards `compile`, `kernel`, `symbols`).

        Layouts are applied when code is loaded and do not change it, so a source already built in the folder is not
        compiled again.
        """
        key = (folder, source, kernel)
        if key not in self._compiled:
            folder.mkdir(parents=True, exist_ok=True)
            self._compiled[key] = self.compiler(source, kernel, folder)
        compiled = self._compiled[key]
        compilers.check_symbols(compilers.read(compiled.artefact.read_bytes()))
        narrow = self.wavefront_size == 32 and _ACROSS_LANES.search(source)
        return Build(
            target=self.name,
            kernel=kernel,
            artefact=compiled.artefact,
            source_sha256=hashlib.sha256(source).hexdigest(),
            code_sha256=compiled.code_sha256,
            compiler=compiled.compiler,
            flags=compiled.flags,
            layout=layout,
            resources=compiled.resources,
            warnings=(*compiled.warnings, *([_NARROW] if narrow else [])),
        )

    @contextmanager
    def start(self, build: Build) -> Iterator[GpuProcess]:
        """Return a fresh process with the build loaded, after as many copies of it as its layout requires."""
        symbol = {one.artefact: one.symbol for one in self._compiled.values()}[build.artefact]
        with started(self.vendor, self.deadline_seconds) as process:
            # Not awaited: the other arm of a pair starts meanwhile.
            process.greet(self.vendor)
            process.tell("load", {"artefact": str(build.artefact), "symbol": symbol, "seed": build.layout.seed})
            yield process


def find_gpu(name: VendorName, flags: tuple[str, ...] = ()) -> GpuTarget:
    """Return the vendor's first visible GPU and its compiler, which uses the user's `flags` for both arms.

    Raises UnavailableError, with what is missing in one line.
    """
    vendor = VENDORS[name]
    if name == "amd" and not _KFD.exists():
        raise UnavailableError("target amd: no AMD GPU driver (/dev/kfd is absent)")
    try:
        with started(vendor, DEADLINE_SECONDS) as process:
            process.greet(vendor)
            device = process.heard()
    except (UnavailableError, Refused) as error:
        raise UnavailableError(f"target {name}: no {vendor.people} GPU can be used ({error})") from error
    if name == "amd":
        architecture, wavefront_size = _first_amd_gpu()
        compiler = amd_compiler(architecture, flags)
    else:
        architecture, wavefront_size = device["architecture"], device["wavefront_size"]
        compiler = cuda_compiler(architecture, flags)
    if compiler is None:
        missing = "ROCm" if name == "amd" else "nvcc of the CUDA toolkit"
        raise UnavailableError(f"target {name}: {device['name']} is here, and no compiler for it; install {missing}")
    return GpuTarget(vendor, compiler, architecture, wavefront_size, device["name"])


def _first_amd_gpu() -> tuple[str, int]:
    """Return architecture and wavefront size of the first GPU in the kernel driver's list."""
    if not (found := kfd_gpus()):
        raise UnavailableError(f"target amd: the kernel driver lists no GPU in {KFD_NODES}")
    return found[0]
