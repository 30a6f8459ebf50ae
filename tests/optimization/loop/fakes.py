"""Stand-ins for everything that the search is given: a target whose builds and durations follow from the source."""

import hashlib
import itertools
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aaco_pipeline.optimization.candidates import Candidate, NotApplicable, Proposer, Refused, SignatureChange, Task
from aaco_pipeline.optimization.loop.means import (
    Builder,
    Figures,
    Limits,
    Means,
    Question,
    Record,
    Ruling,
    TimingStep,
    Version,
)
from aaco_pipeline.optimization.targets import Build, Call, Execution, Layout, Parameter, TargetName

SOURCE = b"// cost 100\nvoid k() {}\n"
KERNEL = "k"


def costing(cost: int, more: str = "") -> bytes:
    """A source whose kernel takes so long; `more` is written into it."""
    return SOURCE.replace(b"100", str(cost).encode()) + more.encode()


def cost_of(source: bytes) -> int:
    found = re.search(rb"cost ([0-9]+)", source)
    assert found is not None
    return int(found[1])


class FakeTarget:
    """Compiles all but what says `syntax error`; comments that say `same` change no machine code.

    What says `keeps` has eight bytes of writable data.
    """

    name: TargetName = "cpu"
    executed_on = "cpu-emulation"
    clock = "CPU time of the process"
    wavefront_size = 64

    def __init__(self) -> None:
        self.folders: list[Path] = []

    def build(self, source: bytes, kernel: str, parameters: Sequence[Parameter], layout: Layout, folder: Path) -> Build:
        assert folder.is_dir()
        others = [one for one in folder.iterdir() if one.read_bytes() != source]
        assert not others, "a source is built in a folder of its own"
        self.folders.append(folder)
        if b"syntax error" in source:
            raise Refused("compile", "error: expected ';'")
        if b"fopen" in source:
            raise Refused("symbols", "it needs fopen")
        artefact = folder / f"{layout.seed}.so"
        artefact.write_bytes(source)
        code = hashlib.sha256(re.sub(rb"// same.*\n", b"", source)).hexdigest()
        digest = hashlib.sha256(source).hexdigest()
        resources = {"vgprs": cost_of(source), "writable_bytes": 8 if b"keeps" in source else 0}
        return Build("cpu", kernel, artefact, digest, code, "fake 1", ("-O3",), layout, resources)

    def start(self, build: Build) -> AbstractContextManager["FakeTarget"]:
        return nullcontext(self)

    def run(self, call: Call) -> Execution:
        raise AssertionError("the stand-ins for correctness and timing run nothing")


class FakeChecker:
    """Finds everything right that does not say `wrong`, or, in a deep check, `astray`."""

    def check(
        self, builder: Builder, baseline: Version | None, version: Version, seed: int, *, is_deep: bool = False
    ) -> Record:
        built = builder(version).artefact.read_bytes()
        if is_deep and b"astray" in built:
            raise Refused("outputs", "y[877] is 0.0 and should be 1.0")
        if not is_deep and b"wrong" in built:
            raise Refused("outputs", "y[3] is 2.0 and should be 1.0")
        return {"calls": 120 if is_deep else 12, "seed": seed, "is_baseline": baseline is None}


