"""Whether latencies keep to a limit: by what their quantile may be at worst, and by the share that exceeds it.

Comparing with another arm is `comparison`; a limit is agreed with users and knows no baseline.
"""

from typing import Final

import numpy as np
import polars as pl

from aaco_pipeline.errors import UsageError
from aaco_pipeline.statistics.verdicts.block_effects import LEAST_BLOCKS, t_interval
from aaco_pipeline.statistics.verdicts.sequential import LEVEL

OK: Final = "ok"
AT_RISK: Final = "at_risk"
BREACHED: Final = "breached"
NOT_ENOUGH_DATA: Final = "not_enough_data"
#: Sessions from which the spread between sessions is known well enough for an interval.
LEAST_SESSIONS: Final = LEAST_BLOCKS


def quantile_against_limit(quantiles: pl.Series, limit_ns: int) -> dict[str, str | float | int | None]:
    """Whether the quantile of a typical session lies below the limit, with its 95 % interval over sessions.

    Parameters
    ----------
    quantiles : the same quantile of each session in ns, a column of `session_quantiles`; null where it has none.
    limit_ns : above 0.

    Returns
    -------
    state: `ok` when the whole interval lies at or below the limit, `breached` when it lies above, `at_risk` when the
    limit is inside, `not_enough_data` below five sessions; sessions; quantile_ns, ci_low_ns and ci_high_ns (null
    without an interval).

    Notes
    -----
    A t interval of the mean log of the sessions' quantiles (their geometric mean): sessions are the replicates, and
    an interval from the order of pooled iterations would be too narrow. It lies when sessions were all taken in one
    quiet hour: it then speaks of that hour.
    """
    if limit_ns <= 0:
        raise UsageError(f"a limit of {limit_ns} ns cannot be kept: give one above 0")
    known = quantiles.drop_nulls()
    logs = np.log(known.to_numpy().astype(np.float64))
    middle = float(np.exp(logs.mean())) if len(logs) else None
    if len(logs) < LEAST_SESSIONS:
        return _quantile_row(NOT_ENOUGH_DATA, len(logs), middle, None, None)
    error = np.array(logs.std(ddof=1) / np.sqrt(len(logs)))
    ends = t_interval(np.array(logs.mean()), error, np.array(len(logs) - 1.0), np.array(LEVEL))
    low, high = (float(np.exp(end)) for end in ends)
    state = OK if high <= limit_ns else BREACHED if low > limit_ns else AT_RISK
    return _quantile_row(state, len(logs), middle, low, high)


def error_budget(over_limit: int, requests: int, budget_ratio: float) -> dict[str, str | float | int | None]:
    """How fast the error budget burns: the share of requests over the limit against the share that is allowed.

    Parameters
    ----------
    over_limit, requests : how many were over the limit, and how many there were.
    budget_ratio : the allowed share, such as 0.01 for a P99.

    Returns
    -------
    state as in `quantile_against_limit`, for the share; share_ratio with ci_low_ratio and ci_high_ratio; burn (share
    over budget: 1 spends it exactly) with burn_low and burn_high; all null without a request. `not_enough_data` is
    said as long as so few requests could not show a share within the budget even with none over the limit.

    Notes
    -----
    Clopper and Pearson, The use of confidence or fiducial limits, 1934: exact for independent requests, never too
    narrow. Requests of one process come in bursts: give one figure a session, or take the interval for too narrow.
    """
    if not 0 <= over_limit <= requests or not 0 < budget_ratio < 1:
        raise UsageError(f"{over_limit} of {requests} over the limit with a budget of {budget_ratio}: no share")
    from scipy.special import betaincinv

    if requests == 0:
        names = ("share_ratio", "ci_low_ratio", "ci_high_ratio", "burn", "burn_low", "burn_high")
        return {"state": NOT_ENOUGH_DATA, **dict.fromkeys(names)}
    side = LEVEL / 2
    low = float(betaincinv(over_limit, requests - over_limit + 1, side)) if over_limit else 0.0
    high = float(betaincinv(over_limit + 1, requests - over_limit, 1 - side)) if over_limit < requests else 1.0
    best_possible = 1 - side ** (1 / requests)
    state = BREACHED if low > budget_ratio else OK if high <= budget_ratio else AT_RISK
    if state == AT_RISK and best_possible > budget_ratio:
        state = NOT_ENOUGH_DATA
    share = over_limit / requests
    shares = {"share_ratio": share, "ci_low_ratio": low, "ci_high_ratio": high}
    burns = {"burn": share / budget_ratio, "burn_low": low / budget_ratio, "burn_high": high / budget_ratio}
    return {"state": state, **shares, **burns}


def _quantile_row(
    state: str, sessions: int, middle: float | None, low: float | None, high: float | None
) -> dict[str, str | float | int | None]:
    """The figures in whole nanoseconds, the interval widened to them."""
    return {
        "state": state,
        "sessions": sessions,
        "quantile_ns": None if middle is None else round(middle),
        "ci_low_ns": None if low is None else int(np.floor(low)),
        "ci_high_ns": None if high is None else int(np.ceil(high)),
    }
