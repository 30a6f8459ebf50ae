"""Take one candidate through the guards, cheapest first, and turn its evidence into a decision.

Each step leaves its observations for the journal; `replay` applies the same rule to a journal.
"""

import hashlib
import random
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from typing import Any, Final, Literal

from aaco_pipeline.errors import UsageError
from aaco_pipeline.optimization.candidates import Candidate, Refused
from aaco_pipeline.optimization.guards.objects import check_state
from aaco_pipeline.optimization.journal import text_of
from aaco_pipeline.optimization.loop.means import Builder, Figures, Means, Ruling, TimingStep, Version, version_of
from aaco_pipeline.optimization.targets import Build

Word = Literal["accepted", "rejected", "undecided"]
#: Guards that do not count against a candidate: a noisy machine, spent time, a faulty baseline.
UNDECIDED_BY: Final = ("aa", "budget", "baseline")


@dataclass(frozen=True)
class Stop:
    """A candidate was stopped before its timing was decisive: the step, the guard and its reason."""

    step: str
    guard: str
    reason: str


@dataclass(frozen=True)
class Decision:
    """The decision on an attempt, with the reason.

    Figures come from the confirming processes, see `measured_in`; an attempt that was not confirmed has the figures of
    the search, which are biased upwards by selecting the best of many. Null if nothing was timed. For several changes
    together they are measured in `whole`.
    """

    decision: Word
    guard: str
    reason: str
    measured_in: str | None = None
    speedup_ratio: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None

    @property
    def words(self) -> str:
        """For proposers: `rejected (compile): …`."""
        return f"{self.decision} ({self.guard}): {self.reason}"


def decide(stop: Stop | None, rulings: Mapping[str, Ruling]) -> Decision:
    """Decide on an attempt: accepted only if nothing stopped it and the confirmation passed.

    `rulings` holds the rulings of the steps `search` and `confirmation`, as far as they were made.
    """
    last = next((step for step in ("confirmation", "search") if step in rulings), None)
    ruling = None if last is None else rulings[last]
    if stop is None and ruling is None:
        raise ValueError("an attempt that nothing stopped was not timed")
    if stop is None and ruling is not None and ruling.passed and (last == "search" or "search" not in rulings):
        raise ValueError("an attempt that was faster was not confirmed")
    return _decided(stop, ruling, last)


def decide_whole(stop: Stop | None, ruling: Ruling | None) -> Decision:
    """Decide on several accepted changes timed together: accepted only if their confirmation passed."""
    if stop is None and ruling is None:
        raise ValueError("what nothing stopped was not timed")
    return _decided(None if ruling is not None and ruling.passed else stop, ruling, "whole")


def _decided(stop: Stop | None, ruling: Ruling | None, measured_in: str | None) -> Decision:
    figures = () if ruling is None else (measured_in, ruling.speedup_ratio, ruling.ci_low, ruling.ci_high)
    if stop is None and ruling is not None and ruling.passed:
        return Decision("accepted", "confirmation", ruling.reason, *figures)
    said = stop or ruling
    assert said is not None, "the callers have looked"
    # A gain that the first processes showed and the second did not is not a gain, whatever the rule says.
    guard = said.guard or ("not_faster" if measured_in == "search" else "confirmation")
    return Decision("undecided" if guard in UNDECIDED_BY else "rejected", guard, said.reason, *figures)


#: Guards whose refusals a proposer may repair: the candidate does not compile or is incorrect.
MENDABLE: Final = ("compile", "result", "outputs", "determinism", "memory", "inputs", "symbols")
#: The reason for refusing a candidate that changes nothing.
NO_EFFECT: Final = "the compiler made the same machine code of it"


@dataclass(frozen=True)
class Held:
    """The baseline of candidates: a version, its build, and its static figures if it was compiled for them.

    Outputs are compared with those of `original`, the initial source, so that errors do not accumulate over accepted
    changes; `is_exact` while every accepted change is bit-exact.
    """

    version: Version
    build: Build
    static: Figures | None
    original: Version
    is_exact: bool = True


@dataclass(frozen=True)
class Builders:
    """The builders: one for the entire search, which builds a baseline once per layout, and fresh ones on request."""

    search: Builder
    cold: Callable[[], Builder]


@dataclass
class Attempt:
    """A candidate with its result. `record` is its line of the journal; `held` the next baseline if it is accepted."""

    number: int
    candidate: Candidate
    decision: Decision
    record: dict[str, Any]
    held: Held | None = None


@dataclass
class _Way:
    """Results of the steps so far, as stored in the journal."""

    seen: dict[str, Any] = field(default_factory=dict)
    rulings: dict[str, Ruling] = field(default_factory=dict)
    build: Build | None = None
    static: Figures | None = None


