"""Where a series of nights changes its level: how surely, where at the earliest and latest, and by how much.

Whose change it is, the code's or the host's, is `changes`.
"""

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from aaco_pipeline.statistics.history.drift import Ramp, ramp
from aaco_pipeline.statistics.history.noise import Floats, deviation, night_variances, wander
from aaco_pipeline.statistics.history.outliers import Truths, outlier_nights
from aaco_pipeline.statistics.segmentation import segment_starts

Places = npt.NDArray[np.int64]

LEVEL: Final = "level"
DRIFT: Final = "drift"
#: What one more level must save, in noise variances a log of the nights: fixed on pairs of identical code, so that a
#: series of 60 nights has about 0.05 false changes. Fewer nights pay as much as 60: their noise is known less well.
PENALTY: Final = 3.0
_NIGHTS_PAID: Final = 60
#: Nights that a level holds at least, and a series that is searched.
LEAST_NIGHTS: Final = 2
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
        starts = segment_starts(series, penalty, 1 / variances, LEAST_NIGHTS)
    for _ in range(_ROUNDS):
        inflation = wander(scaled, starts)
        found = segment_starts(series, penalty * inflation, 1 / variances, LEAST_NIGHTS)
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
