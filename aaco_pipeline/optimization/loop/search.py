"""The search: from the baseline through candidates to a result, within its limits.

An accepted change is the baseline of all later candidates; every proposer is then asked again about the new source.
Several accepted changes are timed together at the end, because the product of their gains was never measured.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import prod
from typing import Any, Final, Literal

from aaco_pipeline.errors import UsageError
from aaco_pipeline.optimization.candidates import Candidate, NotApplicable, Proposer, Refused, Task
from aaco_pipeline.optimization.journal import VERSION, text_of
from aaco_pipeline.optimization.loop.attempt import (
    MENDABLE,
    Attempt,
    Builders,
    Decision,
    Held,
    Stop,
    built,
    decide_whole,
    drawn,
    sha256,
    try_candidate,
)
from aaco_pipeline.optimization.loop.means import Builder, Means, Question, Record, Ruling

GainOf = Literal["confirmation", "whole", "product"]
"""What a reported gain is: one change's confirmation, that of several as a whole, or the product of confirmations."""

_FIGURES: Final = ("speedup_ratio", "ci_low", "ci_high")


@dataclass(frozen=True)
class Gain:
    """The accepted source's speedup over the first one, with the ends of its interval."""

    of: GainOf
    speedup_ratio: float
    ci_low: float
    ci_high: float


def time_whole(
    means: Means, held: Held, builder: Builder, *, accepted: Sequence[int], seed: int
) -> tuple[Decision, dict[str, Any]]:
    """Time the accepted source against the initial one: the decision, and its line of the journal.

    `accepted` are the numbers of its attempts, `builder` builds in an empty folder, `seed` is drawn for
    this alone.
    """
    version = replace(held.version, bit_exact=held.is_exact)
    ruling: Ruling | None = None
    timings, stop = dict[str, Any](), None
    try:
        evidence = means.timer.measure("confirmation", builder, (held.original, version), seed)
        ruling = means.timer.decide("confirmation", evidence)
        timings["confirmation"] = {"evidence": dict(evidence), "ruling": asdict(ruling)}
    except Refused as refused:
        stop = Stop("whole", refused.guard, refused.reason)
    except UsageError as error:  # the initial source fails on a drawn input
        stop = Stop("whole", "baseline", str(error))
    decision = decide_whole(stop, ruling)
    record = {
        "kind": "whole",
        "attempts": list(accepted),
        "baseline_sha256": sha256(held.original.source),
        "source_sha256": sha256(version.source),
        "block": None if version.block is None else list(version.block),
        "bit_exact": version.bit_exact,
        "seed": seed,
        "timings": timings,
        "stop": None if stop is None else asdict(stop),
        **asdict(decision),
    }
    return decision, record


def is_kept(decision: str | None, guard: str | None) -> bool:
    """Return whether accepted changes are kept, by the decision on them as a whole; null without such a decision.

    They are kept if the whole was confirmed, or if only time was lacking, because each of them was proved separately.
    In all other cases the source stays unchanged.
    """
    return decision in (None, "accepted") or guard == "budget"


def gain_of(accepted: Sequence[Mapping[str, Any]], whole: Mapping[str, Any] | None) -> Gain | None:
    """Compute a search's gain from its journal; null if nothing was accepted, or the whole was rejected.

    The ends of a product are the products of the ends. A larger batch of a model is a separate question: its gain per
    item is not part of the gain per iteration.
    """
    accepted = [line for line in accepted if line.get("ratio_of") != "item"]
    if not accepted or (whole is not None and not is_kept(whole["decision"], whole["guard"])):
        return None
    if whole is not None and whole["decision"] == "accepted":
        return Gain("whole", *(whole[name] for name in _FIGURES))
    of: GainOf = "product" if len(accepted) > 1 else "confirmation"
    return Gain(of, *(prod(line[name] for line in accepted) for name in _FIGURES))


#: How often a proposer may repair one of its candidates.
MOST_REPAIRS: Final = 2

End = Literal["searched", "time", "attempts", "baseline", "noise"]
"""Why a search ended: all proposers were heard, time or attempts were spent, the baseline fails its own check, or the
machine is too noisy to decide."""


@dataclass
class Outcome:
    """The result of a search. `held` is the last accepted version, or the baseline; null if that failed.

    `whole` is the decision on several accepted changes together; null if there are none or only one.
    """

    end: End
    reason: str
    attempts: list[Attempt] = field(default_factory=list)
    baseline: Held | None = None
    held: Held | None = None
    whole: Decision | None = None

    @property
    def accepted(self) -> list[Attempt]:
        return [one for one in self.attempts if one.decision.decision == "accepted"]

    @property
    def is_kept(self) -> bool:
        """Return whether the accepted changes are kept: they were not refused as a whole."""
        return self.whole is None or is_kept(self.whole.decision, self.whole.guard)

    @property
    def result(self) -> bytes | None:
        """Return the search's final source: with the accepted changes, or the initial one if they are not kept."""
        if self.held is None:
            return None
        return (self.held.version if self.is_kept else self.held.original).source


