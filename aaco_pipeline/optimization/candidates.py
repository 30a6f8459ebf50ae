"""A changed source, its proposer, and the refusal of a guard."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

#: Parts of a kernel's signature that a change may touch; neither affects how the kernel is called.
SignatureChange = Literal["launch_bounds", "restrict"]
Parameters = Mapping[str, int | str]


class Refused(Exception):
    """A guard's refusal. `guard` is its stable name, `reason` a sentence with the cause."""

    def __init__(self, guard: str, reason: str) -> None:
        super().__init__(f"{guard}: {reason}")
        self.guard = guard
        self.reason = reason


@dataclass(frozen=True)
class Candidate:
    """The complete source after a change to `kernel` and nothing else.

    `bit_exact` is set if the change keeps the order of floating-point operations, so outputs must equal the baseline's
    bits. `block` is set if the kernel is launched with a workgroup other than its harness's. `signature` lists the
    parts of the kernel's signature that differ; no other part may.
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
    """The reason why a proposer has nothing to propose for a kernel, or for one of its loops."""

    proposer: str
    reason: str


@dataclass(frozen=True)
class Task:
    """A proposer's input. `evidence` holds a session's findings about the kernel (bound, stalls, occupancy), if any.

    `attempts` are the attempts so far, oldest first: a candidate with the text of its decision. `block` is the
    harness's workgroup; `wavefront_size` is 64 on CDNA, 32 on NVIDIA, and defined by the target's header on a CPU.
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
        """Build a candidate of the task's kernel."""
        return Candidate(self.kernel, source, proposer, what, bit_exact, parameters=parameters)


class Proposer(Protocol):
    """Proposes changes lazily, in the order in which to try them."""

    @property
    def name(self) -> str: ...

    def propose(self, task: Task) -> Iterator[Candidate | NotApplicable]: ...
