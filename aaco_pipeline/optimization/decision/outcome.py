"""What the timing rule says: the decision with its reason, and every figure that it rests on."""

from dataclasses import dataclass

from aaco_pipeline.optimization.decision.bounds import Estimate


@dataclass(frozen=True)
class FirstCalls:
    """Medians over the confirming layouts, int64 ns; null where a worker does not measure it.

    `calls_to_break_even` is after how many calls a candidate whose load and first call take longer than the baseline's
    has paid that back; zero where they take no longer.
    """

    baseline_first_call_ns: int | None
    candidate_first_call_ns: int | None
    baseline_load_ns: int | None
    candidate_load_ns: int | None
    calls_to_break_even: int | None


@dataclass(frozen=True)
class Decision:
    """`accepted`, or the `guard` that refused and why.

    `gain` is the ratio baseline/candidate of the confirmation, null where none was made: it is the figure to report.
    `search` chose the candidate for a confirmation and is biased upwards by that choice. `itself` is the baseline
    against itself, in the confirming layouts where there were any. `beside` is the baseline's time beside the candidate
    over its time beside itself, in the same layouts: above 1 the candidate slows the baseline down. `alpha` is what
    this candidate might spend of the run's. `layouts` and `pairs` count all that was measured of the candidate.
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
