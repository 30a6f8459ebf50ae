"""Nights that stand alone: told apart before levels are searched, or each would be a level of its own."""

import warnings
from typing import Final

import numpy as np
import numpy.typing as npt

from aaco_pipeline.statistics.history.noise import Floats

Truths = npt.NDArray[np.bool_]

#: How many deviations a night lies off its neighbours that is none of them, and those that share its place.
_APART: Final = 3.5
_BESIDE: Final = 2.0
#: Nights on each side that say where the level is.
_REACH: Final = 4


def outlier_nights(values: Floats, deviation: float) -> tuple[Truths, Truths]:
    """Which nights lie apart from those before and after, and which may yet prove to be the first of a new level.

    Parameters
    ----------
    values : (n,) log levels in the order of time.
    deviation : of single nights.

    Returns
    -------
    (n,) outliers: to one side by more than 3.5 deviations of the median of up to four nights before and of those after
    alike, with no neighbour that lies off those before it to the same side by more than two; and (n,) undecided: the last night where
    it would be one, and has no night after it that could tell. Undecided nights are not among the outliers.

    Notes
    -----
    A level has to persist for two nights; one that was measured in two time slots counts as two. It lies where two
    outliers to the same side stand next to each other (they are a level then), and where every other night is off.
    """
    count = len(values)
    outlier = np.zeros(count, bool)
    undecided = np.zeros(count, bool)
    if count <= _REACH:
        return outlier, undecided
    # Each night's neighbours in a row, NaN beyond the ends; a side without any says what the other does.
    padded = np.concatenate((np.full(_REACH, np.nan), values, np.full(_REACH, np.nan)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * _REACH + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        sides = [np.nanmedian(part, axis=1) for part in (windows[:, :_REACH], windows[:, _REACH + 1 :])]
    before, after = (values - np.where(np.isnan(side), other, side) for side, other in (sides, sides[::-1]))
    off = np.where(before * after > 0, np.sign(before) * np.minimum(np.abs(before), np.abs(after)), 0.0) / deviation
    side = np.sign(before) * (np.abs(before) > _BESIDE * deviation)
    shared = np.zeros(count, bool)
    shared[1:] |= (side[1:] == side[:-1]) & (side[1:] != 0)
    shared[:-1] |= (side[1:] == side[:-1]) & (side[:-1] != 0)
    outlier = (np.abs(off) > _APART) & ~shared
    undecided[-1] = outlier[-1]
    return outlier & ~undecided, undecided
