"""Find where a series of nights changes its level, and by how much, after noise, outliers and drift are estimated.

Whether code or host caused a change is `changes`.
"""

import math
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from aaco_pipeline.statistics.segmentation import segment_starts

Floats = npt.NDArray[np.float64]

#: The largest differences are left out of the scale: among them are the changes that are looked for.
_KEPT: Final = 0.9
#: Mean size of a standard normal within its central 90 %.
_MEAN_OF_KEPT: Final = 0.6573
#: Least deviation of a log level: below one part in ten thousand a series is called constant.
LEAST_DEVIATION: Final = 1e-4
#: Series of fewer nights cannot show that their nights hang together.
LEAST_FOR_WANDER: Final = 16


def deviation(values: Floats) -> float:
    """The standard deviation of single nights about their level, from how neighbours differ.

    Parameters
    ----------
    values : (n,) log levels in the order of time.

    Returns
    -------
    The deviation; at least 1e-4, also below three nights.

    Notes
    -----
    Differences of neighbours know nothing of levels and slow trends; a change spoils one of them. Their largest tenth
    is left out and the rest scaled as for a normal. It lies (is too small) when neighbours are alike: `wander`.
    """
    return max(_size(np.diff(values)) / math.sqrt(2), LEAST_DEVIATION)


def night_variances(values: Floats, errors: Floats) -> Floats:
    """The variance of each night: what its sessions leave unsure, and what nights differ by beyond that.

    Parameters
    ----------
    values : (n,) log levels in the order of time.
    errors : (n,) standard errors of them from the night's own sessions; NaN where there was one session.

    Returns
    -------
    (n,) positive: errors squared plus the variance between nights. A night of one session takes the median error of
    the others; where none has one, all nights weigh the same.
    """
    total = deviation(values) ** 2
    known = errors[np.isfinite(errors)] ** 2
    if not len(known):
        return np.full(len(values), total)
    within = np.where(np.isfinite(errors), errors**2, np.median(known))
    between = max(total - float(np.median(within)), LEAST_DEVIATION**2)
    return within + between


def wander(values: Floats, starts: list[int]) -> float:
    r"""How many times more a mean over many nights varies than of independent nights; at least 1.

    Parameters
    ----------
    values : (n,) log levels, in units of their own deviation.
    starts : first night of each level that is taken out before.

    Notes
    -----
    :math:`(1 + r) / (1 - r)` of a first-order autoregression with lag-1 correlation r of the residuals, which is
    corrected for what the means that were taken out cost (Kendall, Note on bias in the estimation of autocorrelation,
    1954: (1 + 3 r) / n a mean).
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


Places = npt.NDArray[np.int64]

LEVEL: Final = "level"
DRIFT: Final = "drift"
#: What one more level must save, in noise variances a log of the nights: fixed on pairs of identical code, so that a
#: series of 60 nights has about 0.05 false changes. Fewer nights pay as much as 60: their noise is known less well.
PENALTY: Final = 3.0
_NIGHTS_PAID: Final = 60
#: Nights that a level holds at least, and a series that is searched.
LEAST_NIGHTS_LEVELS: Final = 2
LEAST_SEARCHED: Final = 8
#: Chance that the change lies within its earliest and latest place.
_LOCATED: Final = 0.95
#: Times that levels and the wander about them are found in turn; they agree after two or three.
_ROUNDS: Final = 5


@dataclass(frozen=True)
class Change:
    """One change of level. Places count the nights that were given, from 0.

    `start` is the first night of the new level (of a drift its first night), `earliest` to `latest` hold it with 95 %;
    of a drift they are its first and last night. `effect` is the log of after over before, with standard `error` on
    `freedom` degrees.
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
    """What was found: the first night of each level (a drift is one), outliers, nights that cannot be told yet."""

    starts: list[int]
    changes: list[Change]
    outliers: Truths
    undecided: Truths


