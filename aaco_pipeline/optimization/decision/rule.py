"""The decision: the baseline against itself, a search that stops early, a confirmation in fresh layouts."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.decision.bounds import (
    Estimate,
    deviation_within,
    estimate,
    interval_within,
    log_ratio,
    spread,
    student_bounds,
)
from aaco_pipeline.optimization.decision.outcome import Decision, FirstCalls
from aaco_pipeline.optimization.decision.pairs import Durations, Pairs, PairSource
from aaco_pipeline.optimization.decision.plan import LEAST_LAYOUTS, Plan

#: Error of the other kind that a confirmation is planned for.
_MISSED = 0.02


@dataclass(frozen=True)
class Itself:
    """The baseline against itself on this machine: the interval, and the spread between layouts (of log ratios)."""

    interval: Estimate
    spread: float


@dataclass(frozen=True)
class Layouts:
    """Seeds of layouts, none twice: what a confirmation uses, no search has seen."""

    itself: tuple[int, ...]
    search: tuple[int, ...]
    confirmation: tuple[int, ...]


def draw_layouts(seed: int, plan: Plan) -> Layouts:
    """The layouts of one candidate. The first two sets follow from the plan's size, so a run may share theirs."""
    sizes = (plan.self_layouts, plan.search_layouts[-1], plan.most_layouts)
    drawn = np.random.default_rng(seed).choice(2**31, size=sum(sizes), replace=False).tolist()
    first, second = sizes[0], sizes[0] + sizes[1]
    return Layouts(tuple(drawn[:first]), tuple(drawn[first:second]), tuple(drawn[second:]))


def against_itself(source: PairSource, layouts: Sequence[int], plan: Plan) -> Itself:
    """The baseline in two layouts, before any candidate is measured; `source` has it in both arms.

    Refused with guard `aa` where identical code passes as faster or slower, or its interval is too wide to decide by.
    """
    measured = [source.pairs(layout, plan.pairs) for layout in layouts[: plan.self_layouts]]
    logs = [log_ratio(pairs) for pairs in measured]
    least = _within(measured)
    interval = estimate(logs, sum(pairs.baseline_ns.size for pairs in measured), plan.alpha, least)
    margin = 1 + plan.threshold
    if interval.ci_low >= margin or interval.ci_high <= 1 / margin:
        raise Refused("aa", f"the baseline against itself passes as changed: {words(interval)}")
    low, high = student_bounds(logs, plan.alpha, least)
    if (high - low) / 2 > math.log1p(plan.widest_self):
        half = math.expm1((high - low) / 2)
        raise Refused(
            "aa",
            f"the baseline against itself comes to ±{half:.1%} over {len(logs)} layouts, over ±{plan.widest_self:.0%}; "
            "this machine is too noisy to decide on",
        )
    return Itself(interval, spread(logs, least))


def decide(
    candidate: PairSource,
    baseline: PairSource,
    layouts: Layouts,
    plan: Plan,
    *,
    itself: Itself,
    floor_ns: float | None = None,
) -> Decision:
    """Search, then confirm. `candidate` times baseline and candidate, `baseline` the baseline and itself.

    `floor_ns` is the least time that the call's operations and bytes take at the machine's measured ceilings; null
    where none is known, and then that guard does not run. Refused from the source (a worker that dies) passes through.
    """
    found = search(candidate, layouts.search, plan, itself=itself, floor_ns=floor_ns)
    if isinstance(found, Decision):
        return found
    fresh = layouts.confirmation[: found.confirming_layouts]
    return confirm(candidate, baseline, fresh, plan, itself=itself, found=found, floor_ns=floor_ns)


@dataclass(frozen=True)
class Found:
    """What a search leaves to a confirmation: its estimate, and how many layouts that is to take."""

    estimate: Estimate
    confirming_layouts: int


def search(
    source: PairSource, layouts: Sequence[int], plan: Plan, *, itself: Itself, floor_ns: float | None
) -> Found | Decision:
    """Is it worth a confirmation? Looks after each number of layouts in the plan, and stops when it is clear."""
    threshold = math.log1p(plan.threshold)
    measured: list[Pairs] = []
    for look in plan.search_layouts:
        measured += [source.pairs(layout, plan.pairs) for layout in layouts[len(measured) : look]]
        logs = [log_ratio(pairs) for pairs in measured]
        least = max(_within(measured), itself.spread)
        seen = estimate(logs, sum(pairs.baseline_ns.size for pairs in measured), plan.look_alpha, least)
        refusal = Decision(False, "not_faster", "", plan.candidate_alpha, look, seen.pairs, itself.interval, seen)
        if (reason := impossible(measured, floor_ns)) is not None:
            return replace(refusal, guard="impossible", reason=reason)
        low, _ = student_bounds(logs, plan.look_alpha, least)
        if low >= threshold:
            return Found(seen, _layouts_needed(logs, least, plan))
        _, high = student_bounds(logs, plan.search_alpha, least)
        if high < threshold:
            break
    return replace(refusal, reason=f"{words(seen)} in the search: a gain of {plan.threshold:.1%} is not in sight")


