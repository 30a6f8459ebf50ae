"""From the layouts' ratios to an interval of the ratio. The layout, with its processes, is the unit of replication."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from aaco_pipeline.optimization.decision.pairs import Pairs

Logs = NDArray[np.float64]
#: Standard error of a median over that of a mean, and standard deviation over median absolute deviation, of a normal.
_MEDIAN_OVER_MEAN = 1.2533
_DEVIATION_OVER_MAD = 1.4826


@dataclass(frozen=True)
class Estimate:
    """The ratio baseline/candidate over layouts: above 1 the candidate is faster.

    `ci_low` and `ci_high` are one-sided bounds at level `alpha` each; 0 and infinity where so few layouts give none.
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


def deviation_within(pairs: Pairs) -> float:
    """Standard error of `log_ratio` from the pairs of one layout alone (median absolute deviation, normal factors)."""
    logs = np.log(pairs.baseline_ns) - np.log(pairs.candidate_ns)
    mad = float(np.median(np.abs(logs - np.median(logs))))
    return _MEDIAN_OVER_MEAN * _DEVIATION_OVER_MAD * mad / math.sqrt(logs.size)


def interval_within(pairs: Pairs, alpha: float) -> tuple[float, float]:
    """One-sided bounds at level `alpha` of the median log ratio in one layout: order statistics of the sign test."""
    from scipy.special import bdtr

    logs = np.sort(np.log(pairs.baseline_ns) - np.log(pairs.candidate_ns))
    rank = int(np.searchsorted(bdtr(np.arange(logs.size), logs.size, 0.5), alpha, side="right"))
    return (-math.inf, math.inf) if rank == 0 else (float(logs[rank - 1]), float(logs[-rank]))


def spread(logs: Sequence[float] | Logs, least: float) -> float:
    """Standard deviation between layouts, at least `least`: what pairs within a layout or another comparison show."""
    return max(float(np.std(np.asarray(logs), ddof=1)), least)


def estimate(logs: Sequence[float] | Logs, pairs: int, alpha: float, least_spread: float) -> Estimate:
    """The interval of exp(centre of `logs`), one log ratio a layout.

    Both of two bounds must agree, so the wider one counts: Student's t with the spread at least `least_spread`, which
    outlying layouts widen, and the exact signed-rank bound, which holds whatever the distribution as long as it is
    symmetric: a layout that is either lucky or unlucky (two heaps, nothing between) deceives Student's t at small
    numbers, never this. The ratio is the median of the pairwise means (Hodges–Lehmann).
    """
    from scipy.special import stdtrit

    values = np.asarray(logs, dtype=np.float64)
    rows, columns = np.triu_indices(values.size)
    walsh = np.sort((values[rows] + values[columns]) / 2)
    width = float(stdtrit(values.size - 1, 1 - alpha)) * spread(values, least_spread) / math.sqrt(values.size)
    centre = float(np.median(walsh))
    rank = _signed_rank(values.size, alpha)
    low, high = (-math.inf, math.inf) if rank == 0 else (float(walsh[rank - 1]), float(walsh[-rank]))
    mean = float(values.mean())
    return Estimate(
        ratio=math.exp(centre),
        ci_low=math.exp(min(low, mean - width, centre)),
        ci_high=math.exp(max(high, mean + width, centre)),
        layouts=values.size,
        pairs=pairs,
        alpha=alpha,
    )


def student_bounds(logs: Sequence[float] | Logs, alpha: float, least_spread: float) -> tuple[float, float]:
    """One-sided bounds of the mean log ratio by Student's t alone, for a look of the search and for planning."""
    from scipy.special import stdtrit

    values = np.asarray(logs, dtype=np.float64)
    width = float(stdtrit(values.size - 1, 1 - alpha)) * spread(values, least_spread) / math.sqrt(values.size)
    return float(values.mean()) - width, float(values.mean()) + width


@lru_cache
def _signed_rank(count: int, alpha: float) -> int:
    """How many of the smallest pairwise means lie below the bound: P(Wilcoxon's W < rank) ≤ alpha, exactly."""
    ways = np.zeros(count * (count + 1) // 2 + 1)
    ways[0] = 1
    for step in range(1, count + 1):
        ways[step:] = ways[step:] + ways[:-step].copy()
    return int(np.searchsorted(np.cumsum(ways) / 2.0**count, alpha, side="right"))
