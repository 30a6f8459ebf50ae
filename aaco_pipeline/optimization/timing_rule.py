"""The timing rule: decide from paired durations whether a candidate beats its baseline by at least a threshold.

The unit of replication is the layout with its processes. docs/timing_rule.md gives the reasons. `loop.timing` measures
the pairs.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from aaco_pipeline.optimization.candidates import Refused

Durations = NDArray[np.int64]
FIRST_CALLS = ("baseline_first_call_ns", "candidate_first_call_ns", "baseline_load_ns", "candidate_load_ns")


@dataclass(frozen=True)
class Pairs:
    """Durations of `count` pairs in one layout, in the order measured, as int64 ns above zero.

    `candidate_first` marks the pairs in which the candidate ran before the baseline. The first call of each process is
    not among the pairs but in `*_first_call_ns`; `*_load_ns` is the loading time. Null if not measured.
    """

    baseline_ns: Durations
    candidate_ns: Durations
    candidate_first: NDArray[np.bool_]
    baseline_first_call_ns: int | None = None
    candidate_first_call_ns: int | None = None
    baseline_load_ns: int | None = None
    candidate_load_ns: int | None = None

    def __post_init__(self) -> None:
        shapes = {self.baseline_ns.shape, self.candidate_ns.shape, self.candidate_first.shape}
        if len(shapes) != 1 or self.baseline_ns.ndim != 1 or self.baseline_ns.size < 2:
            raise ValueError("a layout has at least two pairs, and three vectors of one length")
        if self.baseline_ns.min() <= 0 or self.candidate_ns.min() <= 0:
            raise ValueError("a duration is above zero")


class PairSource(Protocol):
    """Measures pairs: baseline and candidate are built in the layout of `layout_seed` and run in two fresh processes.

    Calls are interleaved, in random order within each pair, with new content for each call. A source that compares a
    baseline with itself builds its second arm in another layout derived from the seed, so its spread shows the effect
    of a layout change alone.
    """

    def pairs(self, layout_seed: int, count: int) -> Pairs: ...


NONE = -1


@dataclass(frozen=True)
class Estimate:
    """The median over layouts of the ratio baseline/candidate: above 1 the candidate is faster.

    `ci_low` and `ci_high` are one-sided bounds of the median ratio over layouts; each holds at all looks together with
    an error of at most `alpha` (a repeated confidence interval). They are zero and infinity with too few layouts.
    """

    ratio: float
    ci_low: float
    ci_high: float
    layouts: int
    pairs: int
    alpha: float


def log_ratio(pairs: Pairs) -> float:
    """Return the median over pairs of log(baseline/candidate), which cancels drift slower than a pair."""
    return float(np.median(np.log(pairs.baseline_ns) - np.log(pairs.candidate_ns)))


def log_level(durations: Durations) -> float:
    """Return the median of log(ns)."""
    return float(np.median(np.log(durations)))


@lru_cache
def misses_allowed(looks: tuple[int, ...], alpha: float) -> tuple[int, ...]:
    """Compute how many layouts may fall short at each look, `NONE` if that look cannot decide.

    If the median gain over layouts is at most the threshold, at least half of them fall short. All looks together then
    pass with a probability of at most `alpha`, split equally between the looks; computed exactly, path by path.
    """
    open_paths = np.ones(1)
    seen, spent = 0, 0.0
    allowed: list[int] = []
    for number, look in enumerate(looks, 1):
        steps = look - seen
        step = np.array([math.comb(steps, misses) for misses in range(steps + 1)]) / 2.0**steps
        open_paths, seen = np.convolve(open_paths, step), look
        passing = np.cumsum(open_paths)
        misses = int(np.searchsorted(passing, alpha * number / len(looks) - spent, side="right")) - 1
        if misses > NONE:
            spent += float(passing[misses])
            open_paths[: misses + 1] = 0
        allowed.append(misses)
    return tuple(allowed)


def estimate(logs: Sequence[float], misses: int, *, pairs: int, alpha: float) -> Estimate:
    """Return the interval at a look that allows `misses`: a bound passes a threshold exactly if the look does."""
    values = np.sort(np.asarray(logs, dtype=np.float64))
    has_bounds = misses > NONE
    ci_low, ci_high = (math.exp(values[misses]), math.exp(values[-1 - misses])) if has_bounds else (0.0, math.inf)
    return Estimate(math.exp(float(np.median(values))), ci_low, ci_high, values.size, pairs, alpha)


#: A winner must hold in at least this many random layouts.
LEAST_LAYOUTS = 4


@dataclass(frozen=True)
class Plan:
    """The rule by which every candidate of a run is judged.

    `threshold` is the smallest gain that counts (0.02: two per cent). `alpha` is the probability, over the entire run,
    that a candidate with no larger gain is accepted; it is split equally between the possible `candidates`, and each
    share equally between the looks of a confirmation. `pairs` are timed in each layout.

    The search looks after each of `search_layouts` and stops as early as possible; it only selects candidates for
    confirmation, and passes at most `search_alpha` of those without a gain. The confirmation looks after each of
    `confirming_layouts`. A baseline is compared with itself in `self_layouts`; nothing is decided if identical code
    differs by more than `widest_self` in half of them.
    """

    threshold: float = 0.02
    alpha: float = 0.01
    candidates: int = 1
    pairs: int = 16
    search_layouts: tuple[int, ...] = (6, 8, 12, 16, 24)
    search_alpha: float = 0.3
    confirming_layouts: tuple[int, ...] = (12, 16, 24, 32, 48, 64)
    self_layouts: int = 8
    widest_self: float = 0.25

    def __post_init__(self) -> None:
        if not (self.threshold >= 0 and 0 < self.alpha < 0.5 and 0 < self.search_alpha < 0.5 and self.widest_self > 0):
            raise ValueError("threshold is a gain of at least 0, alpha and search_alpha lie between 0 and 0.5")
        if self.candidates < 1 or self.pairs < 2 or self.self_layouts < LEAST_LAYOUTS:
            raise ValueError(f"at least one candidate, two pairs in a layout, {LEAST_LAYOUTS} layouts")
        for looks in (self.search_layouts, self.confirming_layouts):
            if not looks or looks[0] < LEAST_LAYOUTS or list(looks) != sorted(set(looks)):
                raise ValueError(f"layouts at the looks grow, from {LEAST_LAYOUTS} on")
        if self.search_misses[-1] == NONE or self.confirming_misses[-1] == NONE or self.self_misses == NONE:
            raise ValueError("so few layouts cannot decide at this alpha, with this number of candidates")

    @property
    def candidate_alpha(self) -> float:
        """Return the fraction of `alpha` that one candidate's confirmation may use (Bonferroni)."""
        return self.alpha / self.candidates

    @property
    def search_misses(self) -> tuple[int, ...]:
        return misses_allowed(self.search_layouts, self.search_alpha)

    @property
    def confirming_misses(self) -> tuple[int, ...]:
        return misses_allowed(self.confirming_layouts, self.candidate_alpha)

    @property
    def self_misses(self) -> int:
        return misses_allowed((self.self_layouts,), self.alpha)[0]


