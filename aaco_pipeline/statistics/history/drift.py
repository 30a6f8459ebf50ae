"""Many small steps in one direction as the one slope that they are."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from aaco_pipeline.statistics.history.noise import Floats

#: Nights that a slope takes at least; a shorter one is a step whose night is not known.
LEAST_NIGHTS: Final = 6
#: Ends that are tried, and points that a longer series is averaged to.
_ENDS: Final = 40
_POINTS: Final = 256


@dataclass(frozen=True)
class Ramp:
    """A level, a straight slope from point `begin` to point `end`, and a level again: `height` is their difference.

    `squares` are the weighted squares about it, `variance` that of the height where the weights are one over
    variances.
    """

    begin: int
    end: int
    height: float
    variance: float
    squares: float


def ramp(values: Floats, weights: Floats) -> Ramp | None:
    """The slope between two levels that fits best by weighted least squares; None below 6 points.

    Parameters
    ----------
    values : (n,) in the order of time.
    weights : (n,) positive.

    Notes
    -----
    Both ends are tried at forty places, and more than 256 points are averaged to as many; the squares within those
    averages are counted. It knows one slope: two with a rest between are one long one, or steps.
    """
    count = len(values)
    if count < LEAST_NIGHTS:
        return None
    bins = np.arange(count) * min(count, _POINTS) // count
    weight = np.bincount(bins, weights)
    value = np.bincount(bins, weights * values) / weight
    time = np.bincount(bins, weights * np.arange(count)) / weight
    within = float((weights * (values - value[bins]) ** 2).sum())
    ends = np.unique(np.linspace(0, count - 1, min(count, _ENDS)).astype(np.int64))
    begin, end = (side.ravel() for side in np.meshgrid(ends, ends, indexing="ij"))
    long_enough = end - begin >= LEAST_NIGHTS - 1
    begin, end = begin[long_enough], end[long_enough]
    rise = np.clip((time[None, :] - begin[:, None]) / (end - begin)[:, None], 0, 1)
    share = weight / weight.sum()
    rise -= (rise @ share)[:, None]
    centred = value - float(share @ value)
    power = (rise**2) @ weight
    height = (rise @ (weight * centred)) / power
    squares = float(weight @ centred**2) - height**2 * power
    best = int(squares.argmin())
    found = (int(begin[best]), int(end[best]), float(height[best]), float(1 / power[best]))
    return Ramp(*found, max(float(squares[best]), 0.0) + within)
