"""Trends within a level, and forecasts of the night that reaches the limit, with their past accuracy."""

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl

from aaco_pipeline.lake.contracts import polars_types
from aaco_pipeline.statistics.history.changes import SERIES
from aaco_pipeline.statistics.history.levels import LEAST_FOR_WANDER, Floats, wander
from aaco_pipeline.statistics.verdicts.effects import LEVEL

#: Two-sided 5 % point of the standard normal.
_Z: Final = 1.959964


@dataclass(frozen=True)
class Trend:
    """A slope in log a night with its 95 % interval, the log level at the last night, and the p of no trend."""

    slope: float
    low: float
    high: float
    last: float
    p_value: float

    @property
    def is_there(self) -> bool:
        return self.p_value < LEVEL and self.low * self.high > 0


def trend(values: Floats) -> Trend:
    """Estimate the slope of a series of nights, robust against outliers.

    Parameters
    ----------
    values : (n,) log levels, n at least 3.

    Notes
    -----
    The median of all slopes between two nights, with the interval by their ranks (Sen, Estimates of the regression
    coefficient based on Kendall's tau, 1968), tested by Mann and Kendall. The variance of Kendall's score is corrected
    for autocorrelation (Hamed and Rao, A modified Mann-Kendall trend test for autocorrelated data, 1998), by at least
    the factor of a first-order autoregression (`wander`), because short series underestimate it. A negative correlation
    does not reduce it. The number of slopes is quadratic in the nights.
    """
    count = len(values)
    first, second = np.triu_indices(count, 1)
    slopes = np.sort((values[second] - values[first]) / (second - first))
    slope = float(np.median(slopes))
    score = float(np.sign(slopes).sum())
    variance = count * (count - 1) * (2 * count + 5) / 18 * _correction(values - slope * np.arange(count))
    reach = _Z * np.sqrt(variance)
    low = int(np.clip(np.floor((len(slopes) - reach) / 2), 0, len(slopes) - 1))
    high = int(np.clip(np.ceil((len(slopes) + reach) / 2), 0, len(slopes) - 1))
    return Trend(
        slope, float(slopes[low]), float(slopes[high]), _last(values, slope), _two_sided(score, float(variance))
    )


def sen_lines(values: Floats) -> tuple[Floats, Floats]:
    """Return the slopes and log levels at the last night of many series at once, (series, n) in rows."""
    count = values.shape[1]
    first, second = np.triu_indices(count, 1)
    slopes: Floats = np.median((values[:, second] - values[:, first]) / (second - first), axis=1)
    last: Floats = np.median(values - slopes[:, None] * np.arange(count), axis=1) + slopes * (count - 1)
    return slopes, last


def _last(values: Floats, slope: float) -> float:
    nights = np.arange(len(values))
    return float(np.median(values - slope * nights) + slope * nights[-1])


def _correction(residuals: Floats) -> float:
    """The factor of the variance of Kendall's score over that of independent nights, from ranks about the slope."""
    count = len(residuals)
    ranks = np.argsort(np.argsort(residuals, kind="stable"), kind="stable").astype(np.float64)
    ranks -= ranks.mean()
    power = float(ranks @ ranks)
    correlations = np.array([ranks[lag:] @ ranks[:-lag] for lag in range(1, count - 2)]) / power
    lags = np.arange(1, count - 2)
    correlations[np.abs(correlations) < _Z / np.sqrt(count)] = 0
    weights = (count - lags) * (count - lags - 1) * (count - lags - 2)
    of_ranks = 1 + 2 / (count * (count - 1) * (count - 2)) * float(weights @ correlations)
    return max(of_ranks, wander(residuals, [0]))


def _two_sided(score: float, variance: float) -> float:
    from scipy.special import ndtr

    return float(2 * ndtr(-max(abs(score) - 1, 0) / np.sqrt(variance)))


#: Smallest number of nights of one level for a trend (with fewer the autocorrelation is unknown), and the largest.
LEAST_NIGHTS: Final = LEAST_FOR_WANDER
MOST_NIGHTS: Final = 120
#: Quantiles of the forecast band.
_QUANTILES: Final = (0.05, 0.5, 0.95)
#: Nights ahead in the back test.
HORIZON: Final = 7
#: Smallest number of forecasts in a back test.
_LEAST_TESTED: Final = 10
_DRAWS: Final = 400
_DRAWS_OF_THE_PAST: Final = 100
#: The longest forecast: ten years of nights.
_NEVER: Final = 3_650


