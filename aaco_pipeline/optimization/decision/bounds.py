"""From the layouts' ratios to an interval of the ratio. The layout with its processes is the unit of replication.

The bounds are those of a sign test over layouts, looked at more than once: exact whatever the distribution between
layouts. It must be: at times one layout in ten runs at half or double speed in one arm, for reasons that lie in its
processes (placement of pages, prediction of aliasing), and one such layout is enough to blind a bound built on
deviations, while the ratio of nearly all layouts stays within a few tenths of a per cent.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from aaco_pipeline.optimization.decision.pairs import Durations, Pairs

NONE = -1


@dataclass(frozen=True)
class Estimate:
    """The ratio over layouts, its median; of baseline/candidate: above 1 the candidate is faster.

    `ci_low` and `ci_high` are one-sided bounds of the median ratio over layouts; each holds at all looks together with
    an error of at most `alpha` (a repeated confidence interval). Zero and infinity where so few layouts give none.
    """

    ratio: float
    ci_low: float
    ci_high: float
    layouts: int
    pairs: int
    alpha: float


def log_ratio(pairs: Pairs) -> float:
    """The median over pairs of log(baseline/candidate): what drifts slower than a pair falls out of it."""
    return float(np.median(np.log(pairs.baseline_ns) - np.log(pairs.candidate_ns)))


def log_level(durations: Durations) -> float:
    """The median of log(ns)."""
    return float(np.median(np.log(durations)))


@lru_cache
def misses_allowed(looks: tuple[int, ...], alpha: float) -> tuple[int, ...]:
    """How many layouts may fall short at each look, `NONE` where that look cannot decide.

    Of layouts whose median gain is no more than the threshold, at least half fall short. Then all looks together are
    passed with a probability of at most `alpha`, of which each look adds an equal part; computed exactly, path by path.
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
    """The interval at a look that allows `misses`: a bound passes a threshold exactly where the look does."""
    values = np.sort(np.asarray(logs, dtype=np.float64))
    return Estimate(
        ratio=math.exp(float(np.median(values))),
        ci_low=math.exp(values[misses]) if misses > NONE else 0.0,
        ci_high=math.exp(values[values.size - 1 - misses]) if misses > NONE else math.inf,
        layouts=values.size,
        pairs=pairs,
        alpha=alpha,
    )
