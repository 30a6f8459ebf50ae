"""The timing rule as the search's timer: for interleaved workers, for blocks of sessions, and for recorded pairs.

The rule itself is `aaco_pipeline.optimization.timing_rule`.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.correctness.comparison import Comparison
from aaco_pipeline.optimization.harness import Harness
from aaco_pipeline.optimization.loop.checking import relaunched
from aaco_pipeline.optimization.loop.means import Builder, Record, Ruling, TimingStep, Version
from aaco_pipeline.optimization.targets import Call, Execution, Layout, Worker
from aaco_pipeline.optimization.timing_rule import (
    FIRST_CALLS,
    Decision,
    Estimate,
    Pairs,
    PairSource,
    Plan,
    against_itself,
    confirm,
    draw_layouts,
    estimate,
    search,
)


@dataclass(frozen=True)
class InterleavedPairs:
    """A `PairSource` over workers.

    `start_baseline` and `start_candidate` start a fresh process with that arm's build in the layout of a seed. `call`
    creates a call with new content; both arms of a pair get the same one. `check` compares both results of each call,
    timed or not, and raises Refused if the candidate's is wrong.
    """

    start_baseline: Callable[[int], AbstractContextManager[Worker]]
    start_candidate: Callable[[int], AbstractContextManager[Worker]]
    call: Callable[[np.random.Generator], Call]
    check: Callable[[Call, Execution, Execution], None]
    seed: int

    def pairs(self, layout_seed: int, count: int) -> Pairs:
        rng = np.random.default_rng([self.seed, layout_seed])
        durations = np.zeros((count + 1, 2), dtype=np.int64)
        candidate_first = rng.random(count + 1) < 0.5
        with self.start_baseline(layout_seed) as baseline, self.start_candidate(layout_seed) as candidate:
            for number, swapped in enumerate(candidate_first.tolist()):
                call, answers = self.call(rng), dict[int, Execution]()
                for arm in (1, 0) if swapped else (0, 1):
                    answers[arm] = execution = (baseline, candidate)[arm].run(call)
                    if execution.duration_ns is None:
                        raise Refused("time", "this target measures no time, so nothing is decided by it")
                    durations[number, arm] = execution.duration_ns
                self.check(call, answers[0], answers[1])
            loads = _load_ns(baseline), _load_ns(candidate)
        (baseline_ns, candidate_ns), first_ns = durations[1:].T, durations[0].tolist()
        return Pairs(baseline_ns, candidate_ns, candidate_first[1:], first_ns[0], first_ns[1], *loads)


def _load_ns(worker: Worker) -> int | None:
    """Return the loading time, if this kind of worker measures it."""
    load_ns = getattr(worker, "load_ns", None)
    return load_ns if isinstance(load_ns, int) else None


_DISTRIBUTION: Final = "normal"


class RuleTimer:
    """Measures by a plan declared in advance. Without a harness it only decides, as in a replay.

    `seed` is the run's: all searches share their layouts, so that a baseline is built once in each; a confirmation has
    its own layouts. `floor_ns` is the least time of a call at the machine's ceilings, null if none are known.
    """

    def __init__(self, plan: Plan, seed: int, harness: Harness | None = None, floor_ns: float | None = None) -> None:
        self._plan, self._seed, self._harness, self._floor_ns = plan, seed, harness, floor_ns
        self._itself: Estimate | None = None
        self._found: Decision | None = None

    def measure(self, step: TimingStep, builder: Builder, versions: tuple[Version, Version], seed: int) -> Record:
        """Return the pairs of one step as plain values, each layout's with the seed that it was built with."""
        if self._harness is None:
            raise AssertionError("a timer without a harness measures nothing")
        shared, own = draw_layouts(self._seed, self._plan), draw_layouts(seed, self._plan)
        layouts = {"aa": shared.itself, "search": shared.search, "confirmation": own.confirmation}[step]
        compared = {"candidate": versions, "itself": (versions[0], versions[0])}
        arms = {name: _Recording(_source(self._harness, builder, pair, seed)) for name, pair in compared.items()}
        try:
            self._ruled(step, arms, layouts, self._floor_ns)
        except Refused as refused:
            if refused.guard != "aa":
                raise
        pairs = {name: arm.taken for name, arm in arms.items()}
        facts = {
            "seed": seed,
            "layouts": list(layouts),
            "floor_ns": self._floor_ns,
            "alpha": self._plan.candidate_alpha,
        }
        return {**facts, "pairs": pairs}

    def decide(self, step: TimingStep, evidence: Record) -> Ruling:
        """Rule on one step's pairs; results of A/A and of a search are kept for the next step."""
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
    """Convert a plan to its journal form."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(plan).items()}


def recorded_plan(record: Mapping[str, Any]) -> Plan:
    """Read a plan from a journal."""
    values: dict[str, Any] = {name: tuple(one) if isinstance(one, list) else one for name, one in record.items()}
    return Plan(**values)


# ---- pairs from workers ----------------------------------------------------------------------------------------------


def _source(harness: Harness, builder: Builder, versions: tuple[Version, Version], seed: int) -> PairSource:
    """Create pairs of two versions; a version paired with itself is built in another layout the second time."""
    baseline, candidate = versions
    size = harness.timed_size(builder.target.name)
    comparison = Comparison(harness, size, _DISTRIBUTION, bit_exact=candidate.bit_exact, baseline_checked=True)
    other = 1 if baseline == candidate else 0

    def starting(version: Version, shift: int) -> Callable[[int], AbstractContextManager[Worker]]:
        @contextmanager
        def start(layout: int) -> Iterator[Worker]:
            with builder.target.start(builder(version, Layout(layout + shift))) as worker:
                yield relaunched(worker, harness, size, version.block)

        return start

    def check(call: Call, before: Execution, after: Execution) -> None:
        """Compare both answers at once; errors of all calls are judged together."""
        comparison.add(call, before, after)
        if not comparison.undecided():
            comparison.conclude()

    draw: Callable[[np.random.Generator], Call] = lambda rng: harness.drawn(size, _DISTRIBUTION, rng)  # noqa: E731
    return InterleavedPairs(starting(baseline, 0), starting(candidate, other), draw, check, seed)


# ---- pairs as plain values -------------------------------------------------------------------------------------------


class _Recording:
    """Passes a source's pairs on and stores them."""

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
                **{name: getattr(pairs, name) for name in FIRST_CALLS},
            }
        )
        return pairs


