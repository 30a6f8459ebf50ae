"""Where a series changes its level: one exact weighted search for all that asks it.

What a level means (a warm-up, a regression, a moved host) is said by who asks, and so is the penalty.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from aaco_pipeline.errors import UsageError

Floats = npt.NDArray[np.float64]

#: Rounding of sums of squares may not cut off the best place: what lies this near (relatively) is kept.
_SLACK: Final = 1e-9
#: Candidates are thinned once in so many points: it costs as much as a point, and is needed for speed alone.
_THINNED_EVERY: Final = 4


def segment_starts(values: Floats, penalty: float, weights: Floats | None = None, least: int = 1) -> list[int]:
    r"""Where each level of the series begins, the first at 0.

    The starts minimize :math:`\sum_i w_i (y_i - \mu_{level(i)})^2 + penalty \cdot levels` over all partitions into
    levels of at least `least` points: exact, no window and no greedy step.

    Parameters
    ----------
    values : (n,) floats, finite, in the order of time.
    penalty : what one more level must save. With weights of one over the noise's variance it is in noise variances;
        `c * log(n)` is the usual form.
    weights : (n,) positive floats, one over each point's variance up to a common factor; all 1 when not given.
    least : points that a level holds at least; a series with fewer than twice as many is one level.

    Returns
    -------
    Indices of the first point of each level, ascending; empty for an empty series.

    Raises
    ------
    UsageError for values or weights that are not finite, weights that are not positive, unlike lengths, or a negative
    penalty: a search among such numbers would return something.

    Notes
    -----
    It lies when the noise is correlated (a slow wander is cut into levels: raise the penalty), when a slope is there
    (cut into stairs), and for single outliers with `least` 1 (each is a level): filter first.

    Optimal partitioning (Jackson et al., An algorithm for optimal partitioning of data on an interval, 2005) with
    functional pruning (Maidstone et al., On optimal multiple changepoint algorithms for large data, 2017): a start is
    dropped when no level's height is left at which it could win. Here each start keeps at most two intervals of
    heights, a superset of Maidstone's, which is as exact and needs only array arithmetic. About linear time whether or
    not levels are found, where pruning by cost alone (PELT) is quadratic on a series that has none.
    """
    values, weights = _checked(values, weights, penalty, least)
    count = len(values)
    # Centred at the weighted mean, so that sums of squares keep their digits.
    centred = values - np.average(values, weights=weights) if count else values
    sums = _Sums(*(np.concatenate(([0.0], np.cumsum(part))) for part in (weights, weights * centred)))
    squares = np.concatenate(([0.0], np.cumsum(weights * centred**2)))
    # best[t] is the least cost of the first t points; `gain` is that less their squares, the form that is searched.
    gain = np.full(count + 1, np.inf)
    gain[0] = -penalty
    previous = np.zeros(count + 1, np.int64)
    live = _Starts(sums, gain, penalty, squares[-1] * _SLACK)
    for end in range(least, count + 1):
        start = end - least
        if start == 0 or start >= least:
            live.add(start, int(previous[start]))
        previous[end], gain[end] = live.best(end)
    found = []
    at = count
    while at > 0:
        at = int(previous[at])
        found.append(at)
    return found[::-1]


def starts_of_many(values: Floats, lengths: npt.NDArray[np.int64], penalties: Floats) -> npt.NDArray[np.bool_]:
    """Where each level begins in each of many short series: the minimum that `segment_starts` finds, by rows.

    Parameters
    ----------
    values : (series, n) finite floats, one series a row from its first column on; what follows its end is not read.
    lengths : (series,) points of each series, 1 to n.
    penalties : (series,) what one more level must save.

    Returns
    -------
    (series, n) true at the first point of each level, so always in the first column.

    Notes
    -----
    Nothing is pruned, so that all rows advance in step: n squared over two for each row. It pays for thousands of
    series of about a hundred points; a long series is for `segment_starts`.
    """
    rows, count = values.shape
    within = np.arange(count) < lengths[:, None]
    means = np.where(within, values, 0.0).sum(axis=1) / lengths
    sums = np.zeros((rows, count + 1))
    np.cumsum(values - means[:, None], axis=1, out=sums[:, 1:])
    gain = np.empty((rows, count + 1))
    gain[:, 0] = -penalties
    previous = np.zeros((rows, count + 1), np.int64)
    row = np.arange(rows)
    for end in range(1, count + 1):
        costs = sums[:, end, None] - sums[:, :end]
        costs *= costs
        costs /= np.arange(-end, 0.0)
        costs += gain[:, :end]
        previous[:, end] = costs.argmin(axis=1)
        gain[:, end] = costs[row, previous[:, end]] + penalties
    starts = np.zeros((rows, count), bool)
    at = lengths.copy()
    while at.any():
        at = previous[row, at]
        starts[row, at] = True
    return starts


def _checked(values: Floats, weights: Floats | None, penalty: float, least: int) -> tuple[Floats, Floats]:
    """Both as arrays that can be searched, or what is wrong with them."""
    values = np.asarray(values, np.float64)
    weights = np.ones(len(values)) if weights is None else np.asarray(weights, np.float64)
    if weights.shape != values.shape:
        raise UsageError(f"a series of {len(values)} points has {len(weights)} weights: give one each")
    if not (np.isfinite(values).all() and np.isfinite(weights).all() and (weights > 0).all()):
        raise UsageError("a series to be searched for levels holds values that are not finite, or weights not above 0")
    if not penalty >= 0 or least < 1:
        raise UsageError(
            f"a level costs {penalty} and holds {least} points at least: give a penalty of 0 or more and 1"
        )
    return values, weights


class _Sums:
    """Weights and weighted values of the first t points, for every t."""

    def __init__(self, weight: Floats, value: Floats) -> None:
        self.weight = weight
        self.value = value


class _Starts:
    """The starts that may still win, each with an interval of heights at which nothing seen so far beats it.

    A start s has at end t and height m the cost gain[s] + penalty - 2 m V + m^2 W, over its values V and weights W, up
    to a term that all share; at the best height that is gain[s] + penalty - V^2 / W.
    """

    def __init__(self, sums: _Sums, gain: Floats, penalty: float, slack: float) -> None:
        self._sums = sums
        self._gain = gain
        self._penalty = penalty
        self._slack = slack
        # Rows: weight and value before the start, its gain, and the lowest and highest height; starts apart.
        self._state = np.empty((5, 0))
        self._start = np.empty(0, np.int64)

    def add(self, start: int, before: int) -> None:
        """Take in a start whose own best previous start is `before`, which wins at heights near its level."""
        if start % _THINNED_EVERY == 0:
            self._thin(start)
        at = (self._sums.weight[start], self._sums.value[start], self._gain[start])
        if start == 0:
            parts = [(*at, -np.inf, np.inf)]
        else:
            weight = at[0] - self._sums.weight[before]
            middle = (at[1] - self._sums.value[before]) / weight
            reach = np.sqrt(max(self._penalty - self._slack, 0.0) / weight)
            parts = [(*at, -np.inf, middle - reach), (*at, middle + reach, np.inf)]
        self._state = np.concatenate((self._state, np.array(parts).T), axis=1)
        self._start = np.concatenate((self._start, np.full(len(parts), start)))

    def best(self, end: int) -> tuple[int, float]:
        """The start of the last level of the first `end` points, and their gain."""
        weight = self._sums.weight[end] - self._state[0]
        value = self._sums.value[end] - self._state[1]
        costs = self._state[2] - value * value / weight
        place = int(costs.argmin())
        return int(self._start[place]), float(costs[place] + self._penalty)

    def _thin(self, start: int) -> None:
        """Drop what the new start beats for good: at its own place it costs its gain and one penalty at any height."""
        before = self._start < start
        weight = self._sums.weight[start] - self._state[0]
        value = self._sums.value[start] - self._state[1]
        with np.errstate(divide="ignore", invalid="ignore"):
            middle = value / weight
            room = (self._gain[start] - self._state[2] + value * middle + self._slack) / weight
            reach = np.sqrt(np.maximum(room, 0.0))
        low, high = self._state[3], self._state[4]
        np.maximum(low, middle - reach, out=low, where=before)
        np.minimum(high, middle + reach, out=high, where=before)
        kept = ~before | ((room >= 0) & (low <= high))
        self._state = self._state[:, kept]
        self._start = self._start[kept]