def confirm(
    source: PairSource,
    itself_source: PairSource,
    layouts: Sequence[int],
    plan: Plan,
    *,
    itself: Itself,
    found: Found,
    floor_ns: float | None,
) -> Decision:
    """The verdict, on data of its own: layouts that no search has seen, in processes started for it.

    In each layout the baseline runs beside itself too, before or after, in turn.
    """
    beside_candidate: list[Pairs] = []
    beside_itself: list[Pairs] = []
    for number, layout in enumerate(layouts):
        order = ((source, beside_candidate), (itself_source, beside_itself))
        for arm, taken in order if number % 2 else reversed(order):
            taken.append(arm.pairs(layout, plan.pairs))
    logs = [log_ratio(pairs) for pairs in beside_candidate]
    least = max(_within(beside_candidate), itself.spread)
    count = sum(pairs.baseline_ns.size for pairs in beside_candidate)
    gain = estimate(logs, count, plan.candidate_alpha, least)
    slowed = [_slowdown(*both) for both in zip(beside_candidate, beside_itself, strict=True)]
    beside = estimate(slowed, count, plan.alpha, _within(beside_candidate))
    decision = Decision(
        accepted=False,
        guard=None,
        reason="",
        alpha=plan.candidate_alpha,
        layouts=found.estimate.layouts + gain.layouts,
        pairs=found.estimate.pairs + gain.pairs,
        itself=itself.interval,
        search=found.estimate,
        gain=gain,
        beside=beside,
        first_calls=first_calls(beside_candidate),
    )
    for guard, reason in _objections(beside_candidate, gain, beside, plan, floor_ns):
        return replace(decision, guard=guard, reason=reason)
    return replace(decision, accepted=True, reason=f"{words(gain)}, confirmed in {gain.layouts} fresh layouts")


def _objections(
    measured: Sequence[Pairs], gain: Estimate, beside: Estimate, plan: Plan, floor_ns: float | None
) -> Iterator[tuple[str, str]]:
    margin = 1 + plan.threshold
    if (reason := impossible(measured, floor_ns)) is not None:
        yield "impossible", reason
    if gain.ci_low < margin:
        yield "confirmation", f"{words(gain)} in the confirmation: not {plan.threshold:.1%} faster beyond doubt"
    held = sum(log_ratio(pairs) >= math.log(margin) for pairs in measured)
    slower = sum(interval_within(pairs, plan.alpha)[1] < 0 for pairs in measured)
    if held < LEAST_LAYOUTS or slower:
        yield "layouts", f"faster by {plan.threshold:.1%} in {held} of {len(measured)} layouts, slower in {slower}"
    # The first asks for proof of a slowdown, the second for a gain that does not come from one however noisy it is.
    if beside.ci_low > 1 + plan.threshold or gain.ratio / max(beside.ratio, 1.0) < margin:
        yield (
            "not_faster",
            f"{words(gain)} beside the candidate, but there the baseline takes {beside.ratio:.3f} of its time beside "
            "itself: the candidate slows it down",
        )


def impossible(measured: Sequence[Pairs], floor_ns: float | None) -> str | None:
    """Why the candidate's time cannot be true: below what operations and bytes take at the machine's ceilings."""
    fastest = min(float(np.median(pairs.candidate_ns)) for pairs in measured)
    if floor_ns is None or fastest >= floor_ns:
        return None
    return (
        f"{fastest:,.0f} ns a call is below the {floor_ns:,.0f} ns that its operations and bytes take at the ceilings"
    )


def first_calls(measured: Sequence[Pairs]) -> FirstCalls:
    """What comes before the steady state, and after how many calls a slower start is paid back."""
    baseline = _median([pairs.baseline_first_call_ns for pairs in measured])
    candidate = _median([pairs.candidate_first_call_ns for pairs in measured])
    loads = (
        _median([pairs.baseline_load_ns for pairs in measured]),
        _median([pairs.candidate_load_ns for pairs in measured]),
    )
    calls: int | None = None
    if baseline is not None and candidate is not None:
        later = candidate - baseline + (loads[1] - loads[0] if loads[0] is not None and loads[1] is not None else 0)
        saved = float(np.median([np.median(pairs.baseline_ns) - np.median(pairs.candidate_ns) for pairs in measured]))
        calls = 0 if later <= 0 else math.ceil(later / saved) if saved > 0 else None
    return FirstCalls(baseline, candidate, *loads, calls)


def words(interval: Estimate) -> str:
    """The ratio as people read it."""
    return f"{interval.ratio:.3f} times as fast [{interval.ci_low:.3f}, {interval.ci_high:.3f}]"


def _within(measured: Sequence[Pairs]) -> float:
    """The spread between layouts that the pairs within them explain alone."""
    return math.sqrt(float(np.mean([deviation_within(pairs) ** 2 for pairs in measured])))


def _slowdown(beside_candidate: Pairs, beside_itself: Pairs) -> float:
    def level(durations: Durations) -> float:
        return float(np.median(np.log(durations)))

    return level(beside_candidate.baseline_ns) - level(beside_itself.baseline_ns)


def _layouts_needed(logs: Sequence[float], least: float, plan: Plan) -> int:
    """How many layouts confirm what the search saw, if it is a standard error less than that.

    The search's data are not used again, so their choice of the number changes nothing in what a confirmation proves.
    """
    from scipy.special import ndtri, stdtrit

    deviation = spread(logs, least)
    gain = float(np.mean(logs)) - deviation / math.sqrt(len(logs)) - math.log1p(plan.threshold)
    for count in range(plan.least_layouts, plan.most_layouts):
        wanted = float(stdtrit(count - 1, 1 - plan.candidate_alpha)) - float(ndtri(_MISSED))
        if gain >= wanted * deviation / math.sqrt(count):
            return count
    return plan.most_layouts


def _median(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return round(float(np.median(known))) if len(known) == len(values) else None