@dataclass(frozen=True)
class FirstCalls:
    """Medians over the confirming layouts, int64 ns; null if a worker does not measure them.

    `calls_to_break_even` is the number of calls after which a candidate with a slower load and first call has made up
    for that; zero if they are not slower.
    """

    baseline_first_call_ns: int | None
    candidate_first_call_ns: int | None
    baseline_load_ns: int | None
    candidate_load_ns: int | None
    calls_to_break_even: int | None


@dataclass(frozen=True)
class Decision:
    """The decision: `accepted`, or the `guard` that refused and its reason.

    `gain` is the ratio baseline/candidate of the confirmation, null without one: it is the figure to report. `search`
    selected the candidate for confirmation and is therefore biased upwards. `itself` is the baseline against itself, in
    the confirming layouts if there were any. `beside` is the baseline's time when paired with the candidate divided by
    its time when paired with itself, in the same layouts: above 1 the candidate slows the baseline down. `alpha` is
    this candidate's share of the run's. `layouts` and `pairs` count all measurements of the candidate.
    """

    accepted: bool
    guard: str | None
    reason: str
    alpha: float
    layouts: int
    pairs: int
    itself: Estimate
    search: Estimate | None = None
    gain: Estimate | None = None
    beside: Estimate | None = None
    first_calls: FirstCalls | None = None


@dataclass(frozen=True)
class Layouts:
    """Seeds of layouts without repetition: no search has seen those of a confirmation."""

    itself: tuple[int, ...]
    search: tuple[int, ...]
    confirmation: tuple[int, ...]


