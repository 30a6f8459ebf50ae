"""Whether the nights of one level rise or fall all along, and by how much a night.

Only within a level: a step is no trend.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from aaco_pipeline.statistics.history.noise import Floats, wander
from aaco_pipeline.statistics.verdicts.sequential import LEVEL

#: Two-sided 5 % point of the standard normal.
_Z: Final = 1.959964


@dataclass(frozen=True)
class Trend:
    """A slope in log a night with its 95 % interval, the log level at the last night, and the p of no trend."""

    slope: float
    low: float
    high: float
    last: float
    p_value: float

    @property
    def is_there(self) -> bool:
        return self.p_value < LEVEL and self.low * self.high > 0


def trend(values: Floats) -> Trend:
    """The slope of a series of nights, robust against single ones.

    Parameters
    ----------
    values : (n,) log levels, n at least 3.

    Notes
    -----
    The median of all slopes between two nights, with the interval by their ranks (Sen, Estimates of the regression
    coefficient based on Kendall's tau, 1968), tested by Mann and Kendall. The variance of Kendall's score is corrected
    for nights that hang together (Hamed and Rao, A modified Mann-Kendall trend test for autocorrelated data, 1998), by
    no less than a first-order autoregression would (`wander`): of short series the ranks show too little. Where nights
    alternate it is left as it is, not made smaller. The number of slopes is the square of the nights.
    """
    count = len(values)
    first, second = np.triu_indices(count, 1)
    slopes = np.sort((values[second] - values[first]) / (second - first))
    slope = float(np.median(slopes))
    score = float(np.sign(slopes).sum())
    variance = count * (count - 1) * (2 * count + 5) / 18 * _correction(values - slope * np.arange(count))
    reach = _Z * np.sqrt(variance)
    low = int(np.clip(np.floor((len(slopes) - reach) / 2), 0, len(slopes) - 1))
    high = int(np.clip(np.ceil((len(slopes) + reach) / 2), 0, len(slopes) - 1))
    return Trend(
        slope, float(slopes[low]), float(slopes[high]), _last(values, slope), _two_sided(score, float(variance))
    )


def sen_lines(values: Floats) -> tuple[Floats, Floats]:
    """Slope and log level at the last night of many series at once, (series, n) in rows."""
    count = values.shape[1]
    first, second = np.triu_indices(count, 1)
    slopes: Floats = np.median((values[:, second] - values[:, first]) / (second - first), axis=1)
    last: Floats = np.median(values - slopes[:, None] * np.arange(count), axis=1) + slopes * (count - 1)
    return slopes, last


# ---- inside ----------------------------------------------------------------------------------------------------------


def _last(values: Floats, slope: float) -> float:
    nights = np.arange(len(values))
    return float(np.median(values - slope * nights) + slope * nights[-1])


def _correction(residuals: Floats) -> float:
    """How many times more Kendall's score varies than of independent nights, from the ranks about the slope."""
    count = len(residuals)
    ranks = np.argsort(np.argsort(residuals, kind="stable"), kind="stable").astype(np.float64)
    ranks -= ranks.mean()
    power = float(ranks @ ranks)
    correlations = np.array([ranks[lag:] @ ranks[:-lag] for lag in range(1, count - 2)]) / power
    lags = np.arange(1, count - 2)
    correlations[np.abs(correlations) < _Z / np.sqrt(count)] = 0
    weights = (count - lags) * (count - lags - 1) * (count - lags - 2)
    of_ranks = 1 + 2 / (count * (count - 1) * (count - 2)) * float(weights @ correlations)
    return max(of_ranks, wander(residuals, [0]))


def _two_sided(score: float, variance: float) -> float:
    from scipy.special import ndtr

    return float(2 * ndtr(-max(abs(score) - 1, 0) / np.sqrt(variance)))
