"""Detect level changes in a series of nights, with estimates of noise, outliers and drift."""

import math
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from aaco_pipeline.statistics.segmentation import segment_starts

Floats = npt.NDArray[np.float64]

#: Fraction of the differences used for the scale; the largest ones are excluded because they may be level changes.
_KEPT: Final = 0.9
#: Mean size of a standard normal within its central 90 %.
_MEAN_OF_KEPT: Final = 0.6573
#: Smallest deviation of a log level.
LEAST_DEVIATION: Final = 1e-4
#: Smallest number of nights for an estimate of the autocorrelation.
LEAST_FOR_WANDER: Final = 16


def deviation(values: Floats) -> float:
    """Estimate the standard deviation of single nights about their level from successive differences; at least 1e-4.

    `values` are (n,) log levels in the order of time. Differences of neighbours do not depend on levels or slow trends.
    The largest tenth is omitted and the rest scaled as for a normal. The result is too small for autocorrelated nights
    (`wander`).
    """
    return max(_size(np.diff(values)) / math.sqrt(2), LEAST_DEVIATION)


def night_variances(values: Floats, errors: Floats) -> Floats:
    """Return the variance of each night: its sessions' variance plus the variance between nights.

    Parameters
    ----------
    values : (n,) log levels in the order of time.
    errors : (n,) standard errors of them from the night's own sessions; NaN for a single session.

    Returns
    -------
    (n,) positive: errors squared plus the variance between nights. A night of one session gets the median error of the
    others; without any errors all variances are equal.
    """
    total = deviation(values) ** 2
    known = errors[np.isfinite(errors)] ** 2
    if not len(known):
        return np.full(len(values), total)
    within = np.where(np.isfinite(errors), errors**2, np.median(known))
    between = max(total - float(np.median(within)), LEAST_DEVIATION**2)
    return within + between


def wander(values: Floats, starts: list[int]) -> float:
    r"""Return the variance of a mean relative to independent nights; at least 1.

    Parameters
    ----------
    values : (n,) log levels, in units of their own deviation.
    starts : first night of each level; the means of levels are subtracted.

    Notes
    -----
    :math:`(1 + r) / (1 - r)` of a first-order autoregression with lag-1 correlation r of the residuals, corrected for
    the bias by the subtracted means (Kendall, Note on bias in the estimation of autocorrelation, 1954: (1 + 3 r) / n
    for each mean).
    """
    count = len(values)
    if count < LEAST_FOR_WANDER:
        return 1.0
    residuals = values.copy()
    for start, end in zip(starts, [*starts[1:], count], strict=True):
        residuals[start:end] -= residuals[start:end].mean()
    power = float((residuals**2).sum())
    if power == 0:
        return 1.0
    lag = float((residuals[1:] * residuals[:-1]).sum()) / power
    levels = len(starts)
    correlation = min(max((lag * count + levels) / max(count - 3 * levels, count / 4), 0.0), 0.9)
    return (1 + correlation) / (1 - correlation)


def _size(differences: Floats) -> float:
    sizes = np.sort(np.abs(differences))
    kept = sizes[: int(np.ceil(len(sizes) * _KEPT))]
    return float(kept.mean()) / _MEAN_OF_KEPT if len(kept) else 0.0


#: Minimum number of nights of a slope; shorter ones are steps.
LEAST_RAMP_NIGHTS: Final = 6
#: Maximum number of candidate ends, and of points after averaging.
_ENDS: Final = 40
_POINTS: Final = 256


@dataclass(frozen=True)
class Ramp:
    """A level, a straight slope from point `begin` to point `end`, and a level again; `height` is their difference.

    `squares` is the weighted sum of squared residuals, `variance` that of the height if the weights are one over
    variances.
    """

    begin: int
    end: int
    height: float
    variance: float
    squares: float


def ramp(values: Floats, weights: Floats) -> Ramp | None:
    """Fit the slope between two levels by weighted least squares; None with fewer than 6 points.

    Parameters
    ----------
    values : (n,) in the order of time.
    weights : (n,) positive.

    Notes
    -----
    Both ends are tried at up to forty points, and more than 256 points are averaged first; the squares within those
    averages are included.
    """
    count = len(values)
    if count < LEAST_RAMP_NIGHTS:
        return None
    bins = np.arange(count) * min(count, _POINTS) // count
    weight = np.bincount(bins, weights)
    value = np.bincount(bins, weights * values) / weight
    time = np.bincount(bins, weights * np.arange(count)) / weight
    within = float((weights * (values - value[bins]) ** 2).sum())
    ends = np.unique(np.linspace(0, count - 1, min(count, _ENDS)).astype(np.int64))
    begin, end = (side.ravel() for side in np.meshgrid(ends, ends, indexing="ij"))
    long_enough = end - begin >= LEAST_RAMP_NIGHTS - 1
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