class _Recorded:
    """A source of recorded pairs. Refused (guard `layouts`) if the rule requests others."""

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
            **{name: one[name] for name in FIRST_CALLS},
        )


def _ruling(passed: bool, guard: str | None, reason: str, interval: Estimate | None) -> Ruling:
    if interval is None:
        return Ruling(passed, guard, reason)
    # Bounds are infinite with too few layouts, and infinity is not a figure.
    known = [float(one) if np.isfinite(one) and one > 0 else None for one in (interval.ci_low, interval.ci_high)]
    return Ruling(passed, guard, reason, float(interval.ratio), *known)


#: The log of baseline/candidate by block; None if one of the two has no steady median.
Logs = Sequence[float | None]
Pair = Mapping[str, Any]
_FIRST_BLOCKS: Final = 2


def looks_of(step: TimingStep, plan: Plan) -> tuple[int, ...]:
    """Return the numbers of blocks after which a step is examined; the last one ends it.

    The first blocks decide nothing: they show how long a session takes, and how many blocks the time allows.
    """
    if step == "aa":
        return _FIRST_BLOCKS, plan.self_layouts
    return plan.search_layouts if step == "search" else plan.confirming_layouts


def rule_on(step: TimingStep, evidence: Record, plan: Plan) -> Ruling | None:
    """Rule on the blocks measured so far, only from them; None if the next look has to decide.

    `evidence` has `pairs`, with one pair per block for `candidate` and `itself`, and `items`, the items per iteration
    of the baseline and of the candidate.
    """
    items = evidence["items"]
    candidate, itself = logs_of(evidence, "candidate"), logs_of(evidence, "itself")
    unit = "" if items[0] == items[1] else " for each item"
    if step == "aa":
        return _against_itself(itself, plan) if len(itself) == plan.self_layouts else None
    if step == "search":
        return _searched(candidate, plan, unit)
    return _confirmation(candidate, itself, plan, unit)


def logs_of(evidence: Record, arm: str) -> Logs:
    """Return the log of baseline/`candidate` (per item for a larger batch), or of the baseline `itself`, by block."""
    items = evidence["items"] if arm == "candidate" else (1, 1)
    return [_log(pair, items) for pair in evidence["pairs"][arm]]


def _log(pair: Pair, items: Sequence[int]) -> float | None:
    (baseline,), (candidate,) = pair["baseline_ns"], pair["candidate_ns"]
    if baseline is None or candidate is None:
        return None
    return math.log(baseline / items[0]) - math.log(candidate / items[1])


