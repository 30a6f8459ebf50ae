"""Search for a faster runtime configuration of a model.

It works like the search for kernels, but varies fields of the measurement request. Changes that keep the work of an
iteration come first, and each accepted change becomes the baseline of later ones; then larger batches are compared with
the accepted configuration by time per item, and none of them becomes a baseline. Its journal has the same kinds of
lines, and its decisions can be repeated from them alone.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, Final

from aaco_pipeline.optimization.candidates import NotApplicable, Refused
from aaco_pipeline.optimization.journal import VERSION, Journal
from aaco_pipeline.optimization.loop.attempt import Stop, decide
from aaco_pipeline.optimization.loop.means import Limits, Record, Ruling, TimingStep
from aaco_pipeline.optimization.loop.replay import Replayed, replayed, replayed_aa
from aaco_pipeline.optimization.loop.search import End
from aaco_pipeline.optimization.loop.timing import looks_of, plan_of, plan_record, recorded_plan, rule_on
from aaco_pipeline.optimization.proposers.onnx import OnnxCandidate

#: Fields of the measurement request, by name, that differ from the original request.
Configuration = Mapping[str, Any]
_PROPOSER: Final = "onnx"
_TIMED: Final[tuple[TimingStep, ...]] = ("search", "confirmation")


@dataclass(frozen=True)
class ModelQuestion:
    """The question without the request itself. `items` is the batch size of the original request."""

    threshold: float
    limits: Limits
    items: int = 1


Measure = Callable[[TimingStep, Configuration, Configuration, int], Record]
"""Measures so many blocks of fresh sessions of the baseline and the candidate.

Returns `campaign`, and `pairs`: for `candidate` and `itself` a block's medians, `baseline_ns` and `candidate_ns`; for
`aa` only `itself`, for `search` only `candidate`, for `confirmation` both. Refused when a session of the candidate
fails, the sessions did not share a machine, or the blocks would take more time than is left.
"""

Check = Callable[[Configuration], Record]
"""Checks that a configuration computes what the request as it was computes; the empty one is compared with itself.

