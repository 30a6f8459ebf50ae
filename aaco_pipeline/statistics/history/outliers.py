"""Nights that stand alone: told apart before levels are searched, or each would be a level of its own."""

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


def outlier_nights(values: Floats, deviation: float, confirmed: Truths | None = None) -> tuple[Truths, Truths]:
    """Which nights lie apart from those before and after, and which may yet prove to be the first of a new level.

    Parameters
    ----------
    values : (n,) log levels in the order of time.
    deviation : of single nights.
    confirmed : (n,) true where fresh sessions of another time slot agreed with the night: it is then no outlier.

    Returns
    -------
    (n,) outliers: more than 3.5 deviations off the median of up to four nights on each side, with no neighbour that
    lies off to the same side by more than two; and (n,) undecided: the last night where it would be one, and has no
    night after it that could tell. Undecided nights are not among the outliers.

    Notes
    -----
    A level has to persist for two nights, or one that was confirmed. It lies where two outliers to the same side stand
    next to each other (they are a level then), and where every other night is off.
    """
    count = len(values)
    outlier = np.zeros(count, bool)
    undecided = np.zeros(count, bool)
    if count <= _REACH:
        return outlier, undecided
    padded = np.full(count + 2 * _REACH, np.nan)
    padded[_REACH:-_REACH] = values
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * _REACH + 1).copy()
    windows[:, _REACH] = np.nan
    off = (values - np.nanmedian(windows, axis=1)) / deviation
    side = np.sign(off) * (np.abs(off) > _BESIDE)
    shared = np.zeros(count, bool)
    shared[1:] |= (side[1:] == side[:-1]) & (side[1:] != 0)
    shared[:-1] |= (side[1:] == side[:-1]) & (side[:-1] != 0)
    outlier = (np.abs(off) > _APART) & ~shared
    if confirmed is not None:
        outlier &= ~confirmed
    undecided[-1] = outlier[-1]
    return outlier & ~undecided, undecided
