"""A changed source, who proposed it, and what refuses it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

#: Parts of a kernel's signature that a change may touch; neither changes how the kernel is called.
SignatureChange = Literal["launch_bounds", "restrict"]
Parameters = Mapping[str, int | str]


class Refused(Exception):
    """A guard refuses. `guard` is its stable name, `reason` a sentence that says why."""

    def __init__(self, guard: str, reason: str) -> None:
        super().__init__(f"{guard}: {reason}")
        self.guard = guard
        self.reason = reason


@dataclass(frozen=True)
class Candidate:
    """The whole source after a change to `kernel`, and nothing else.

    `bit_exact` is set where the change keeps the order of floating-point operations, so that outputs must equal the
    baseline's bits. `block` is set where the kernel is to be launched with another workgroup than its harness says.
    `signature` declares which parts of the kernel's signature differ; no other part may.
    """

    kernel: str
    source: bytes
    proposer: str
    transformation: str
    bit_exact: bool
    block: tuple[int, int, int] | None = None
    parameters: Parameters = field(default_factory=dict)
    signature: tuple[SignatureChange, ...] = ()


@dataclass(frozen=True)
class NotApplicable:
    """Why a proposer has nothing to propose for a kernel, or for one of its loops."""

    proposer: str
    reason: str


@dataclass(frozen=True)
class Task:
    """A proposer's input. `evidence` holds a session's findings about the kernel (bound, stalls, occupancy), if any.

    `attempts` are those made so far, oldest first: a candidate with the words of its decision. `block` is the workgroup
    that the harness launches; `wavefront_size` is 64 on CDNA, 32 on NVIDIA, and what the target's header says on a CPU.
    """

    source: bytes
    kernel: str
    block: tuple[int, int, int]
    wavefront_size: int
    evidence: Mapping[str, Any] = field(default_factory=dict)
    attempts: Sequence[tuple[Candidate, str]] = ()

    def candidate(
        self, proposer: str, what: str, source: bytes, parameters: Parameters, *, bit_exact: bool = True
    ) -> Candidate:
        """Make a candidate of the task's kernel."""
        return Candidate(self.kernel, source, proposer, what, bit_exact, parameters=parameters)


class Proposer(Protocol):
    """Proposes changes, lazily, in the order in which they should be tried."""

    @property
    def name(self) -> str: ...

    def propose(self, task: Task) -> Iterator[Candidate | NotApplicable]: ...
