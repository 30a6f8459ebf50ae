"""A kernel's call with its data, and the interfaces that build and run it.

Harnesses create calls; the targets that run them are in `aaco_pipeline.resources.targets`.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Role = Literal["in", "out", "inout"]
Content = NDArray[np.generic]
Block = tuple[int, int, int]
#: Orders of work-items and workgroups; a larger number seeds a permutation, up to `MOST_ORDER`.
ASCENDING: Final = 0
DESCENDING: Final = 1
MOST_ORDER: Final = 2**32 - 1


@dataclass(frozen=True)
class Launch:
    """Workgroups, work-items per workgroup and dynamic local data share of one launch."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_lds_bytes: int = 0


@dataclass(frozen=True)
class Buffer:
    """A device pointer: `elements` values of the numpy type `dtype`. An `out` buffer is poisoned before each call."""

    name: str
    dtype: str
    elements: int
    role: Role


@dataclass(frozen=True)
class Scalar:
    """An argument by value, of the numpy type `dtype`."""

    name: str
    dtype: str
    value: float | int


Argument = Buffer | Scalar


@dataclass(frozen=True)
class Circumstances:
    """Circumstances that vary between uses; no correct result depends on them. Targets vary those that they can.

    `order` is the order of workgroups, and of each one's work-items between barriers. `is_aligned`: all buffers begin
    at a multiple of 256 bytes, like device memory, instead of ending at the end of a page. `keeps_lds`: local data
    share holds the values left by the process's previous call instead of poison. `before` is the content of `out`
    buffers before the call, by name; poison if missing.
    """

    order: int = ASCENDING
    is_aligned: bool = False
    keeps_lds: bool = False
    before: Mapping[str, Content] = field(default_factory=dict)


@dataclass(frozen=True)
class Call:
    """A launch with its arguments in the kernel's order, and the contents of every `in` and `inout` buffer by name.

    Two calls with the same `arguments`, `launch` and `circumstances` run in the same buffers, at the same addresses.
    """

    launch: Launch
    arguments: tuple[Argument, ...]
    contents: Mapping[str, Content]
    circumstances: Circumstances = field(default_factory=Circumstances)


@dataclass(frozen=True)
class Execution:
    """The result of a call: the final content of each `out` and `inout` buffer, and the call's duration.

    `duration_ns` is defined by the target (`Target.clock`): the process's CPU time on `cpu`, the GPU's own time on a
    GPU, null if a target measures no time. `poison` has the bytes of each element of an `out` buffer before the call,
    by name; it is empty if the target uses `correctness.poison`. `before` is the content used instead of poison, if the
    call requested that and the target supports it. `conditions` is the state of the device at the end of the call
    (clocks in MHz, power in mW, °C, throttle reasons), if the target can read it; unreadable values are null.
    """

    outputs: Mapping[str, Content]
    duration_ns: int | None
    poison: Mapping[str, bytes] = field(default_factory=dict)
    conditions: Mapping[str, int | str | None] = field(default_factory=dict)
    before: Mapping[str, Content] = field(default_factory=dict)


TargetName = Literal["amd", "cuda", "cpu", "amd-emulated"]


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel: its type as written, without its name and the qualifiers of the pointer itself."""

    name: str
    type: str
    pointer: bool
    const: bool


@dataclass(frozen=True)
class Layout:
    """The layout of code in memory: order of functions, padding between them, load address; all drawn from `seed`.

    Alignment flags are recorded and the same for baseline and candidate in every layout.
    """

    seed: int


@dataclass(frozen=True)
class Build:
    """A built kernel: the file to load, the compiler with its version and flags, and digests of source and code.

    `code_sha256` covers only the kernel's machine code, without addresses that depend on the layout: two builds with
    the same digest run the same instructions. `resources` are registers, local data share and spills, if the compiler
    reports them.
    """

    target: TargetName
    kernel: str
    artefact: Path
    source_sha256: str
    code_sha256: str
    compiler: str
    flags: tuple[str, ...]
    layout: Layout
    resources: Mapping[str, int] = field(default_factory=dict)
    warnings: Sequence[str] = ()


class Worker(Protocol):
    """A fresh confined process with one build loaded. Buffers are created at the first call and kept."""

    def run(self, call: Call) -> Execution:
        """Make one call: write contents, poison outputs, run the kernel, read outputs.

        Raises Refused if the process died, hung or made an illegal access (guard `memory`, `time`, `processes`,
        `inputs` …).
        """
        ...


class Target(Protocol):
    """Builds and runs kernels. `executed_on` marks every record made here; `clock` describes the durations."""

    @property
    def name(self) -> TargetName: ...
    @property
    def executed_on(self) -> str: ...
    @property
    def clock(self) -> str: ...
    @property
    def wavefront_size(self) -> int: ...

    def build(self, source: bytes, kernel: str, parameters: Sequence[Parameter], layout: Layout, folder: Path) -> Build:
        """Compile with limits on CPU, memory and time; Refused (guard `compile`, `symbols`, …) if that fails."""
        ...

    def start(self, build: Build) -> AbstractContextManager[Worker]:
        """Yield a fresh process that has loaded only the build; all that it leaves behind is removed at the end."""
        ...


class NotEmulated(Exception):
    """The emulator lacks an instruction or a service, or its work limit is exceeded: the reason in one line."""


class EmulatedWorker(Protocol):
    """A fresh confined process with one build loaded."""

    @property
    def instructions(self) -> Mapping[str, int]:
        """Instructions that wavefronts executed in the last call, by class."""
        ...

    @property
    def unconfined(self) -> Sequence[str]:
        """Describe parts of its confinement that the host does not support; empty if it is complete."""
        ...

    def emulate(self, call: Call, *, backwards: bool) -> Execution:
        """Make one call, with workgroups and wavefronts in numerical order or `backwards`; no duration.

        Raises Refused (`memory`, `result`) for errors of the kernel, and NotEmulated if the result is unknown.
        """
        ...


class EmulatingTarget(Protocol):
    """Builds for a device that this machine does not have, and starts emulations of it."""

    @property
    def executed_on(self) -> str: ...

    def build(self, source: bytes, kernel: str, parameters: Sequence[Parameter], layout: Layout, folder: Path) -> Build:
        """Compile with limits; Refused if that fails."""
        ...

    def start(self, build: Build) -> AbstractContextManager[EmulatedWorker]:
        """Yield a fresh confined process with the build. NotEmulated or UnavailableError if that is impossible."""
        ...