def try_candidate(
    means: Means, held: Held, candidate: Candidate, builders: Builders, *, number: int, seed: int
) -> Attempt:
    """Take a candidate through all guards until one stops it; see the module for the order.

    `seed` is the search's: all random choices of an attempt follow from it and the attempt's number.
    """
    way, version = _Way(), version_of(candidate, held.version)
    step, stop = "text", None
    try:
        for step, take in _steps(means, held, candidate, builders, partial(drawn, seed, number)).items():
            if step == "deep_correctness" and not way.rulings["search"].passed:
                break
            take(way)
    except Refused as refused:
        stop = Stop(step, refused.guard, refused.reason)
    except UsageError as error:  # the initial source fails on a drawn input: this is not the candidate's fault
        stop = Stop(step, "baseline", str(error))
    decision = decide(stop, way.rulings)
    record = {
        "kind": "attempt",
        "attempt": number,
        **described(candidate),
        "baseline_sha256": sha256(held.version.source),
        "baseline_code_sha256": held.build.code_sha256,
        "baseline_resources": dict(held.build.resources),
        "baseline_block": None if held.version.block is None else list(held.version.block),
        "seed": seed,
        **way.seen,
        "stop": None if stop is None else asdict(stop),
        **asdict(decision),
    }
    after = None
    if decision.decision == "accepted":
        after = Held(version, _made(way), way.static, held.original, held.is_exact and version.bit_exact)
    return Attempt(number, candidate, decision, record, after)


def described(candidate: Candidate) -> dict[str, Any]:
    """Describe a candidate for the journal, with everything needed to try it again."""
    return {
        "kernel": candidate.kernel,
        "proposer": candidate.proposer,
        "transformation": candidate.transformation,
        "parameters": dict(candidate.parameters),
        "bit_exact": candidate.bit_exact,
        "signature": list(candidate.signature),
        "block": None if candidate.block is None else list(candidate.block),
        "source": text_of(candidate.source),
        "source_sha256": sha256(candidate.source),
    }


def built(build: Build) -> dict[str, Any]:
    """Describe a build for the journal, without file paths."""
    return {
        "target": build.target,
        "source_sha256": build.source_sha256,
        "code_sha256": build.code_sha256,
        "compiler": build.compiler,
        "flags": list(build.flags),
        "layout_seed": build.layout.seed,
        "resources": dict(build.resources),
        "warnings": list(build.warnings),
    }


def drawn(seed: int, *what: object) -> int:
    """Derive a seed for a single purpose from the search's seed."""
    return random.Random("-".join(map(str, (seed, *what)))).getrandbits(63)


def sha256(source: bytes) -> str:
    """Return the SHA-256 of a source in hexadecimal digits."""
    return hashlib.sha256(source).hexdigest()


def is_unchanged(baseline_code: str, code: str, block: object, baseline_block: object) -> bool:
    """Return whether a candidate runs the same instructions in the same workgroups."""
    return baseline_code == code and block == baseline_block


# ---- the steps -------------------------------------------------------------------------------------------------------


def _steps(
    means: Means, held: Held, candidate: Candidate, builders: Builders, seed: Callable[[str], int]
) -> dict[str, Callable[[_Way], None]]:
    builder, version = builders.search, version_of(candidate, held.version)
    asked = replace(version, bit_exact=version.bit_exact and held.is_exact)
    # Confirmation reuses nothing of the first processes: rebuilt in an empty folder, with other layouts and inputs.
    cold = cache(builders.cold)

    def text(way: _Way) -> None:
        means.check_text(held.version.source, version.source, version.kernel, allowed=candidate.signature)

    def build(way: _Way) -> None:
        way.build = builder(version)
        way.seen["build"] = built(way.build)
        kept = [one.resources.get("writable_bytes") for one in (held.build, way.build)]
        if kept[0] is not None and kept[1] is not None:
            check_state(kept[0], kept[1])

    def effect(way: _Way) -> None:
        if is_unchanged(held.build.code_sha256, _made(way).code_sha256, version.block, held.version.block):
            raise Refused("no_effect", NO_EFFECT)

    def static(way: _Way) -> None:
        if means.static is None or held.static is None:
            way.seen["static"] = None
            return
        way.static = means.static.figures(version.source, version.kernel)
        seen = {"before": _plain(held.static), "after": _plain(way.static), "is_unchanged": False}
        way.seen["static"] = seen
        try:
            means.static.check(held.static, way.static, version.block, candidate.parameters)
        except Refused as refused:
            if refused.guard != "no_effect":
                raise
            # This target's code changed; unchanged instructions on a GPU are reported but are not an error.
            seen["is_unchanged"] = True

    def correctness(way: _Way) -> None:
        way.seen["correctness"] = dict(means.checker.check(builder, held.original, asked, seed("correctness")))

    def deep_correctness(way: _Way) -> None:
        facts = means.checker.check(cold(), held.original, asked, seed("deep_correctness"), is_deep=True)
        way.seen["deep_correctness"] = dict(facts)

    def timed(way: _Way, step: TimingStep, builder: Builder) -> None:
        evidence = means.timer.measure(step, builder, (held.version, version), seed(step))
        way.rulings[step] = ruling = means.timer.decide(step, evidence)
        way.seen.setdefault("timings", {})[step] = {"evidence": dict(evidence), "ruling": asdict(ruling)}

    return {
        "text": text,
        "build": build,
        "effect": effect,
        "static": static,
        "correctness": correctness,
        "search": lambda way: timed(way, "search", builder),
        "deep_correctness": deep_correctness,
        "confirmation": lambda way: timed(way, "confirmation", cold()),
    }


def _made(way: _Way) -> Build:
    if way.build is None:
        raise AssertionError("a step that needs the build came before it")
    return way.build


def _plain(figures: Figures) -> dict[str, dict[str, Any]]:
    return {architecture: dict(one) for architecture, one in figures.items()}