def draw_layouts(seed: int, plan: Plan) -> Layouts:
    """Draw as many layouts from `seed` as the plan may need."""
    sizes = (plan.self_layouts, plan.search_layouts[-1], plan.confirming_layouts[-1])
    drawn = np.random.default_rng(seed).choice(2**31, size=sum(sizes), replace=False).tolist()
    first, second = sizes[0], sizes[0] + sizes[1]
    return Layouts(tuple(drawn[:first]), tuple(drawn[first:second]), tuple(drawn[second:]))


def against_itself(source: PairSource, layouts: Sequence[int], plan: Plan) -> Estimate:
    """Time the baseline in two layouts, before any candidate is measured; `source` has it in both arms.

    Raises Refused with guard `aa` if identical code passes as changed, or differs too much for any decision.
    """
    measured = [source.pairs(layout, plan.pairs) for layout in layouts]
    logs = [log_ratio(pairs) for pairs in measured]
    itself = estimate(logs, plan.self_misses, pairs=_count(measured), alpha=plan.alpha)
    if itself.ci_low > 1 or itself.ci_high < 1:
        raise Refused("aa", f"the baseline against itself passes as changed: {words(itself)}")
    usual = math.expm1(float(np.median(np.abs(logs))))
    if usual > plan.widest_self:
        differs = f"the baseline against itself differs by more than {usual:.0%} in half of {len(logs)} layouts"
        raise Refused("aa", f"{differs}: nothing can be decided on this machine")
    return itself


def decide(
    candidate: PairSource,
    baseline: PairSource,
    layouts: Layouts,
    plan: Plan,
    *,
    itself: Estimate,
    floor_ns: float | None = None,
) -> Decision:
    """Search, then confirm. `candidate` times baseline and candidate, `baseline` the baseline and itself.

    `itself` is the result of `against_itself`. `floor_ns` is the least time for the call's operations and bytes at the
    machine's measured ceilings; null if none are known, which disables that guard. A Refused raised by a source (a
    worker that dies) propagates.
    """
    found = search(candidate, layouts.search, plan, itself=itself, floor_ns=floor_ns)
    if found.guard is not None:
        return found
    return confirm(candidate, baseline, layouts.confirmation, plan, found=found, floor_ns=floor_ns)


def search(
    source: PairSource, layouts: Sequence[int], plan: Plan, *, itself: Estimate, floor_ns: float | None = None
) -> Decision:
    """Decide whether a candidate is worth a confirmation. Looks after each planned number of layouts, stops when clear.

    If it is worth one, the verdict is not accepted but has no guard.
    """
    measured: list[Pairs] = []
    for look, misses in zip(plan.search_layouts, plan.search_misses, strict=True):
        measured += [source.pairs(layout, plan.pairs) for layout in layouts[len(measured) : look]]
        logs = [log_ratio(pairs) for pairs in measured]
        seen = estimate(logs, misses, pairs=_count(measured), alpha=plan.search_alpha)
        decision = Decision(False, None, "", plan.candidate_alpha, look, seen.pairs, itself=itself, search=seen)
        if (reason := impossible(measured, floor_ns)) is not None:
            return replace(decision, guard="impossible", reason=reason)
        if seen.ci_low >= 1 + plan.threshold:
            return replace(decision, reason=f"{words(seen)} in the search")
        if seen.ci_high < 1 + plan.threshold:
            break
    reason = f"{words(seen)} in the search: a gain of {plan.threshold:.1%} is not in sight"
    return replace(decision, guard="not_faster", reason=reason)


