"""Where a source is built and run. Implementations are in `aaco_pipeline.resources.targets`."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from aaco_pipeline.optimization.calls import Call, Execution

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
    """How code lies in memory: order of functions, padding between them, load address; all drawn from `seed`.

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