@dataclass(frozen=True)
class BackTest:
    """Fraction of nights within their 90 % band, pinball loss over the last value's, and number of forecasts."""

    coverage: float
    pinball_ratio: float
    count: int


def forecasts(nights: pl.DataFrame, limits: pl.DataFrame) -> pl.DataFrame:
    """A row of `forecasts` for each series.

    Parameters
    ----------
    nights : rows of `nights` with their levels, from `changes.with_levels`; outliers and undecided nights are ignored.
    limits : workload, backend, metric and limit_ns of the service levels; one row each at most.
    """
    known = nights.join(limits, on=["workload", "backend", "metric"], how="left").sort(*SERIES, "night")
    rows = []
    for series in known.partition_by(SERIES, maintain_order=True):
        of_level = series.filter(pl.col("segment") == pl.col("segment").max())
        logs = of_level.get_column("level_ns").cast(pl.Float64).log().to_numpy()
        first = series.row(0, named=True)
        rows.append({**{name: first[name] for name in SERIES}, **forecast(logs, first["limit_ns"])})
    return pl.DataFrame(rows, schema=polars_types("forecasts"))


def forecast(values: Floats, limit_ns: int | None) -> dict[str, Any]:
    """Estimate the trend of one level, and the number of nights until it reaches the limit.

    Parameters
    ----------
    values : (n,) log levels in ns of the nights since the last change.
    limit_ns : limit of the service level, or None.

    Returns
    -------
    The columns of `forecasts` from `nights` on.

    Notes
    -----
    The line of `trend` is continued. Its band comes from a block bootstrap of the nights about it (blocks of the cube
    root of the nights, Kunsch, The jackknife and the bootstrap for general stationary observations, 1989). There is no
    forecast (`no trend`) when the interval of the slope includes 0. The accuracy on past nights is given with it.
    """
    values = values[-MOST_NIGHTS:]
    count = len(values)
    level = float(np.median(values)) if count else None
    row: dict[str, Any] = {"nights": count, "limit_ns": limit_ns, "level_ns": _ns(level)}
    if count < LEAST_NIGHTS:
        reason = f"{count} of {LEAST_NIGHTS} nights since the last change of level"
        return {**row, "state": "too few nights", "reason": reason}
    line = trend(values)
    past = back_test(values)
    row |= {
        "level_ns": _ns(line.last if line.is_there else level),
        "slope_ratio": float(np.expm1(line.slope)),
        "slope_ci_low": float(np.expm1(line.low)),
        "slope_ci_high": float(np.expm1(line.high)),
        "p_value": line.p_value,
        "coverage_ratio": past.coverage if past else None,
        "pinball_ratio": past.pinball_ratio if past else None,
    }
    return {**row, **_reached(values, line, row["level_ns"], limit_ns, past)}


def back_test(values: Floats) -> BackTest | None:
    """Return the accuracy of past forecasts seven nights ahead; None with too few of them.

    Every night from the 16th on is the origin of one forecast: along the line if there is a trend, else at the level.
    The naive forecast is the last value, with the quantiles of past differences between nights equally far apart.
    """
    ours, naive, inside = [], [], []
    random = np.random.default_rng(0)
    for origin in range(LEAST_NIGHTS, len(values) - HORIZON + 1):
        seen, truth = values[:origin], float(values[origin + HORIZON - 1])
        line = trend(seen)
        band = np.quantile(_ahead(seen, line.is_there, HORIZON, random), _QUANTILES)
        apart = seen[HORIZON:] - seen[:-HORIZON]
        last = seen[-1] + np.quantile(np.concatenate((apart, -apart)), _QUANTILES)
        inside.append(band[0] <= truth <= band[2])
        ours.append(_pinball(band, truth))
        naive.append(_pinball(last, truth))
    if len(ours) < _LEAST_TESTED:
        return None
    of_naive = float(np.mean(naive))
    ratio = float(np.mean(ours)) / of_naive if of_naive else 1.0
    return BackTest(float(np.mean(inside)), ratio, len(ours))


