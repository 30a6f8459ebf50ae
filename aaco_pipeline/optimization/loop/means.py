"""Inputs of the search: the question, limits, and everything that builds, runs, compiles, measures or decides."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from aaco_pipeline.optimization.candidates import Candidate, Parameters, Proposer, Refused
from aaco_pipeline.optimization.targets import Block, Build, Layout, Parameter, Target

Record = Mapping[str, Any]
"""One line of the journal, of values that JSON has; see `aaco_pipeline.optimization.journal`."""

Figures = Mapping[str, Mapping[str, Any]]
"""A compiler's figures of one kernel by architecture, as plain values."""

TimingStep = Literal["aa", "search", "confirmation"]
#: The layout in which outputs and machine code are compared.
PLAIN: Final = Layout(0)


@dataclass(frozen=True)
class Version:
    """A source and its launch: `block` replaces the harness's workgroup if it is set."""

    source: bytes
    kernel: str
    parameters: tuple[Parameter, ...]
    block: Block | None = None
    bit_exact: bool = False


@dataclass(frozen=True)
class Ruling:
    """The timing rule's ruling on recorded pairs.

    `passed`: faster by the threshold or more; for A/A, that identical code was not found to differ. `speedup_ratio` is
    baseline time / candidate time with its interval; null if the pairs give none. `guard` is the reason for stopping.
    """

    passed: bool
    guard: str | None
    reason: str
    speedup_ratio: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None


class Builder:
    """Builds versions below `folder`: one folder per source, so that a target compiles it once for all layouts.

    `is_out_of_time` ends a step with many builds between two of them: open decisions remain undecided.
    """

    def __init__(self, target: Target, folder: Path, is_out_of_time: Callable[[], bool] = lambda: False) -> None:
        self.target: Final = target
        self._folder, self._is_out_of_time = folder, is_out_of_time
        self._places: dict[bytes, Path] = {}
        self._built: dict[tuple[bytes, Layout], Build] = {}

    def __call__(self, version: Version, layout: Layout = PLAIN) -> Build:
        """Build a version in a layout. Refused if it cannot be built, or the time is spent."""
        if self._is_out_of_time():
            raise Refused("budget", "the time was spent before it was decided")
        place = self._places.setdefault(version.source, self._folder / str(len(self._places)))
        place.mkdir(parents=True, exist_ok=True)
        key = (version.source, layout)
        if key not in self._built:
            self._built[key] = self.target.build(version.source, version.kernel, version.parameters, layout, place)
        return self._built[key]


TextGuard = Callable[..., None]
"""Checks what a candidate changes in its source, as `guards.text.check_text` does: Refused when it changes too much."""


class Checker(Protocol):
    """Checks that a version's results match the harness's reference."""

    def check(
        self, builder: Builder, baseline: Version | None, version: Version, seed: int, *, is_deep: bool = False
    ) -> Record:
        """Run a version on every size and distribution in a fresh process; facts for the journal, or Refused.

        Args:
            baseline: None when the baseline itself is checked.
            is_deep: check sizes that nobody listed, large ones among them, for what is about to be accepted.

        Returns:
            Facts; `note` is what the user has to know.
        """
        ...


class Timer(Protocol):
    """The timing rule: measures pairs, and decides on measured pairs, both live and in a replay."""

    def measure(self, step: TimingStep, builder: Builder, versions: tuple[Version, Version], seed: int) -> Record:
        """Interleave fresh processes of baseline and candidate: raw pairs with everything that `decide` needs.

        Raises Refused if a process fails, or computes a wrong result in a timed call.
        """
        ...

    def decide(self, step: TimingStep, evidence: Record) -> Ruling:
        """Rule on measured pairs, only from them and from earlier decisions, in the order of measuring."""
        ...


class Static(Protocol):
    """Compiles a kernel for GPUs that this machine does not have."""

    def figures(self, source: bytes, kernel: str) -> Figures:
        """Return the resources that the compiler reports, by architecture. Refused if it does not compile."""
        ...

    def check(
        self, before: Figures, after: Figures, block: Block | None = None, parameters: Parameters | None = None
    ) -> None:
        """Raise Refused: `resources` if `after` is worse than `before`, `no_effect` if the machine code is the same.

        `block` is the candidate's own workgroup, `parameters` describe its change.
        """
        ...


@dataclass(frozen=True)
class Limits:
    """Limits of the search: its total time, and the number of candidates."""

    time_ns: int
    attempts: int


@dataclass(frozen=True)
class Question:
    """The kernel to make faster and its source. `block` is the workgroup that the harness launches.

    `evidence` holds a session's findings about the kernel. Layouts, orders and inputs are drawn from `seed`.
    """

    source: bytes
    kernel: str
    parameters: tuple[Parameter, ...]
    block: Block
    limits: Limits
    seed: int
    evidence: Mapping[str, Any] = field(default_factory=dict)

    @property
    def baseline(self) -> Version:
        return Version(self.source, self.kernel, self.parameters)


@dataclass(frozen=True)
class Means:
    """The means of the search. `now_ns` is a monotonic clock; `record` stores one line of the journal permanently.

    `folder` is empty and used only by the search.
    """

    target: Target
    proposers: Sequence[Proposer]
    check_text: TextGuard
    static: Static | None
    checker: Checker
    timer: Timer
    now_ns: Callable[[], int]
    record: Callable[[Record], None]
    tell: Callable[[str], None]
    folder: Path


def version_of(candidate: Candidate, baseline: Version) -> Version:
    """Create the version that a candidate proposes; it is launched like its baseline unless the candidate differs."""
    block = candidate.block or baseline.block
    return Version(candidate.source, candidate.kernel, baseline.parameters, block, candidate.bit_exact)