def confirm(
    source: PairSource,
    itself_source: PairSource,
    layouts: Sequence[int],
    plan: Plan,
    *,
    found: Decision,
    floor_ns: float | None = None,
) -> Decision:
    """Return the verdict from separate data: layouts that no search has seen, in processes started for it.

    In each layout, the baseline is also paired with itself, alternately before and after. Looks after each planned
    number of layouts; stops when the gain is proved, when most layouts fall short, or when no remaining look could
    prove it.
    """
    with_candidate: list[Pairs] = []
    with_itself: list[Pairs] = []
    threshold = math.log1p(plan.threshold)
    for look, misses in zip(plan.confirming_layouts, plan.confirming_misses, strict=True):
        for number in range(len(with_candidate), look):
            order = ((source, with_candidate), (itself_source, with_itself))
            for arm, taken in order if number % 2 else reversed(order):
                taken.append(arm.pairs(layouts[number], plan.pairs))
        logs = [log_ratio(pairs) for pairs in with_candidate]
        gain = estimate(logs, misses, pairs=_count(with_candidate), alpha=plan.candidate_alpha)
        missed = sum(log < threshold for log in logs)
        hopeless = gain.ratio < 1 + plan.threshold or missed > max(plan.confirming_misses)
        if gain.ci_low >= 1 + plan.threshold or hopeless:
            break
    slowed = [
        log_level(beside.baseline_ns) - log_level(alone.baseline_ns)
        for beside, alone in zip(with_candidate, with_itself, strict=True)
    ]
    decision = replace(
        found,
        layouts=found.layouts + gain.layouts,
        pairs=found.pairs + gain.pairs,
        itself=estimate([log_ratio(pairs) for pairs in with_itself], misses, pairs=gain.pairs, alpha=gain.alpha),
        gain=gain,
        beside=estimate(slowed, misses, pairs=gain.pairs, alpha=gain.alpha),
        first_calls=first_calls(with_candidate),
    )
    needed = f"{gain.layouts - missed} of {gain.layouts} layouts hold"
    for guard, reason in _objections(decision, impossible(with_candidate, floor_ns), needed, plan.threshold):
        return replace(decision, guard=guard, reason=reason)
    return replace(decision, accepted=True, reason=f"{words(gain)}, confirmed: {needed}, all of them fresh")


def _objections(decision: Decision, too_fast: str | None, needed: str, threshold: float) -> Iterator[tuple[str, str]]:
    gain, beside, itself = decision.gain, decision.beside, decision.itself
    assert gain is not None and beside is not None
    margin = 1 + threshold
    if too_fast is not None:
        yield "impossible", too_fast
    if gain.ci_low < margin:
        guard = "confirmation" if gain.ratio < margin else "layouts"
        yield guard, f"{words(gain)} in the confirmation: {threshold:.1%} is not proved, {needed}"
    if itself.ci_low > 1 or itself.ci_high < 1:
        yield "aa", f"in the confirming layouts the baseline against itself passes as changed: {words(itself)}"
    # The first requires proof of a slowdown; the second, a gain that no slowdown explains, however noisy.
    if beside.ci_low > margin or gain.ratio / max(beside.ratio, 1.0) < margin:
        slower = f"beside the candidate the baseline takes {beside.ratio:.3f} times as long as beside itself"
        yield "not_faster", f"{words(gain)}, but {slower}: the candidate slows it down"


def impossible(measured: Sequence[Pairs], floor_ns: float | None) -> str | None:
    """Explain why the candidate's time cannot be true: it is below the time at the machine's measured ceilings."""
    fastest = min(float(np.median(pairs.candidate_ns)) for pairs in measured)
    if floor_ns is None or fastest >= floor_ns:
        return None
    least = f"the {floor_ns:,.0f} ns that its operations and bytes take at the ceilings"
    return f"{fastest:,.0f} ns a call is below {least}"


def first_calls(measured: Sequence[Pairs]) -> FirstCalls:
    """Summarize the start-up costs, and the number of calls that make up for a slower start."""
    first, later, *loads = (_median([getattr(pairs, name) for pairs in measured]) for name in FIRST_CALLS)
    calls: int | None = None
    if first is not None and later is not None:
        delay = later - first + (loads[1] - loads[0] if loads[0] is not None and loads[1] is not None else 0)
        saved = float(np.median([np.median(pairs.baseline_ns) - np.median(pairs.candidate_ns) for pairs in measured]))
        calls = 0 if delay <= 0 else math.ceil(delay / saved) if saved > 0 else None
    return FirstCalls(first, later, loads[0], loads[1], calls)


def words(interval: Estimate) -> str:
    """Format the ratio with its interval."""
    return f"{interval.ratio:.3f} times as fast [{interval.ci_low:.3f}, {interval.ci_high:.3f}]"


def _count(measured: Sequence[Pairs]) -> int:
    return sum(pairs.baseline_ns.size for pairs in measured)


def _median(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return round(float(np.median(known))) if len(known) == len(values) else None