def _reached(
    values: Floats, line: Trend, level_ns: int | None, limit_ns: int | None, past: BackTest | None
) -> dict[str, Any]:
    """State, nights to the limit and the reason."""
    each = (
        f"{100 * np.expm1(line.slope):+.3g} % a night [{100 * np.expm1(line.low):.2g}, {100 * np.expm1(line.high):.2g}]"
    )
    if limit_ns is not None and level_ns is not None and level_ns >= limit_ns:
        return {"state": "reached", "nights_to_limit": 0, "reason": "the level is at the limit or beyond it"}
    if not line.is_there:
        return {"state": "no trend", "reason": f"the slope's interval includes 0: {each}"}
    if limit_ns is None:
        return {"state": "no limit", "reason": f"{each}, and no limit is set"}
    if line.slope < 0:
        return {"state": "moving away", "reason": each}
    goal = float(np.log(limit_ns))
    slopes, last = _lines(values, True, _DRAWS, np.random.default_rng(0))
    with np.errstate(divide="ignore"):
        nights = np.where(slopes > 0, np.maximum(goal - last, 0) / slopes, np.inf)
    low, high = np.quantile(nights, (_QUANTILES[0], _QUANTILES[-1]), method="nearest")
    middle = (goal - line.last) / line.slope
    return {
        "state": "foretold",
        "nights_to_limit": int(np.ceil(min(middle, _NEVER))),
        "nights_to_limit_low": int(np.floor(min(low, _NEVER))),
        "nights_to_limit_high": int(np.ceil(high)) if high < _NEVER else None,
        "reason": f"{each}; {_worth(past)}",
    }


def _worth(past: BackTest | None) -> str:
    if past is None:
        return "too few nights to try such forecasts on"
    hits = f"of {past.count} nights foretold {HORIZON} ahead {past.coverage:.0%} lay in their 90 % band"
    better = "nearer than" if past.pinball_ratio < 1 else "no better than"
    return f"{hits}, {better} the last value"


def _lines(values: Floats, has_slope: bool, draws: int, random: np.random.Generator) -> tuple[Floats, Floats]:
    """Slopes and last levels of resampled series: the line with residuals drawn in blocks."""
    count = len(values)
    fitted, residuals = _about(values, has_slope)
    length = max(round(count ** (1 / 3)), 1)
    starts = random.integers(0, count - length + 1, (draws, -(-count // length)))
    picks = (starts[:, :, None] + np.arange(length)).reshape(draws, -1)[:, :count]
    # Draws around a level have slopes too, which allows for a small undetected slope.
    return sen_lines(fitted + residuals[picks])


def _about(values: Floats, has_slope: bool) -> tuple[Floats, Floats]:
    """Return the line or level, and the residuals, corrected for the degrees of freedom of the fit."""
    nights = np.arange(len(values))
    slope = float(sen_lines(values[None, :])[0][0]) if has_slope else 0.0
    fitted: Floats = np.asarray(np.median(values - slope * nights) + slope * nights, np.float64)
    residuals = values - fitted
    taken = 2 if has_slope else 1
    widened: Floats = (residuals - residuals.mean()) * math.sqrt(len(values) / (len(values) - taken))
    return fitted, widened


def _ahead(values: Floats, has_slope: bool, horizon: int, random: np.random.Generator) -> Floats:
    """Draw the night `horizon` nights ahead: the line plus a residual."""
    slopes, last = _lines(values, has_slope, _DRAWS_OF_THE_PAST, random)
    _, residuals = _about(values, has_slope)
    drawn: Floats = (last + slopes * horizon)[:, None] + residuals[None, :]
    return drawn.ravel()


def _pinball(band: Floats, truth: float) -> float:
    """Mean loss of the quantiles (Koenker and Bassett, Regression quantiles, 1978)."""
    levels = np.array(_QUANTILES)
    off = truth - band
    return float(np.maximum(levels * off, (levels - 1) * off).mean())


def _ns(log_level: float | None) -> int | None:
    return None if log_level is None else round(float(np.exp(log_level)))
