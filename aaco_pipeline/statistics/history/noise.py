"""How much a series of nights scatters where nothing changes: what every search for a change is weighed by."""

import math
from typing import Final

import numpy as np
import numpy.typing as npt

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
