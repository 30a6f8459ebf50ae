"""The timing rule of `aaco_pipeline.optimization.decision` where a layout is a block of sessions, each a fresh process.

What a kernel's layouts are to its timing, blocks are to a model's: what is seen inside one process is one observation,
however many iterations it has. A block has one session of the baseline and one of the candidate in random order, and
when a gain is confirmed one more of the baseline; its ratio is that of the sessions' medians. Sessions run one after
the other, so that there is no neighbour that a candidate could slow.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from aaco_pipeline.optimization.decision.bounds import Estimate, estimate
from aaco_pipeline.optimization.decision.plan import Plan
from aaco_pipeline.optimization.loop.means import Record, Ruling, TimingStep

#: Of each block the log of baseline/candidate; None where one of the two has no steady median.
Logs = Sequence[float | None]
Pair = Mapping[str, Any]
_FIRST_BLOCKS: Final = 2


def looks_of(step: TimingStep, plan: Plan) -> tuple[int, ...]:
    """After how many blocks a step is looked at; the last is where it ends.

    The first blocks of all decide nothing: by them it is known how long a session takes, and what the time allows.
    """
    looks = {
        "aa": (_FIRST_BLOCKS, plan.self_layouts),
        "search": plan.search_layouts,
        "confirmation": plan.confirming_layouts,
    }
    return looks[step]


def rule_on(step: TimingStep, evidence: Record, plan: Plan) -> Ruling | None:
    """The ruling on the blocks measured so far, from them alone; None where the next look has to tell.

    `evidence` has `pairs`, by `candidate` and `itself` a pair a block, and `items`, what an iteration of the baseline
    and of the candidate does.
    """
    items = evidence["items"]
    candidate, itself = logs_of(evidence, "candidate"), logs_of(evidence, "itself")
    unit = "" if items[0] == items[1] else " for each item"
    if step == "aa":
        return _against_itself(itself, plan) if len(itself) == plan.self_layouts else None
    if step == "search":
        return _search(candidate, plan, unit)
    return _confirmation(candidate, itself, plan, unit)


def logs_of(evidence: Record, arm: str) -> Logs:
    """Of each block the log of baseline/`candidate`, of a larger batch for each item, or of the baseline `itself`."""
    items = evidence["items"] if arm == "candidate" else (1, 1)
    return [_log(pair, items) for pair in evidence["pairs"][arm]]


def _log(pair: Pair, items: Sequence[int]) -> float | None:
    (baseline,), (candidate,) = pair["baseline_ns"], pair["candidate_ns"]
    if baseline is None or candidate is None:
        return None
    return math.log(baseline / items[0]) - math.log(candidate / items[1])


def _against_itself(logs: Logs, plan: Plan) -> Ruling:
    itself = _estimate(logs, plan.self_misses, plan.alpha)
    ruling = _ruling(itself)
    if itself.ci_low > 1 or itself.ci_high < 1:
        reason = f"the model against itself passes as changed: {_words(itself)}"
        return _ruling(itself, "aa", reason)
    sizes = [math.inf if log is None else abs(log) for log in logs]
    usual = float(np.median(sizes))
    if usual > math.log1p(plan.widest_self):
        differs = "has no steady median" if math.isinf(usual) else f"differs by more than {math.expm1(usual):.0%}"
        told = f"in half of {len(logs)} blocks the model against itself {differs}"
        return _ruling(itself, "aa", f"{told}: nothing can be decided on this machine")
    return ruling


def _search(logs: Logs, plan: Plan, unit: str) -> Ruling | None:
    """Whether it is worth a confirmation."""
    look = plan.search_layouts.index(len(logs))
    seen = _estimate(logs, plan.search_misses[look], plan.search_alpha)
    margin = 1 + plan.threshold
    if seen.ci_low >= margin:
        return _ruling(seen)
    if seen.ci_high < margin or len(logs) == plan.search_layouts[-1]:
        reason = f"{_words(seen, unit)} in the search: a gain of {plan.threshold:.1%} is not in sight{_left_out(logs)}"
        return _ruling(seen, "not_faster", reason)
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
        return _ruling(gain, "confirmation", reason + _left_out(logs))
    beside = _estimate(itself, misses, plan.candidate_alpha)
    if beside.ci_low > 1 or beside.ci_high < 1:
        reason = f"in the confirming blocks the model against itself passes as changed: {_words(beside)}"
        return _ruling(gain, "aa", reason)
    return _ruling(gain, None, f"{_words(gain, unit)}, confirmed: {held}, all of them fresh")


def _estimate(logs: Logs, misses: int, alpha: float) -> Estimate:
    """The interval of the ratio. A block that tells nothing counts against whatever is to be shown."""
    known = [log for log in logs if log is not None]
    pessimist, optimist = (
        estimate([log if log is not None else worst for log in logs], misses, pairs=len(known), alpha=alpha)
        for worst in (-math.inf, math.inf)
    )
    ratio = math.exp(float(np.median(known))) if known else math.nan
    return Estimate(ratio, pessimist.ci_low, optimist.ci_high, len(logs), len(known), alpha)


def _ruling(seen: Estimate, guard: str | None = None, reason: str | None = None) -> Ruling:
    figures: tuple[float | None, ...] = (None, None, None)
    if math.isfinite(seen.ratio):
        has_interval = seen.ci_low > 0 and math.isfinite(seen.ci_high)
        figures = (seen.ratio, seen.ci_low, seen.ci_high) if has_interval else (seen.ratio, None, None)
    return Ruling(guard is None, guard, reason or _words(seen), *figures)


def _words(seen: Estimate, unit: str = "") -> str:
    """The ratio as people read it."""
    if not math.isfinite(seen.ratio):
        return "no block has two steady medians"
    low, high = seen.ci_low, seen.ci_high
    interval = f" [{low:.3f}, {high:.3f}]" if low > 0 and math.isfinite(high) else ""
    return f"{seen.ratio:.3f} times as fast{unit}{interval}"


def _left_out(logs: Logs) -> str:
    count = sum(log is None for log in logs)
    return f"; {count} of {len(logs)} blocks have no two steady medians" if count else ""


#: How models are judged, but for the threshold. Blocks of sessions are dear: a search has half as many candidates as a
#: kernel's, so that twelve blocks that all hold are proof, and looks early at what is hopeless.
MOST_CONFIGURATIONS: Final = 12


def plan_of(threshold: float) -> Plan:
    """The plan of a search among configurations: at most 12 of them share its alpha of 1 %."""
    return Plan(
        threshold=threshold,
        candidates=MOST_CONFIGURATIONS,
        pairs=2,
        search_layouts=(4, 6, 8, 12),
        confirming_layouts=(12, 16, 24),
    )
