"""The decision: the baseline against itself, a search that stops early, a confirmation in fresh layouts."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.decision.bounds import Estimate, estimate, log_level, log_ratio
from aaco_pipeline.optimization.decision.outcome import Decision, FirstCalls
from aaco_pipeline.optimization.decision.pairs import Pairs, PairSource
from aaco_pipeline.optimization.decision.plan import Plan


@dataclass(frozen=True)
class Layouts:
    """Seeds of layouts, none twice: what a confirmation uses, no search has seen."""

    itself: tuple[int, ...]
    search: tuple[int, ...]
    confirmation: tuple[int, ...]


def draw_layouts(seed: int, plan: Plan) -> Layouts:
    """As many layouts as the plan may need, drawn from `seed`."""
    sizes = (plan.self_layouts, plan.search_layouts[-1], plan.confirming_layouts[-1])
    drawn = np.random.default_rng(seed).choice(2**31, size=sum(sizes), replace=False).tolist()
    first, second = sizes[0], sizes[0] + sizes[1]
    return Layouts(tuple(drawn[:first]), tuple(drawn[first:second]), tuple(drawn[second:]))


def against_itself(source: PairSource, layouts: Sequence[int], plan: Plan) -> Estimate:
    """The baseline in two layouts, before any candidate is measured; `source` has it in both arms.

    Refused with guard `aa` where identical code passes as changed, or differs so much that nothing can be decided.
    """
    measured = [source.pairs(layout, plan.pairs) for layout in layouts]
    logs = [log_ratio(pairs) for pairs in measured]
    itself = estimate(logs, plan.self_misses, pairs=_count(measured), alpha=plan.alpha)
    if itself.ci_low > 1 or itself.ci_high < 1:
        raise Refused("aa", f"the baseline against itself passes as changed: {words(itself)}")
    usual = math.expm1(float(np.median(np.abs(logs))))
    if usual > plan.widest_self:
        raise Refused(
            "aa",
            f"the baseline against itself differs by more than {usual:.0%} in half of {len(logs)} layouts: "
            "nothing can be decided on this machine",
        )
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

    `itself` is what `against_itself` gave. `floor_ns` is the least time that the call's operations and bytes take at
    the machine's measured ceilings; null where none is known, and then that guard does not run. Refused from a source
    (a worker that dies) passes through.
    """
    found = search(candidate, layouts.search, plan, itself=itself, floor_ns=floor_ns)
    if found.guard is not None:
        return found
    return confirm(candidate, baseline, layouts.confirmation, plan, found=found, floor_ns=floor_ns)


def search(
    source: PairSource, layouts: Sequence[int], plan: Plan, *, itself: Estimate, floor_ns: float | None = None
) -> Decision:
    """Is it worth a confirmation? Looks after each number of layouts in the plan, and stops when it is clear.

    Not accepted, but without a guard, where it is.
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
    """The verdict, on data of its own: layouts that no search has seen, in processes started for it.

    In each layout the baseline runs beside itself too, before or after, in turn. Looks after each number of layouts in
    the plan; stops when the gain is proved, when most layouts fall short, or when no look that is left could prove it.
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
    # The first asks for proof of a slowdown, the second for a gain that does not come from one however noisy it is.
    if beside.ci_low > margin or gain.ratio / max(beside.ratio, 1.0) < margin:
        yield (
            "not_faster",
            f"{words(gain)}, but beside the candidate the baseline takes {beside.ratio:.3f} times as long as beside "
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


def _count(measured: Sequence[Pairs]) -> int:
    return sum(pairs.baseline_ns.size for pairs in measured)


def _median(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return round(float(np.median(known))) if len(known) == len(values) else None
