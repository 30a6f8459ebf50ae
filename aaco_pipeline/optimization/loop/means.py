"""What the search is given: the question, limits, and everything that builds, runs, compiles, measures or decides."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from aaco_pipeline.optimization.candidates import Candidate, Proposer, Refused, SignatureChange
from aaco_pipeline.optimization.targets import Build, Layout, Parameter, Target

Record = Mapping[str, Any]
"""One line of the journal, of values that JSON has; see `aaco_pipeline.optimization.journal`."""

Figures = Mapping[str, Mapping[str, Any]]
"""By architecture what a compiler states of one kernel, as plain values."""

TimingStep = Literal["aa", "search", "confirmation"]
#: The layout in which outputs and machine code are compared.
PLAIN: Final = Layout(0)


@dataclass(frozen=True)
class Version:
    """A source and how its kernel is launched: `block` takes the place of the harness's workgroup where it is set."""

    source: bytes
    kernel: str
    parameters: tuple[Parameter, ...]
    block: tuple[int, int, int] | None = None
    bit_exact: bool = False


@dataclass(frozen=True)
class Ruling:
    """What the timing rule says of recorded pairs.

    `passed`: faster by the threshold or more; of A/A, that identical code was not found to differ. `speedup_ratio` is
    baseline time / candidate time with its interval; null where the pairs give none. `guard` says what stopped it.
    """

    passed: bool
    guard: str | None
    reason: str
    speedup_ratio: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None


class Builder:
    """Builds versions below `folder`: a folder a source, so that a target compiles one once for all its layouts.

    `is_out_of_time` ends a step that goes on for long between two builds: what is not decided by then is undecided.
    """

    def __init__(self, target: Target, folder: Path, is_out_of_time: Callable[[], bool] = lambda: False) -> None:
        self.target: Final = target
        self._folder, self._is_out_of_time = folder, is_out_of_time
        self._places: dict[bytes, Path] = {}
        self._built: dict[tuple[bytes, Layout], Build] = {}

    def __call__(self, version: Version, layout: Layout = PLAIN) -> Build:
        """The build of a version in a layout. Refused when it cannot be built, or the time is spent."""
        if self._is_out_of_time():
            raise Refused("budget", "the time was spent before it was decided")
        place = self._places.setdefault(version.source, self._folder / str(len(self._places)))
        place.mkdir(parents=True, exist_ok=True)
        key = (version.source, layout)
        if key not in self._built:
            self._built[key] = self.target.build(version.source, version.kernel, version.parameters, layout, place)
        return self._built[key]


class TextGuard(Protocol):
    """What of its source a candidate may change."""

    def __call__(
        self, baseline: bytes, candidate: bytes, kernel: str, *, allowed: Collection[SignatureChange] = ()
    ) -> None:
        """Refused when more than the body of `kernel` differs, and what is `allowed` of its signature."""
        ...


class Checker(Protocol):
    """Whether a version computes what the harness's reference does."""

    def check(self, builder: Builder, baseline: Version | None, version: Version, seed: int) -> Record:
        """Run a version on every size and distribution in a fresh process; facts for the journal, or Refused.

        Without a baseline it is the baseline itself that is checked. `note` of the facts is what a person has to know.
        """
        ...

    def check_deeply(self, builder: Builder, baseline: Version | None, version: Version, seed: int) -> Record:
        """As `check`, on sizes that nobody listed, large ones among them: for what is about to be accepted."""
        ...


class Timer(Protocol):
    """The timing rule: measuring pairs, and deciding on pairs that were measured, now or when they are replayed."""

    def measure(self, step: TimingStep, builder: Builder, versions: tuple[Version, Version], seed: int) -> Record:
        """Fresh processes of baseline and candidate, interleaved: raw pairs with all that `decide` needs.

        Refused when a process fails, or computes something wrong in a timed call.
        """
        ...

    def decide(self, step: TimingStep, evidence: Record) -> Ruling:
        """The ruling on measured pairs, from them alone and what was decided before: in the order of measuring."""
        ...


class Static(Protocol):
    """What a real compile for GPUs that are not here says of a kernel."""

    def figures(self, source: bytes, kernel: str) -> Figures:
        """By architecture the resources that the compiler states. Refused when it does not compile."""
        ...

    def check(
        self,
        before: Figures,
        after: Figures,
        block: tuple[int, int, int] | None = None,
        parameters: Mapping[str, int | str] | None = None,
    ) -> None:
        """Refused: `resources` when `after` is worse than `before`, `no_effect` when the machine code is the same.

        `block` is the candidate's own workgroup, `parameters` are what it says of its change.
        """
        ...


@dataclass(frozen=True)
class Limits:
    """When the search ends: time in all, and candidates that are tried."""

    time_ns: int
    attempts: int


@dataclass(frozen=True)
class Question:
    """Which kernel of which source is to be made faster. `block` is the workgroup that the harness launches.

    `evidence` is what a session says of the kernel. Everything drawn (layouts, orders, inputs) comes from `seed`.
    """

    source: bytes
    kernel: str
    parameters: tuple[Parameter, ...]
    block: tuple[int, int, int]
    limits: Limits
    seed: int
    evidence: Mapping[str, Any] = field(default_factory=dict)

    @property
    def baseline(self) -> Version:
        return Version(self.source, self.kernel, self.parameters)


@dataclass(frozen=True)
class Means:
    """What the search works with. `now_ns` is a monotonic clock; `record` keeps one line of the journal for good.

    `folder` is empty and the search's own.
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
    """The version that a candidate proposes; launched as its baseline is, unless it says how."""
    block = candidate.block or baseline.block
    return Version(candidate.source, candidate.kernel, baseline.parameters, block, candidate.bit_exact)