Returns facts for the journal, `depend_on_inputs` among them; Refused where outputs differ by more than rounding.
"""


@dataclass(frozen=True)
class ModelMeans:
    """The means of the search; `now_ns` is a monotonic clock.

    `called` formats changes as options of `aaco run`, `command` all options of a configuration.
    """

    propose: Callable[[Configuration], Sequence[OnnxCandidate | NotApplicable]]
    check: Check
    measure: Measure
    called: Callable[[Configuration], str]
    command: Callable[[Configuration], str]
    now_ns: Callable[[], int]
    record: Callable[[Record], None]
    tell: Callable[[str], None]


@dataclass
class ModelOutcome:
    """The result of a search: why it ended, and the configuration with all accepted changes except batches."""

    end: End
    reason: str
    held: Configuration = field(default_factory=dict)


def search_configurations(question: ModelQuestion, means: ModelMeans, begin: Record) -> ModelOutcome:
    """Search until the limits are reached or there are no more proposals.

    `begin` holds other facts of the search (the request, the host) as JSON values.
    """
    return _Search(question, means).run(begin)


def replay_configurations(journal: Journal) -> list[Replayed]:
    """Repeat every decision for which the journal of such a search has evidence."""
    plan, again = recorded_plan(journal.begin["plan"]), []
    for line in journal.lines:
        if line["kind"] == "aa" and line["evidence"] is not None:
            ruling = rule_on("aa", line["evidence"], plan)
            assert ruling is not None, "one look decides"
            again.append(replayed_aa(ruling, line))
        elif line["kind"] == "attempt":
            timed = {
                step: timing["evidence"] for step, timing in line["timings"].items() if timing["ruling"] is not None
            }
            rulings = {step: ruling for step, one in timed.items() if (ruling := rule_on(step, one, plan)) is not None}
            decision = decide(None if line["stop"] is None else Stop(**line["stop"]), rulings)
            again.append(replayed(decision, line))
    return again


@dataclass
class _Way:
    """Results of the steps of one attempt so far."""

    correctness: Record | None = None
    timings: dict[TimingStep, Any] = field(default_factory=dict)
    rulings: dict[str, Ruling] = field(default_factory=dict)


class _Search:
    def __init__(self, question: ModelQuestion, means: ModelMeans) -> None:
        self._question, self._means = question, means
        self._plan = plan_of(question.threshold)
        self._began_ns = means.now_ns()
        self._tried: set[str] = {_key({})}
        self._told: set[str] = set()
        self._accepted: list[int] = []
        self._attempts = 0

    def run(self, begin: Record) -> ModelOutcome:
        question = {"limits": asdict(self._question.limits), "threshold_ratio": self._question.threshold}
        plan = {"alpha": self._plan.alpha, "plan": plan_record(self._plan), "run_options": self._means.command({})}
        self._record({"kind": "begin", "version": VERSION, "kernel": None, **question, **plan, **begin})
        outcome = self._searched()
        self._record(
            {
                "kind": "end",
                "end": outcome.end,
                "reason": outcome.reason,
                "attempts": self._attempts,
                "accepted": self._accepted,
                "configuration": dict(outcome.held),
                "run_options": self._means.command(outcome.held),
                "source_sha256": begin["source_sha256"],
            }
        )
        return outcome

    def _searched(self) -> ModelOutcome:
        try:
            self._means.tell("outputs: running the model twice on drawn inputs")
            facts = dict(self._means.check({}))
            self._record({"kind": "baseline", "correctness": facts, "refused": None})
        except Refused as refused:
            self._record({"kind": "baseline", "refused": {"guard": refused.guard, "reason": refused.reason}})
            return ModelOutcome("baseline", refused.reason)
        ruling = self._aa()
        if not ruling.passed:
            return ModelOutcome("time" if ruling.guard == "budget" else "noise", ruling.reason)
        held: Configuration = {}
        while (accepted := self._round(held, same_work=True)) is not None:
            held = accepted
        self._round(held, same_work=False)
        end, reason = self._spent() or ("searched", "nothing is left to propose")
        if not facts["depend_on_inputs"]:
            reason = f"{reason}; the model's outputs are the same on all drawn inputs, so that equal ones say little"
        return ModelOutcome(end, reason, held)

    def _aa(self) -> Ruling:
        self._means.tell(f"A/A: {self._plan.self_layouts} blocks of the model beside itself")
        way = _Way()
        try:
            ruling = self._timed(way, "aa", {}, {})
        except Refused as refused:
            ruling = Ruling(False, refused.guard, refused.reason)
            self._record({"kind": "aa", "evidence": None, "ruling": asdict(ruling)})
            return ruling
        self._record({"kind": "aa", **way.timings["aa"]})
        return ruling

    def _round(self, held: Configuration, *, same_work: bool) -> Configuration | None:
        """Try the proposals for one configuration: up to the first accepted one, or all if they change the work."""
        for candidate in self._proposed(held):
            if candidate.same_work is not same_work:
                continue
            if self._spent() is not None:
                return None
            configuration = {**held, **candidate.changes}
            if (key := _key(configuration)) in self._tried:
                continue
            self._tried.add(key)
            if self._try(held, configuration, candidate) and same_work:
                return configuration
        return None

    def _proposed(self, held: Configuration) -> Iterator[OnnxCandidate]:
        for proposal in self._means.propose(held):
            if isinstance(proposal, OnnxCandidate):
                yield proposal
            elif proposal.reason not in self._told:  # once, because it is asked again after every accepted change
                self._told.add(proposal.reason)
                told = {"proposer": proposal.proposer, "reason": proposal.reason}
                self._record({"kind": "not_applicable", **told})

    def _try(self, held: Configuration, configuration: Configuration, candidate: OnnxCandidate) -> bool:
        number, began_ns, way = self._attempts, self._means.now_ns(), _Way()
        self._attempts += 1
        stop, reached = None, "correctness"
        try:
            way.correctness = dict(self._means.check(configuration))
            for step in _TIMED:
                reached = step
                if not self._timed(way, step, held, configuration).passed:
                    break
        except Refused as refused:
            stop = Stop(reached, refused.guard, refused.reason)
        decision = decide(stop, way.rulings)
        if decision.decision == "accepted":
            self._accepted.append(number)
        self._record(
            {
                "kind": "attempt",
                "attempt": number,
                **_unlike_a_kernel(),
                "transformation": self._means.called(candidate.changes),
                "why": candidate.why,
                "held": dict(held),
                "configuration": dict(configuration),
                "ratio_of": "iteration" if candidate.same_work else "item",
                "correctness": way.correctness,
                "timings": way.timings,
                "campaigns": [one for timing in way.timings.values() for one in timing["evidence"]["campaigns"]],
                "stop": None if stop is None else asdict(stop),
                "spent_ns": self._means.now_ns() - began_ns,
                **asdict(decision),
            }
        )
        return decision.decision == "accepted"

    def _timed(self, way: _Way, step: TimingStep, held: Configuration, candidate: Configuration) -> Ruling:
        """Measure blocks until a look decides. If time runs out first, the measurements stay in `way`."""
        pairs: dict[str, list[Any]] = {"candidate": [], "itself": []}
        items = [self._items(held), self._items(candidate)]
        evidence: Any = {"alpha": self._plan.candidate_alpha, "items": items, "campaigns": [], "pairs": pairs}
        timing = way.timings[step] = {"evidence": evidence, "ruling": None}
        for measured, look in pairwise((0, *looks_of(step, self._plan))):
            more = self._means.measure(step, held, candidate, look - measured)
            evidence["campaigns"].append(more["campaign"])
            for arm, taken in more["pairs"].items():
                pairs[arm] += taken
            if (ruling := rule_on(step, evidence, self._plan)) is not None:
                way.rulings[step] = ruling
                timing["ruling"] = asdict(ruling)
                return ruling
        raise AssertionError("the last look decides")

    def _items(self, configuration: Configuration) -> int:
        return int(configuration.get("batch_size", self._question.items))

    def _spent(self) -> tuple[End, str] | None:
        limits = self._question.limits
        if self._attempts >= limits.attempts:
            return "attempts", f"{limits.attempts} candidates were tried, as many as it may"
        is_over = self._means.now_ns() - self._began_ns >= limits.time_ns
        return ("time", "its time is spent") if is_over else None

    def _record(self, record: Record) -> None:
        self._means.record({"at_ns": self._means.now_ns() - self._began_ns, **record})


def _key(configuration: Configuration) -> str:
    return json.dumps(configuration, sort_keys=True)


def _unlike_a_kernel() -> dict[str, Any]:
    """Fill the fields that only a kernel's attempt has: a source, a build, a compiler's figures."""
    nothing = dict.fromkeys(("kernel", "source_sha256", "baseline_sha256", "build", "static"))
    return {**nothing, "proposer": _PROPOSER, "parameters": {}, "baseline_resources": {}, "bit_exact": False}