def optimize(question: Question, means: Means, begin: Record) -> Outcome:
    """Search until the limits are reached or there are no more proposals. Writes files only below `means.folder`.

    `begin` holds other facts of the search (the host, the harness, the compile caches) as JSON values.
    """
    return _Search(question, means).run(begin)


class _Search:
    def __init__(self, question: Question, means: Means) -> None:
        self._question, self._means = question, means
        self._began_ns = means.now_ns()
        self._attempts: list[Attempt] = []
        self._heard: list[tuple[Candidate, str]] = []  # grows meanwhile: proposers see their results
        self._tried: set[tuple[bytes, object]] = set()
        self._told: set[tuple[str, str]] = set()
        self._cold = 0
        self._kept_back_ns = 0  # time reserved for timing the whole, once there is one
        self._builders = Builders(self._builder("search"), self._cold_builder)

    def run(self, begin: Record) -> Outcome:
        question, means = self._question, self._means
        self._record(
            {
                "kind": "begin",
                "version": VERSION,
                "kernel": question.kernel,
                "block": list(question.block),
                "source": text_of(question.source),
                "source_sha256": sha256(question.source),
                "target": means.target.name,
                "executed_on": means.target.executed_on,
                "speedup_applies_to": applies_to(means.target.name, means.target.executed_on),
                "clock": means.target.clock,
                "seed": question.seed,
                "limits": asdict(question.limits),
                "evidence": dict(question.evidence),
                **begin,
            }
        )
        outcome = self._searched()
        self._record(
            {
                "kind": "end",
                "end": outcome.end,
                "reason": outcome.reason,
                "attempts": len(outcome.attempts),
                "accepted": [one.number for one in outcome.accepted],
                "source_sha256": None if outcome.result is None else sha256(outcome.result),
            }
        )
        return outcome

    def _searched(self) -> Outcome:
        try:
            held = self._baseline()
        except (Refused, UsageError) as error:
            return Outcome("baseline", f"the source as it is fails: {error}")
        ruling = self._aa(held)
        end: End = "time" if ruling.guard == "budget" else "noise"
        outcome = Outcome(end, ruling.reason, self._attempts, held, held)
        if not ruling.passed:
            return outcome
        while (accepted := self._round(held)) is not None:
            outcome.held = held = accepted
        outcome.end, outcome.reason = self._spent() or ("searched", "nothing is left to propose")
        if len(outcome.accepted) > 1:
            outcome.whole = self._whole(held, [one.number for one in outcome.accepted])
        return outcome

    def _baseline(self) -> Held:
        """Build and check the initial source. Refused if it fails."""
        means, version = self._means, self._question.baseline
        means.tell("baseline: building and checking it")
        builder, seen, figures = Builder(means.target, means.folder / "baseline"), dict[str, Any](), None
        try:
            build = builder(version)
            seen["build"] = built(build)
            for step in ("correctness", "deep_correctness"):
                seed, is_deep = self._drawn("baseline", step), step == "deep_correctness"
                seen[step] = dict(means.checker.check(builder, None, version, seed, is_deep=is_deep))
            for note in dict.fromkeys(seen[step].get("note") for step in ("correctness", "deep_correctness")):
                if note is not None:
                    means.tell(f"note: {note}")
            if means.static is not None:
                figures = means.static.figures(version.source, version.kernel)
                seen["static"] = {name: dict(one) for name, one in figures.items()}
        except (Refused, UsageError) as error:
            guard, reason = (error.guard, error.reason) if isinstance(error, Refused) else ("baseline", str(error))
            self._record({"kind": "baseline", **seen, "refused": {"guard": guard, "reason": reason}})
            raise
        self._record({"kind": "baseline", **seen, "refused": None})
        return Held(version, build, figures, version)

    def _aa(self, held: Held) -> Ruling:
        """Time the baseline against a copy of itself: if they differ, nothing can be decided here."""
        means = self._means
        means.tell("A/A: timing the baseline against itself")
        builder = self._builder("aa")
        try:
            evidence = means.timer.measure("aa", builder, (held.version, held.version), self._drawn("aa"))
        except Refused as refused:
            ruling = Ruling(False, refused.guard, refused.reason)
            self._record({"kind": "aa", "evidence": None, "ruling": asdict(ruling)})
            return ruling
        ruling = means.timer.decide("aa", evidence)
        self._record({"kind": "aa", "evidence": dict(evidence), "ruling": asdict(ruling)})
        return ruling

    def _whole(self, held: Held, accepted: list[int]) -> Decision:
        """Time all accepted changes together against the initial source, in the time reserved for this."""
        means, began_ns = self._means, self._means.now_ns()
        means.tell(f"timing the {len(accepted)} accepted changes as a whole")
        self._kept_back_ns = 0
        builder, seed = self._builder("whole"), self._drawn("whole", "confirmation")
        decision, record = time_whole(means, held, builder, accepted=accepted, seed=seed)
        self._record(record | {"spent_ns": means.now_ns() - began_ns})
        return decision

    def _round(self, held: Held) -> Held | None:
        """Ask every proposer about one source: the first accepted change; None if there is none."""
        block = held.version.block or self._question.block
        question, wavefront_size = self._question, self._means.target.wavefront_size
        task = Task(held.version.source, question.kernel, block, wavefront_size, question.evidence, self._heard)
        for proposer in self._means.proposers:
            for candidate in self._proposed(proposer, task):
                if self._spent() is not None:
                    return None
                if (accepted := self._tried_with_repairs(proposer, task, candidate, held)) is not None:
                    return accepted
            if self._spent() is not None:
                return None
        return None

    def _proposed(self, proposer: Proposer, task: Task) -> Iterator[Candidate]:
        """Yield a proposer's candidates that were not tried before; record why it has none."""
        proposals = iter(proposer.propose(task))
        while True:
            try:
                proposal = next(proposals)
            except StopIteration:
                return
            except Refused as refused:
                self._not_applicable(NotApplicable(proposer.name, f"{refused.guard}: {refused.reason}"))
                return
            if isinstance(proposal, NotApplicable):
                self._not_applicable(proposal)
            elif self._is_new(proposal):
                yield proposal

    def _tried_with_repairs(self, proposer: Proposer, task: Task, candidate: Candidate, held: Held) -> Held | None:
        repair = getattr(proposer, "repair", None)
        for repairs in range(MOST_REPAIRS + 1):
            attempt = self._try(candidate, held, repairs)
            stop = attempt.record["stop"]
            if attempt.held is not None:
                return attempt.held
            if repair is None or stop is None or stop["guard"] not in MENDABLE or repairs == MOST_REPAIRS:
                return None
            if self._spent() is not None:
                return None
            try:
                mended = repair(task, candidate, Refused(stop["guard"], stop["reason"]))
            except Refused as refused:
                mended = NotApplicable(proposer.name, f"{refused.guard}: {refused.reason}")
            if isinstance(mended, NotApplicable):
                self._not_applicable(mended)
                return None
            if not self._is_new(mended):
                self._not_applicable(NotApplicable(proposer.name, "its repair is what was tried before"))
                return None
            candidate = mended
        return None

    def _try(self, candidate: Candidate, held: Held, repairs: int) -> Attempt:
        number, began_ns = len(self._attempts), self._means.now_ns()
        seed = self._question.seed
        attempt = try_candidate(self._means, held, candidate, self._builders, number=number, seed=seed)
        attempt.record |= {"repairs": repairs, "spent_ns": self._means.now_ns() - began_ns}
        self._attempts.append(attempt)
        self._heard.append((candidate, attempt.decision.words))
        self._record(attempt.record)
        accepted = [one.record["spent_ns"] for one in self._attempts if one.decision.decision == "accepted"]
        if len(accepted) > 1:
            self._kept_back_ns = max(accepted)
        return attempt

    def _is_new(self, candidate: Candidate) -> bool:
        """Return whether it is new on this baseline and earlier ones; it counts as tried from now on."""
        before = len(self._tried)
        self._tried.add((candidate.source, candidate.block))
        return len(self._tried) > before

    def _not_applicable(self, reply: NotApplicable) -> None:
        """Record why a proposer has no proposal; once, because it is asked again after every accepted change."""
        if (key := (reply.proposer, reply.reason)) not in self._told:
            self._told.add(key)
            self._record({"kind": "not_applicable", "proposer": reply.proposer, "reason": reply.reason})

    def _spent(self) -> tuple[End, str] | None:
        limits = self._question.limits
        if len(self._attempts) >= limits.attempts:
            return "attempts", f"{limits.attempts} candidates were tried, as many as it may"
        if self._attempts and (last := self._attempts[-1].decision).guard == "baseline":
            return "baseline", last.reason
        return ("time", "its time is spent") if self._time_is_spent() else None

    def _time_is_spent(self) -> bool:
        return self._means.now_ns() - self._began_ns >= self._question.limits.time_ns - self._kept_back_ns

    def _builder(self, name: str) -> Builder:
        return Builder(self._means.target, self._means.folder / name, self._time_is_spent)

    def _cold_builder(self) -> Builder:
        self._cold += 1
        return self._builder(f"confirmation-{self._cold}")

    def _drawn(self, *what: object) -> int:
        return drawn(self._question.seed, *what)

    def _record(self, record: Record) -> None:
        self._means.record({"at_ns": self._means.now_ns() - self._began_ns, **record})


def applies_to(target: str, executed_on: str) -> str:
    """Name the device to which a measured gain applies: `cpu` if a kernel ran there, else the device it ran on."""
    return "cpu" if target == "cpu" else executed_on
