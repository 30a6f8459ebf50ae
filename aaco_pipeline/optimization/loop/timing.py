"""The timing rule of `aaco_pipeline.optimization.decision` as the search's timer: on workers, and on recorded pairs."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from aaco_pipeline.optimization.calls import Call, Execution
from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.correctness.comparison import Comparison
from aaco_pipeline.optimization.decision.bounds import Estimate
from aaco_pipeline.optimization.decision.interleaving import InterleavedPairs
from aaco_pipeline.optimization.decision.outcome import Decision
from aaco_pipeline.optimization.decision.pairs import Pairs, PairSource
from aaco_pipeline.optimization.decision.plan import Plan
from aaco_pipeline.optimization.decision.rule import against_itself, confirm, draw_layouts, search
from aaco_pipeline.optimization.harness import Harness, Size
from aaco_pipeline.optimization.loop.launching import relaunched
from aaco_pipeline.optimization.loop.means import Builder, Record, Ruling, TimingStep, Version
from aaco_pipeline.optimization.targets import Layout, Worker

_DISTRIBUTION: Final = "normal"
_FIRST_CALLS: Final = (
    "baseline_first_call_ns",
    "candidate_first_call_ns",
    "baseline_load_ns",
    "candidate_load_ns",
)


class RuleTimer:
    """Measures by a plan that was declared before. Without a harness it only decides, as a replay does.

    `seed` is the run's: all searches share their layouts, so that a baseline is built once in each; a confirmation has
    layouts of its own. `floor_ns` is the least time of a call at the machine's ceilings, null where none are known.
    """

    def __init__(self, plan: Plan, seed: int, harness: Harness | None = None, floor_ns: float | None = None) -> None:
        self._plan, self._seed, self._harness, self._floor_ns = plan, seed, harness, floor_ns
        self._itself: Estimate | None = None
        self._found: Decision | None = None

    def measure(self, step: TimingStep, builder: Builder, versions: tuple[Version, Version], seed: int) -> Record:
        """Pairs of one step as plain values, each layout's with the seed it was built by."""
        if self._harness is None:
            raise AssertionError("a timer without a harness measures nothing")
        shared, own = draw_layouts(self._seed, self._plan), draw_layouts(seed, self._plan)
        layouts = {"aa": shared.itself, "search": shared.search, "confirmation": own.confirmation}[step]
        arms = {
            "candidate": _Recording(_source(self._harness, builder, versions, seed)),
            "itself": _Recording(_source(self._harness, builder, (versions[0], versions[0]), seed)),
        }
        try:
            self._ruled(step, arms, layouts, self._floor_ns)
        except Refused as refused:
            if refused.guard != "aa":
                raise
        return {
            "seed": seed,
            "layouts": list(layouts),
            "floor_ns": self._floor_ns,
            "alpha": self._plan.candidate_alpha,
            "pairs": {name: arm.taken for name, arm in arms.items()},
        }

    def decide(self, step: TimingStep, evidence: Record) -> Ruling:
        """The ruling on one step's pairs; of A/A and of a search what follows from it is kept for the next step."""
        arms = {name: _Recorded(taken) for name, taken in evidence["pairs"].items()}
        try:
            ruled = self._ruled(step, arms, evidence["layouts"], evidence["floor_ns"])
        except Refused as refused:
            return Ruling(False, refused.guard, refused.reason)
        if isinstance(ruled, Estimate):
            self._itself = ruled
            return _ruling(True, None, "identical code does not pass as changed", ruled)
        if step == "search" and ruled.guard is None:
            self._found = ruled
            return _ruling(True, None, "worth a confirmation", ruled.search)
        return _ruling(ruled.accepted, ruled.guard, ruled.reason, ruled.gain or ruled.search)

    def _ruled(
        self, step: TimingStep, arms: Mapping[str, PairSource], layouts: Sequence[int], floor_ns: float | None
    ) -> Estimate | Decision:
        if step == "aa":
            return against_itself(arms["itself"], layouts, self._plan)
        if self._itself is None:
            raise AssertionError("a candidate is timed after the baseline against itself")
        if step == "search":
            return search(arms["candidate"], layouts, self._plan, itself=self._itself, floor_ns=floor_ns)
        if self._found is None:
            raise AssertionError("a confirmation comes after a search")
        return confirm(arms["candidate"], arms["itself"], layouts, self._plan, found=self._found, floor_ns=floor_ns)