Truths = npt.NDArray[np.bool_]

#: Minimum distance of an outlier from both sides in deviations, and the fraction of it at which a neighbour belongs to
#: the same level.
_APART: Final = 3.5
_SHARED: Final = 0.5
#: Number of nights on each side that define the level, and possible numbers of consecutive outliers.
_REACH: Final = 4
_ALONE: Final = (1, 2)


def outlier_nights(values: Floats, deviation: float) -> tuple[Truths, Truths]:
    """Find outliers, and undecided nights, which may be the first of a new level.

    Parameters
    ----------
    values : (n,) log levels in the order of time.
    deviation : of single nights.

    Returns
    -------
    (n,) outliers: one night, or two in a row, whose distance from the medians of up to four nights before and after is
    more than 3.5 deviations to one side, without a neighbour at half that distance; and (n,) undecided: the last night
    if it may be an outlier. Undecided nights are not outliers.

    Notes
    -----
    A past level must last for three nights, the last level for two. A night that was measured in two time slots counts
    as two. Outliers are not found when every other night is one.
    """
    count = len(values)
    outlier = np.zeros(count, bool)
    undecided = np.zeros(count, bool)
    if count <= _REACH:
        return outlier, undecided
    for length in _ALONE:
        for first in np.flatnonzero(_stands_alone(values, deviation, length)):
            # The last two nights may be the start of a new level.
            if first + length < count:
                outlier[first : first + length] = True
            elif length == 1:
                undecided[first] = True
    return outlier, undecided


