"""Nights that stand alone: told apart before levels are searched, or each would be a level of its own."""

from typing import Final

import numpy as np
import numpy.typing as npt

from aaco_pipeline.statistics.history.noise import Floats

Truths = npt.NDArray[np.bool_]

#: How many deviations nights that stand alone lie off those on both sides, and the share of that at which a neighbour
#: shares their place.
_APART: Final = 3.5
_SHARED: Final = 0.5
#: Nights on each side that say where the level is, and that stand alone at most: more are a level.
_REACH: Final = 4
_ALONE: Final = (1, 2)


def outlier_nights(values: Floats, deviation: float) -> tuple[Truths, Truths]:
    """Which nights lie apart from those before and after, and which may yet prove to be the first of a new level.

    Parameters
    ----------
    values : (n,) log levels in the order of time.
    deviation : of single nights.

    Returns
    -------
    (n,) outliers: one night, or two in a row, off the median of up to four nights before and of those after alike, to
    one side by more than 3.5 deviations, with no neighbour that lies off half as far to the same side; and (n,)
    undecided: the last night where it would be one, and has no night after it that could tell. Undecided nights are
    not among the outliers.

    Notes
    -----
    A level that went back has to have held three nights; one that still holds, two. A night that was measured in two
    time slots counts as two. It lies where every other night is off.
    """
    count = len(values)
    outlier = np.zeros(count, bool)
    undecided = np.zeros(count, bool)
    if count <= _REACH:
        return outlier, undecided
    for length in _ALONE:
        for first in np.flatnonzero(_stands_alone(values, deviation, length)):
            # Two last nights off are the first of a new level until another night says that they are not.
            if first + length < count:
                outlier[first : first + length] = True
            elif length == 1:
                undecided[first] = True
    return outlier, undecided


def _stands_alone(values: Floats, deviation: float, length: int) -> Truths:
    """For each first night of so many in a row whether they stand alone."""
    count = len(values) - length + 1
    beyond = np.full(_REACH, np.nan)
    medians = _medians(np.concatenate((beyond, values, beyond)))
    before, after = medians[:count], medians[_REACH + length :][:count]
    before, after = np.where(np.isnan(before), after, before), np.where(np.isnan(after), before, after)
    nights = np.lib.stride_tricks.sliding_window_view(values, length)
    off = np.stack([nights - before[:, None], nights - after[:, None]])
    side = np.sign(off[0, :, 0])
    apart = (side[:, None] * off > _APART * deviation).all(axis=(0, 2))
    around = np.concatenate(([np.nan], values, [np.nan]))
    neighbours = np.stack([around[:count], around[length + 1 :][:count]]) - before
    with np.errstate(invalid="ignore"):
        shared = (side * neighbours > _SHARED * np.abs(off).min(axis=(0, 2))).any(axis=0)
    alone: Truths = apart & ~shared
    return alone


def _medians(padded: Floats) -> Floats:
    """The median of each four in a row, of those that are there; NaN where none is."""
    windows = np.sort(np.lib.stride_tricks.sliding_window_view(padded, _REACH), axis=1)
    there = np.isfinite(windows).sum(axis=1)
    rows = np.arange(len(windows))
    # NaN sorts last: what is there comes first.
    medians: Floats = (windows[rows, np.maximum(there - 1, 0) // 2] + windows[rows, there // 2]) / 2
    return np.where(there > 0, medians, np.nan)
