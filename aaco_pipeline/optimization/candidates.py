"""A changed source, who proposed it, and what refuses it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

#: What of a kernel's signature a change may touch; neither changes how the kernel is called.
SignatureChange = Literal["launch_bounds", "restrict"]


class Refused(Exception):
    """A guard said no. `guard` names it by a word that is stable, `reason` says why in a sentence for people."""

    def __init__(self, guard: str, reason: str) -> None:
        super().__init__(f"{guard}: {reason}")
        self.guard = guard
        self.reason = reason


@dataclass(frozen=True)
class Candidate:
    """The whole source after a change to `kernel`, and nothing else.

    `bit_exact` is set where the change keeps the order of floating-point operations, so that outputs must equal the
    baseline's bits. `block` is set where the kernel is to be launched with another workgroup than its harness says.
    `signature` declares what of the kernel's signature differs; nothing else of it may.
    """

    kernel: str
    source: bytes
    proposer: str
    transformation: str
    bit_exact: bool
    block: tuple[int, int, int] | None = None
    parameters: Mapping[str, int | str] = field(default_factory=dict)
    signature: tuple[SignatureChange, ...] = ()


@dataclass(frozen=True)
class NotApplicable:
    """Why a proposer has nothing to say of a kernel, or of one of its loops."""

    proposer: str
    reason: str


@dataclass(frozen=True)
class Task:
    """What a proposer is given. `evidence` is what the session says of the kernel (bound, stalls, occupancy), if any.

    `attempts` are those made so far, oldest first: a candidate with the words of its decision. `block` is the workgroup
    that the harness launches; `wavefront_size` is 64 on CDNA, 32 on NVIDIA, and what the target's header says on a CPU.
    """

    source: bytes
    kernel: str
    block: tuple[int, int, int]
    wavefront_size: int
    evidence: Mapping[str, Any] = field(default_factory=dict)
    attempts: Sequence[tuple[Candidate, str]] = ()


class Proposer(Protocol):
    """Who proposes changes. Candidates come in the order in which they should be tried, lazily."""

    @property
    def name(self) -> str: ...

    def propose(self, task: Task) -> Iterator[Candidate | NotApplicable]: ...