def _stands_alone(values: Floats, deviation: float, length: int) -> Truths:
    """Return which nights are the first of `length` consecutive outliers."""
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
    """Return the median of each four consecutive values, ignoring NaN; NaN without values."""
    windows = np.sort(np.lib.stride_tricks.sliding_window_view(padded, _REACH), axis=1)
    there = np.isfinite(windows).sum(axis=1)
    rows = np.arange(len(windows))
    # NaN sorts last.
    medians: Floats = (windows[rows, np.maximum(there - 1, 0) // 2] + windows[rows, there // 2]) / 2
    return np.where(there > 0, medians, np.nan)


Places = npt.NDArray[np.int64]

LEVEL: Final = "level"
DRIFT: Final = "drift"
#: Penalty of a level in noise variances, times the log of the nights, calibrated on identical code: about 0.05 false
#: changes in a series of 60 nights. Shorter series have the penalty of 60 nights, because their noise is less certain.
PENALTY: Final = 3.0
_NIGHTS_PAID: Final = 60
#: Minimum numbers of nights of a level, and of a series.
LEAST_LEVEL_NIGHTS: Final = 2
LEAST_SEARCHED: Final = 8
#: Probability that the change lies between its earliest and latest night.
_LOCATED: Final = 0.95
#: Maximum number of iterations between levels and autocorrelation; they converge after two or three.
_ROUNDS: Final = 5


@dataclass(frozen=True)
class Change:
    """One change of level, with nights as indices from 0.

    `start` is the first night of the new level or of the drift, `earliest` to `latest` its 95 % interval, or the first
    and last night of a drift. `effect` is the log of after over before, with standard `error` on `freedom` degrees.
    """

    kind: Literal["level", "drift"]
    start: int
    earliest: int
    latest: int
    effect: float
    error: float
    freedom: int
    before: int
    after: int


@dataclass(frozen=True)
class Levels:
    """The first night of each level (a drift is one), changes, outliers and undecided nights."""

    starts: list[int]
    changes: list[Change]
    outliers: Truths
    undecided: Truths


def find_levels(values: Floats, errors: Floats, *, paired: bool) -> Levels:
    """Find the levels of a series of nights.

    Parameters
    ----------
    values : (n,) finite log levels (or log ratios to a canary) in the order of time.
    errors : (n,) standard errors of them from the night's own sessions; NaN when unknown.
    paired : True for ratios to unchanged code of the same nights, in which changes of the host cancel.

    Returns
    -------
    Levels; one level without changes for fewer than 8 nights.

    Notes
    -----
    Exact weighted search (`segment_starts`) with a penalty of 3 log(n), times the factor of `wander`, which is
    estimated together with the levels, without outliers; a level has two nights or more. The first estimate of that
    factor assumes one level for a raw series, and no autocorrelation for a paired one. Changes in one direction that a
    straight slope fits as well are one drift. The interval of a change is the smallest with 95 % of the likelihood
    between its neighbours; that of the effect takes the night as known, so it is slightly too narrow for a recent
    change. A raw series also shows changes of the host.
    """
    count = len(values)
    outliers, undecided = outlier_nights(values, deviation(values))
    night = np.flatnonzero(~(outliers | undecided))
    if len(night) < LEAST_SEARCHED:
        return Levels([0] if count else [], [], outliers, undecided)
    variances = night_variances(values[night], errors[night])
    starts, inflation = _searched(values[night], variances, paired)
    found = _changes(_fit(values[night], 1 / (variances * inflation), starts, night))
    bounds = {0, *(change.start for change in found)}
    bounds |= {change.latest for change in found if change.kind == DRIFT and change.latest < count - 1}
    return Levels(sorted(bounds), found, outliers, undecided)


def _searched(series: Floats, variances: Floats, paired: bool) -> tuple[list[int], float]:
    """Return the first point of each level, and the factor of `wander`."""
    penalty = _penalty(len(series))
    scaled = series / np.sqrt(variances)
    starts, inflation = [0], 1.0
    if paired:
        starts = segment_starts(series, penalty, 1 / variances, LEAST_LEVEL_NIGHTS)
    for _ in range(_ROUNDS):
        inflation = wander(scaled, starts)
        found = segment_starts(series, penalty * inflation, 1 / variances, LEAST_LEVEL_NIGHTS)
        if found == starts:
            break
        starts = found
    return starts, inflation


def _penalty(count: int) -> float:
    return PENALTY * float(np.log(max(count, _NIGHTS_PAID)))


@dataclass(frozen=True)
class _Fit:
    """Levels of a series with their means, the residuals, and the night of each point."""

    series: Floats
    weight: Floats
    starts: list[int]
    ends: list[int]
    means: list[float]
    residual: Floats
    freedom: int
    spread: float
    night: Places


def _fit(series: Floats, weight: Floats, starts: list[int], night: Places) -> _Fit:
    count = len(series)
    ends = [*starts[1:], count]
    means = [float(np.average(series[a:b], weights=weight[a:b])) for a, b in zip(starts, ends, strict=True)]
    residual = series - np.repeat(means, np.diff([*starts, count]))
    freedom = max(count - len(starts), 1)
    spread = float((weight * residual**2).sum()) / freedom
    return _Fit(series, weight, starts, ends, means, residual, freedom, spread, night)


def _changes(fit: _Fit) -> list[Change]:
    """Return all changes; a drift is one change."""
    found: list[Change] = []
    count = len(fit.series)
    for run in _runs(fit.means):
        span = slice(fit.starts[run[0] - 1], fit.ends[run[-1]])
        slope = ramp(fit.series[span], fit.weight[span])
        squares = float((fit.weight[span] * fit.residual[span] ** 2).sum())
        # A slope has the penalty of one change, plus a little more for its second end.
        saved = _penalty(count) * (len(run) - 1) - float(np.log(count))
        if slope is not None and slope.squares < squares + saved:
            found.append(_drift(fit, slope, span))
        else:
            found += [_step(fit, level) for level in run]
    return found


def _step(fit: _Fit, level: int) -> Change:
    """Return the change from the previous level to this one."""
    a, b, c = fit.starts[level - 1], fit.starts[level], fit.ends[level]
    low, high = _place(fit.series[a:c], fit.weight[a:c] / max(fit.spread, 1.0))
    error = float(np.sqrt(fit.spread * (1 / fit.weight[a:b].sum() + 1 / fit.weight[b:c].sum())))
    places = (int(fit.night[b]), int(fit.night[a + low]), int(fit.night[a + high]))
    return Change("level", *places, fit.means[level] - fit.means[level - 1], error, fit.freedom, b - a, c - b)


def _drift(fit: _Fit, slope: Ramp, span: slice) -> Change:
    """Return the change from a slope's first night to its last."""
    begin, end = (int(fit.night[min(span.start + side, span.stop - 1)]) for side in (slope.begin, slope.end))
    error = float(np.sqrt(fit.spread * slope.variance))
    return Change("drift", begin, begin, end, slope.height, error, fit.freedom, slope.begin, end - begin)


def _runs(means: list[float]) -> list[list[int]]:
    """Return runs of consecutive levels with changes in one direction."""
    runs: list[list[int]] = []
    for level in range(1, len(means)):
        up = means[level] > means[level - 1]
        if level > 1 and up == (means[level - 1] > means[level - 2]):
            runs[-1].append(level)
        else:
            runs.append([level])
    return runs


def _place(series: Floats, weight: Floats) -> tuple[int, int]:
    """Earliest and latest first point of the second of two levels, with 95 % of the likelihood in between."""
    centred = series - np.average(series, weights=weight)
    total, value = np.cumsum(weight), np.cumsum(weight * centred)
    gain = value[:-1] ** 2 * (1 / total[:-1] + 1 / (total[-1] - total[:-1]))
    likelihood = np.exp((gain - gain.max()) / 2)
    order = np.argsort(-likelihood, kind="stable")
    enough = int(np.searchsorted(np.cumsum(likelihood[order]), _LOCATED * likelihood.sum())) + 1
    inside = order[:enough] + 1
    return int(inside.min()), int(inside.max())
