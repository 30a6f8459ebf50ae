"""Exact segmentation of a series into levels.

The caller sets the penalty and interprets the levels (a warm-up, a regression, another host).
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from aaco_pipeline.errors import UsageError

Floats = npt.NDArray[np.float64]

#: Relative slack when dropping candidates, so that rounding of sums of squares never drops the best one.
_SLACK: Final = 1e-9
#: Candidates are pruned once in this many points; pruning costs as much as a point and only affects the speed.
_THINNED_EVERY: Final = 4


def segment_starts(values: Floats, penalty: float, weights: Floats | None = None, least: int = 1) -> list[int]:
    r"""Return the first index of each level of the series, ascending from 0; empty for an empty series.

    The starts minimize :math:`\sum_i w_i (y_i - \mu_{level(i)})^2 + penalty \cdot levels` over all partitions into
    levels of at least `least` points. The search is exact, without windows or greedy steps.

    Parameters
    ----------
    values : (n,) floats, finite, in the order of time.
    penalty : the cost that one more level must save. With weights of one over the noise's variance its unit is the
        noise variance; `c * log(n)` is the usual form.
    weights : (n,) positive floats, one over each point's variance up to a common factor; all 1 by default.
    least : the smallest number of points in a level; a series with fewer than twice as many is one level.

    Raises
    ------
    UsageError for values or weights that are not finite, weights that are not positive, different lengths, or a
    negative penalty.

    Notes
    -----
    Correlated noise is cut into levels (raise the penalty), a slope is cut into stairs, and with `least` 1 a single
    outlier is a level (filter first).

    Optimal partitioning (Jackson et al., An algorithm for optimal partitioning of data on an interval, 2005) with
    functional pruning (Maidstone et al., On optimal multiple changepoint algorithms for large data, 2017): a start is
    dropped when it cannot win at any height of the level. Here each start keeps at most two intervals of heights, a
    superset of Maidstone's, which is equally exact and needs only array arithmetic. The time is about linear with or
    without levels; pruning by cost alone (PELT) is quadratic on a series without levels.
    """
    values, weights = _checked(values, weights, penalty, least)
    count = len(values)
    # Centred at the weighted mean so that sums of squares keep their precision.
    centred = values - np.average(values, weights=weights) if count else values
    sums = _Sums(*(np.concatenate(([0.0], np.cumsum(part))) for part in (weights, weights * centred)))
    squares = np.concatenate(([0.0], np.cumsum(weights * centred**2)))
    # best[t] is the minimum cost of the first t points; `gain` is best[t] minus their squares, which is minimized.
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
    """The same minimum as `segment_starts` for many short series at once: True at the first point of each level.

    Parameters
    ----------
    values : (series, n) finite floats, one series in each row from the first column on; the rest of a row is ignored.
    lengths : (series,) the number of points of each series, 1 to n.
    penalties : (series,) the cost that one more level must save.

    Notes
    -----
    Without pruning all rows advance together, at n squared over two steps for each row: fast for thousands of series of
    about a hundred points, slow for a long one.
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
    """Return both as arrays; UsageError if they cannot be searched."""
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
    """Cumulative weights and weighted values of the first t points, for every t."""

    def __init__(self, weight: Floats, value: Floats) -> None:
        self.weight = weight
        self.value = value


class _Starts:
    """Starts that may still win, each with an interval of heights at which no other start beats it so far.

    At end t and height m a start s costs gain[s] + penalty - 2 m V + m^2 W, with the sums V of its weighted values and
    W of its weights, up to a term common to all; at the best height that is gain[s] + penalty - V^2 / W.
    """

    def __init__(self, sums: _Sums, gain: Floats, penalty: float, slack: float) -> None:
        self._sums = sums
        self._gain = gain
        self._penalty = penalty
        self._slack = slack
        # Rows: weight and value before the start, its gain, and the lowest and highest height.
        self._state = np.empty((5, 0))
        self._start = np.empty(0, np.int64)

    def add(self, start: int, before: int) -> None:
        """Add a start whose own best previous start is `before`, which wins at heights near its level."""
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
        """Return the start of the last level of the first `end` points, and their gain."""
        weight = self._sums.weight[end] - self._state[0]
        value = self._sums.value[end] - self._state[1]
        costs = self._state[2] - value * value / weight
        place = int(costs.argmin())
        return int(self._start[place]), float(costs[place] + self._penalty)

    def _thin(self, start: int) -> None:
        """Drop the starts that the new one always beats: at its own position it costs its gain plus one penalty."""
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