def find_levels(values: Floats, errors: Floats, *, paired: bool) -> Levels:
    """The levels of a series of nights.

    Parameters
    ----------
    values : (n,) finite log levels (or log ratios to a canary) in the order of time.
    errors : (n,) standard errors of them from the night's own sessions; NaN where unknown.
    paired : whether they are ratios to unchanged code of the same nights, in which the host's wander cancels.

    Returns
    -------
    Levels; one level without changes below 8 nights.

    Notes
    -----
    Exact weighted search (`segment_starts`) with a penalty of 3 log(n), times how much the nights wander (a
    first-order autoregression, found together with the levels), on nights that are no outliers; a level holds two
    nights. A raw series is held to wander until levels explain it, a paired one to be free of that until it is not.
    Changes in one direction that a straight slope tells as well are one drift. The interval of a place is the smallest
    that holds 95 % of the likelihood between its neighbours; that of the effect takes the place for known, so it is
    somewhat narrow for a change that was just found. It lies when the host's own steps are in the series, which only
    a pairing with unchanged code takes out.
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


# ---- inside ----------------------------------------------------------------------------------------------------------


def _searched(series: Floats, variances: Floats, paired: bool) -> tuple[list[int], float]:
    """First point of each level, and how many times more a mean varies than of independent nights."""
    penalty = _penalty(len(series))
    scaled = series / np.sqrt(variances)
    starts, inflation = [0], 1.0
    if paired:
        starts = segment_starts(series, penalty, 1 / variances, LEAST_NIGHTS_LEVELS)
    for _ in range(_ROUNDS):
        inflation = wander(scaled, starts)
        found = segment_starts(series, penalty * inflation, 1 / variances, LEAST_NIGHTS_LEVELS)
        if found == starts:
            break
        starts = found
    return starts, inflation


def _penalty(count: int) -> float:
    return PENALTY * float(np.log(max(count, _NIGHTS_PAID)))


@dataclass(frozen=True)
class _Fit:
    """The levels of a series with their means, what is left about them, and the night of each point."""

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
    """Every change, those of one drift as one."""
    found: list[Change] = []
    count = len(fit.series)
    for run in _runs(fit.means):
        span = slice(fit.starts[run[0] - 1], fit.ends[run[-1]])
        slope = ramp(fit.series[span], fit.weight[span])
        squares = float((fit.weight[span] * fit.residual[span] ** 2).sum())
        # A slope costs one change, and a little more for its second end.
        saved = _penalty(count) * (len(run) - 1) - float(np.log(count))
        if slope is not None and slope.squares < squares + saved:
            found.append(_drift(fit, slope, span))
        else:
            found += [_step(fit, level) for level in run]
    return found


def _step(fit: _Fit, level: int) -> Change:
    """The change from the level before to this one."""
    a, b, c = fit.starts[level - 1], fit.starts[level], fit.ends[level]
    low, high = _place(fit.series[a:c], fit.weight[a:c] / max(fit.spread, 1.0))
    error = float(np.sqrt(fit.spread * (1 / fit.weight[a:b].sum() + 1 / fit.weight[b:c].sum())))
    places = (int(fit.night[b]), int(fit.night[a + low]), int(fit.night[a + high]))
    return Change("level", *places, fit.means[level] - fit.means[level - 1], error, fit.freedom, b - a, c - b)


def _drift(fit: _Fit, slope: Ramp, span: slice) -> Change:
    """The change from a slope's first night to its last."""
    begin, end = (int(fit.night[min(span.start + side, span.stop - 1)]) for side in (slope.begin, slope.end))
    error = float(np.sqrt(fit.spread * slope.variance))
    return Change("drift", begin, begin, end, slope.height, error, fit.freedom, slope.begin, end - begin)


def _runs(means: list[float]) -> list[list[int]]:
    """Numbers of the levels that follow each other in one direction."""
    runs: list[list[int]] = []
    for level in range(1, len(means)):
        up = means[level] > means[level - 1]
        if level > 1 and up == (means[level - 1] > means[level - 2]):
            runs[-1].append(level)
        else:
            runs.append([level])
    return runs


def _place(series: Floats, weight: Floats) -> tuple[int, int]:
    """The earliest and latest first point of the second of two levels, with 95 % of the likelihood between them."""
    centred = series - np.average(series, weights=weight)
    total, value = np.cumsum(weight), np.cumsum(weight * centred)
    gain = value[:-1] ** 2 * (1 / total[:-1] + 1 / (total[-1] - total[:-1]))
    likelihood = np.exp((gain - gain.max()) / 2)
    order = np.argsort(-likelihood, kind="stable")
    enough = int(np.searchsorted(np.cumsum(likelihood[order]), _LOCATED * likelihood.sum())) + 1
    inside = order[:enough] + 1
    return int(inside.min()), int(inside.max())
