"""How much of the change in kernels' durations another engine clock accounts for, where clocks were measured."""

from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

#: Clocks nearer to each other than this are the same: sampled clocks move by as much within a run.
LEAST_DIFFERENCE: Final = 0.005
#: How far the durations' own slope may be from the clocks' ratio, as a factor of its logarithm.
_AGREES: Final = (0.5, 2.0)


def clock_part(
    before: Floats, after: Floats, mean_count: Floats, compute_ratio: Floats, clocks: tuple[Floats, Floats]
) -> Floats:
    """The part of each kernel's change in duration that the engine clock explains, in ns an iteration.

    `before` and `after` are mean durations (resamples x kernels), `mean_count` the midpoint of counts, `compute_ratio`
    (kernels) how far a kernel's speed follows the engine clock, `clocks` the arms' mean clocks in MHz (resamples),
    NaN where not sampled. Fits log(after / before) = a * compute_ratio, weighted by time; a counts only where it goes
    the way of log(clock before / clock after), within a factor of two. The part is then what the measured clocks
    imply, and no more than the kernel's own change that way. Zero elsewhere.
    """
    known = (before > 0) & (after > 0)
    ratio = np.log(np.divide(after, before, out=np.ones_like(after), where=known))
    weight = np.where(known, before * mean_count, 0.0)
    moment = (weight * compute_ratio**2).sum(axis=1)
    slope = np.divide((weight * compute_ratio * ratio).sum(axis=1), moment, out=np.zeros_like(moment), where=moment > 0)
    expected = np.nan_to_num(np.log(clocks[0] / clocks[1]))
    moved = np.abs(expected) > LEAST_DIFFERENCE
    agreement = np.divide(slope, expected, out=np.zeros_like(slope), where=moved)
    applies = moved & (agreement > _AGREES[0]) & (agreement < _AGREES[1])
    implied = before * np.expm1(expected[:, None] * compute_ratio) * mean_count
    change = (after - before) * mean_count
    same_way = np.sign(implied) == np.sign(change)
    part = np.sign(implied) * np.minimum(np.abs(implied), np.abs(change))
    return np.where(applies[:, None] & known & same_way, part, 0.0)