def plan_record(plan: Plan) -> dict[str, Any]:
    """A plan in the journal."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(plan).items()}


def recorded_plan(record: Mapping[str, Any]) -> Plan:
    """The plan that a journal holds."""
    values: dict[str, Any] = {name: tuple(one) if isinstance(one, list) else one for name, one in record.items()}
    return Plan(**values)


# ---- pairs from workers ----------------------------------------------------------------------------------------------


def _source(harness: Harness, builder: Builder, versions: tuple[Version, Version], seed: int) -> PairSource:
    """Pairs of two versions; of a version and itself, the second is built in another layout than the first."""
    baseline, candidate = versions
    size = harness.timed_size(builder.target.name)
    checks = _Checks(harness, size, candidate.bit_exact)
    other = 1 if baseline == candidate else 0

    def starting(version: Version, arm: str, shift: int) -> Callable[[int], AbstractContextManager[Worker]]:
        @contextmanager
        def start(layout: int) -> Any:
            with builder.target.start(builder(version, Layout(layout + shift))) as worker:
                yield _Watched(relaunched(worker, harness, size, version.block), arm, checks)

        return start

    return InterleavedPairs(
        start_baseline=starting(baseline, "baseline", 0),
        start_candidate=starting(candidate, "candidate", other),
        call=lambda rng: harness.drawn(size, _DISTRIBUTION, rng),
        check=lambda call, execution: None,  # the two answers are compared where the second is there
        seed=seed,
    )


class _Checks:
    """Compares both answers to every call, timed or not, as soon as there are two; errors of all calls together."""

    def __init__(self, harness: Harness, size: Size, bit_exact: bool) -> None:
        self._waiting: dict[int, tuple[str, Execution]] = {}
        self._comparison = Comparison(harness, size, _DISTRIBUTION, bit_exact=bit_exact, baseline_checked=True)

    def answered(self, arm: str, call: Call, execution: Execution) -> None:
        earlier = self._waiting.pop(id(call), None)
        if earlier is None:
            self._waiting = {id(call): (arm, execution)}
            return
        answers = {earlier[0]: earlier[1], arm: execution}
        self._comparison.add(call, answers["baseline"], answers["candidate"])
        if not self._comparison.undecided():
            self._comparison.conclude()


@dataclass(frozen=True)
class _Watched:
    """A worker whose every answer is handed on to be compared."""

    worker: Worker
    arm: str
    checks: _Checks

    def run(self, call: Call) -> Execution:
        execution = self.worker.run(call)
        self.checks.answered(self.arm, call, execution)
        return execution


# ---- pairs as plain values -------------------------------------------------------------------------------------------


class _Recording:
    """Hands on a source's pairs and keeps them."""

    def __init__(self, source: PairSource) -> None:
        self._source = source
        self.taken: list[dict[str, Any]] = []

    def pairs(self, layout_seed: int, count: int) -> Pairs:
        pairs = self._source.pairs(layout_seed, count)
        self.taken.append(
            {
                "layout_seed": layout_seed,
                "baseline_ns": pairs.baseline_ns.tolist(),
                "candidate_ns": pairs.candidate_ns.tolist(),
                "candidate_first": pairs.candidate_first.tolist(),
                **{name: getattr(pairs, name) for name in _FIRST_CALLS},
            }
        )
        return pairs


class _Recorded:
    """A source of pairs that were measured before. Refused (guard `layouts`) where the rule asks for others."""

    def __init__(self, taken: Sequence[Mapping[str, Any]]) -> None:
        self._taken = {one["layout_seed"]: one for one in taken}

    def pairs(self, layout_seed: int, count: int) -> Pairs:
        one = self._taken.get(layout_seed)
        if one is None or len(one["baseline_ns"]) != count:
            raise Refused("layouts", f"the record holds no {count} pairs of layout {layout_seed}")
        return Pairs(
            baseline_ns=np.asarray(one["baseline_ns"], dtype=np.int64),
            candidate_ns=np.asarray(one["candidate_ns"], dtype=np.int64),
            candidate_first=np.asarray(one["candidate_first"], dtype=np.bool_),
            **{name: one[name] for name in _FIRST_CALLS},
        )


def _ruling(passed: bool, guard: str | None, reason: str, interval: Estimate | None) -> Ruling:
    if interval is None:
        return Ruling(passed, guard, reason)
    # Bounds that so few layouts do not give are infinite, which is no figure.
    known = [float(one) if np.isfinite(one) and one > 0 else None for one in (interval.ci_low, interval.ci_high)]
    return Ruling(passed, guard, reason, float(interval.ratio), *known)
