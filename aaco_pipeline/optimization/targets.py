"""A kernel's call with its data, and where it is built and run.

Harnesses make calls; the targets that run them are in `aaco_pipeline.resources.targets`.
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
#: Orders of work-items and workgroups; a greater number is what a permutation is drawn from, up to `MOST_ORDER`.
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
    """Circumstances that differ from use to use; no right answer depends on them. Targets vary those that they can.

    `order` is that in which workgroups run, and the work-items of each between its barriers. `is_aligned`: all buffers
    begin at a multiple of 256 bytes, as device memory does, in place of ending where a page ends. `keeps_lds`: local
    data share holds what the process's call before this one left, in place of poison. `before` is what `out` buffers
    hold before the call, by name; poison where it has none.
    """

    order: int = ASCENDING
    is_aligned: bool = False
    keeps_lds: bool = False
    before: Mapping[str, Content] = field(default_factory=dict)


@dataclass(frozen=True)
class Call:
    """A launch with its arguments in the kernel's order, and the contents of every `in` and `inout` buffer by name.

    Two calls of the same `arguments`, `launch` and `circumstances` run in the same buffers, at the same addresses.
    """

    launch: Launch
    arguments: tuple[Argument, ...]
    contents: Mapping[str, Content]
    circumstances: Circumstances = field(default_factory=Circumstances)


@dataclass(frozen=True)
class Execution:
    """The result of a call: each `out` and `inout` buffer as it was left, and the call's duration.

    `duration_ns` is what the target says it is (`Target.clock`): the process's CPU time on `cpu`, the GPU's own time on
    a GPU, null where a target measures no time. `poison` has the bytes that each element of an `out` buffer held before
    the call, by name; a target whose poison is `correctness.poison`'s leaves it empty. `before` is what it held in
    place of poison, where the call asked for that and the target did it. `conditions` is the state of the device as the
    call ended (clocks in MHz, power in mW, °C, throttle reasons), where the target can read it; a value that could not
    be read is null.
    """

    outputs: Mapping[str, Content]
    duration_ns: int | None
    poison: Mapping[str, bytes] = field(default_factory=dict)
    conditions: Mapping[str, int | str | None] = field(default_factory=dict)
    before: Mapping[str, Content] = field(default_factory=dict)


TargetName = Literal["amd", "cuda", "cpu", "amd-emulated"]


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel: its type as written, without its name and qualifiers of the pointer itself."""

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
    """A kernel that is built: the file to load, the compiler with its version and flags, and digests of both ends.

    `code_sha256` is of the kernel's machine code alone, without addresses that a layout moves: two builds with the same
    one run the same instructions. `resources` are registers, local data share and spills, where the compiler states it.
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
    """A fresh confined process with one build loaded. Buffers are made at the first call and kept."""

    def run(self, call: Call) -> Execution:
        """One call: contents written, outputs poisoned, kernel run, outputs read.

        Refused when the process died, hung, touched what it may not (guard `memory`, `time`, `processes`, `inputs` …).
        """
        ...


class Target(Protocol):
    """Builds and runs kernels. `executed_on` marks every record made here; `clock` says what a duration is."""

    @property
    def name(self) -> TargetName: ...
    @property
    def executed_on(self) -> str: ...
    @property
    def clock(self) -> str: ...
    @property
    def wavefront_size(self) -> int: ...

    def build(self, source: bytes, kernel: str, parameters: Sequence[Parameter], layout: Layout, folder: Path) -> Build:
        """Compile under limits of CPU, memory and time; Refused (guard `compile`, `symbols`, …) when it cannot be."""
        ...

    def start(self, build: Build) -> AbstractContextManager[Worker]:
        """A fresh process that has loaded the build and nothing else; what it leaves behind is gone at the end."""
        ...


class NotEmulated(Exception):
    """An instruction or a service that the emulator lacks, or more work than it is given: the reason in one line."""


class EmulatedWorker(Protocol):
    """A fresh confined process with one build loaded."""

    @property
    def instructions(self) -> Mapping[str, int]:
        """Those that wavefronts executed in the last call, by class."""
        ...

    @property
    def unconfined(self) -> Sequence[str]:
        """Parts of its confinement that the host does not grant, in words; empty where it is complete."""
        ...

    def emulate(self, call: Call, *, backwards: bool) -> Execution:
        """One call, with workgroups and wavefronts in the order of their numbers or `backwards`; no duration.

        Refused (`memory`, `result`) for what the kernel did; NotEmulated where nothing can be said of it.
        """
        ...


class EmulatingTarget(Protocol):
    """Builds for a device that is not here, and starts emulations of it."""

    @property
    def executed_on(self) -> str: ...

    def build(self, source: bytes, kernel: str, parameters: Sequence[Parameter], layout: Layout, folder: Path) -> Build:
        """Compile under limits; Refused when it cannot be."""
        ...

    def start(self, build: Build) -> AbstractContextManager[EmulatedWorker]:
        """A fresh confined process with the build. NotEmulated or UnavailableError where there can be none."""
        ...