def _against_itself(logs: Logs, plan: Plan) -> Ruling:
    itself = _estimate(logs, plan.self_misses, plan.alpha)
    if itself.ci_low > 1 or itself.ci_high < 1:
        return _block_ruling(itself, "aa", f"the model against itself passes as changed: {_words(itself)}")
    sizes = [math.inf if log is None else abs(log) for log in logs]
    usual = float(np.median(sizes))
    if usual > math.log1p(plan.widest_self):
        differs = "has no steady median" if math.isinf(usual) else f"differs by more than {math.expm1(usual):.0%}"
        told = f"in half of {len(logs)} blocks the model against itself {differs}"
        return _block_ruling(itself, "aa", f"{told}: nothing can be decided on this machine")
    return _block_ruling(itself)


def _searched(logs: Logs, plan: Plan, unit: str) -> Ruling | None:
    """Decide whether a candidate is worth a confirmation; None if the next look has to decide."""
    look = plan.search_layouts.index(len(logs))
    seen = _estimate(logs, plan.search_misses[look], plan.search_alpha)
    margin = 1 + plan.threshold
    if seen.ci_low >= margin:
        return _block_ruling(seen)
    if seen.ci_high < margin or len(logs) == plan.search_layouts[-1]:
        reason = f"{_words(seen, unit)} in the search: a gain of {plan.threshold:.1%} is not in sight{_left_out(logs)}"
        return _block_ruling(seen, "not_faster", reason)
    return None


def _confirmation(logs: Logs, itself: Logs, plan: Plan, unit: str) -> Ruling | None:
    look = plan.confirming_layouts.index(len(logs))
    misses = plan.confirming_misses[look]
    gain = _estimate(logs, misses, plan.candidate_alpha)
    margin = 1 + plan.threshold
    missed = sum(log is None or log < math.log(margin) for log in logs)
    hopeless = not gain.ratio >= margin or missed > plan.confirming_misses[-1]
    if gain.ci_low < margin and not hopeless and len(logs) < plan.confirming_layouts[-1]:
        return None
    held = f"{len(logs) - missed} of {len(logs)} blocks hold"
    if gain.ci_low < margin:
        reason = f"{_words(gain, unit)} in the confirmation: {plan.threshold:.1%} is not proved, {held}"
        return _block_ruling(gain, "confirmation", reason + _left_out(logs))
    beside = _estimate(itself, misses, plan.candidate_alpha)
    if beside.ci_low > 1 or beside.ci_high < 1:
        reason = f"in the confirming blocks the model against itself passes as changed: {_words(beside)}"
        return _block_ruling(gain, "aa", reason)
    return _block_ruling(gain, None, f"{_words(gain, unit)}, confirmed: {held}, all of them fresh")


def _estimate(logs: Logs, misses: int, alpha: float) -> Estimate:
    """Return the interval of the ratio. An inconclusive block counts against the hypothesis to be shown."""
    known = [log for log in logs if log is not None]
    pessimist, optimist = (
        estimate([log if log is not None else worst for log in logs], misses, pairs=len(known), alpha=alpha)
        for worst in (-math.inf, math.inf)
    )
    ratio = math.exp(float(np.median(known))) if known else math.nan
    return Estimate(ratio, pessimist.ci_low, optimist.ci_high, len(logs), len(known), alpha)


def _block_ruling(seen: Estimate, guard: str | None = None, reason: str | None = None) -> Ruling:
    figures: tuple[float | None, ...] = (None, None, None)
    if math.isfinite(seen.ratio):
        has_interval = seen.ci_low > 0 and math.isfinite(seen.ci_high)
        figures = (seen.ratio, seen.ci_low, seen.ci_high) if has_interval else (seen.ratio, None, None)
    return Ruling(guard is None, guard, reason or _words(seen), *figures)


def _words(seen: Estimate, unit: str = "") -> str:
    """Format the ratio with its interval."""
    if not math.isfinite(seen.ratio):
        return "no block has two steady medians"
    low, high = seen.ci_low, seen.ci_high
    interval = f" [{low:.3f}, {high:.3f}]" if low > 0 and math.isfinite(high) else ""
    return f"{seen.ratio:.3f} times as fast{unit}{interval}"


def _left_out(logs: Logs) -> str:
    count = sum(log is None for log in logs)
    return f"; {count} of {len(logs)} blocks have no two steady medians" if count else ""


#: The rule for models, without the threshold. Blocks of sessions are expensive: a search has half as many candidates as
#: a kernel's, so that twelve consistent blocks are proof, and drops hopeless ones early.
MOST_CONFIGURATIONS: Final = 12


def plan_of(threshold: float) -> Plan:
    """Return the plan of a search among configurations: at most 12 of them share its alpha of 1 %."""
    return Plan(
        threshold,
        candidates=MOST_CONFIGURATIONS,
        pairs=2,
        search_layouts=(4, 6, 8, 12),
        confirming_layouts=(12, 16, 24),
    )