@dataclass
class FakeTimer:
    """Reads the costs out of the builds. What says `lucky` is faster in the search alone; `noisy` fails A/A.

    A source that says `interferes` is as slow as the first source wherever it is compared with that one.
    """

    noisy: bool = False
    threshold: float = 0.02
    seeds: dict[str, list[int]] = field(default_factory=dict)

    def measure(self, step: TimingStep, builder: Builder, versions: tuple[Version, Version], seed: int) -> Record:
        self.seeds.setdefault(step, []).append(seed)
        baseline, candidate = (builder(one, Layout(seed % 97)).artefact.read_bytes() for one in versions)
        if b"hangs" in candidate:
            raise Refused("time", "a call took more than 10 s")
        if baseline == SOURCE and b"interferes" in candidate:
            candidate = SOURCE
        luck = 2 if b"lucky" in candidate and step == "search" else 1
        pairs = [[cost_of(baseline) + jitter, cost_of(candidate) // luck + jitter] for jitter in range(4)]
        return {"pairs_ns": pairs, "layouts": [seed % 97], "alpha": 0.01, "noisy": self.noisy}

    def decide(self, step: TimingStep, evidence: Record) -> Ruling:
        ratios = sorted(before / after for before, after in evidence["pairs_ns"])
        low, high = ratios[0], ratios[-1]
        figures = (sum(ratios) / len(ratios), low, high)
        if step == "aa":
            if evidence["noisy"]:
                return Ruling(False, "aa", "identical code differs by 9 %", *figures)
            return Ruling(True, None, "identical code does not differ", *figures)
        if low >= 1 + self.threshold:
            return Ruling(True, None, f"at least {low:.3f} times faster", *figures)
        return Ruling(False, "not_faster", f"{low:.3f} is below {1 + self.threshold}", *figures)


class FakeStatic:
    """Says the cost is the number of registers, and refuses more than 150."""

    def figures(self, source: bytes, kernel: str) -> Figures:
        code = "same" if b"host alone" in source else source.hex()
        return {"gfx942": {"vgprs": cost_of(source), "code_sha256": code}}

    def check(self, before: Figures, after: Figures, block: Any = None, parameters: Any = None) -> None:
        if after["gfx942"]["vgprs"] > 150:
            raise Refused("resources", "VGPRs rise")
        if after["gfx942"]["code_sha256"] == "same":
            raise Refused("no_effect", "the machine code on gfx942 is the baseline's")


class Scripted:
    """A proposer that offers these sources one after the other, whatever it is asked about."""

    name = "scripted"

    def __init__(self, *offers: bytes | NotApplicable | Candidate) -> None:
        self.offers = offers
        self.asked: list[bytes] = []
        self.heard: list[list[str]] = []

    def propose(self, task: Task) -> Iterator[Candidate | NotApplicable]:
        self.asked.append(task.source)
        for offer in self.offers:
            yield candidate(offer) if isinstance(offer, bytes) else offer
            self.heard.append([words for _, words in task.attempts])


class Repairing(Scripted):
    """As `Scripted`; of what is refused it offers these mends, in their order."""

    def __init__(self, offer: bytes, *mends: bytes | NotApplicable) -> None:
        super().__init__(offer)
        self.mends = list(mends)
        self.refusals: list[str] = []

    def repair(self, task: Task, candidate_: Candidate, refused: Refused) -> Candidate | NotApplicable:
        self.refusals.append(f"{refused.guard}: {refused.reason}")
        mend = self.mends.pop(0)
        return candidate(mend) if isinstance(mend, bytes) else mend


def candidate(source: bytes, **more: Any) -> Candidate:
    return Candidate(KERNEL, source, "scripted", "a change", False, **more)


def question(source: bytes = SOURCE, *, seconds: float = 1e6, attempts: int = 20, seed: int = 7) -> Question:
    return Question(source, KERNEL, (), (64, 1, 1), Limits(round(seconds * 1e9), attempts), seed)


def check_text(baseline: bytes, candidate: bytes, kernel: str, *, allowed: Collection[SignatureChange] = ()) -> None:
    if b"elsewhere" in candidate:
        raise Refused("outside_kernel", "bytes outside the kernel differ")


def means(folder: Path, *proposers: Proposer, **more: Any) -> tuple[Means, list[Record]]:
    """Means of stand-ins alone, and the lines they record. The clock moves on by a second whenever it is read."""
    lines: list[Record] = []
    ticks = itertools.count(step=1_000_000_000)
    clock: Callable[[], int] = lambda: next(ticks)  # noqa: E731
    given: dict[str, Any] = {
        "target": FakeTarget(),
        "proposers": proposers,
        "check_text": check_text,
        "static": FakeStatic(),
        "checker": FakeChecker(),
        "timer": FakeTimer(),
        "now_ns": clock,
        "record": lines.append,
        "tell": lambda told: None,
        "folder": folder,
    }
    return Means(**(given | more)), lines
