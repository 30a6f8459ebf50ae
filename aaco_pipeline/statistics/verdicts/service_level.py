"""Service levels: a limit for a quantile of the latency, and the share of iterations that may exceed it.

A limit is agreed with users and has no baseline.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl

from aaco_pipeline.errors import UsageError
from aaco_pipeline.lake.contracts import polars_types
from aaco_pipeline.statistics.verdicts.effects import LEAST_BLOCKS, LEVEL, t_interval
from aaco_pipeline.statistics.verdicts.session_quantiles import QUANTILES

OK: Final = "ok"
AT_RISK: Final = "at_risk"
BREACHED: Final = "breached"
NOT_ENOUGH_DATA: Final = "not_enough_data"
#: Minimum number of sessions for an interval over sessions.
LEAST_SESSIONS: Final = LEAST_BLOCKS
#: Quantiles that can have a limit, and their columns of `session_quantiles`.
LIMITED: Final = {f"latency_{column.removesuffix('_ns')}": column for column in QUANTILES}
_TABLE: Final = polars_types("service_levels")


@dataclass(frozen=True)
class Limit:
    """The limit of a quantile and the share of iterations that may exceed it; UsageError for invalid values."""

    metric: str
    limit_ns: int
    budget_ratio: float

    def __post_init__(self) -> None:
        if self.metric not in LIMITED:
            raise UsageError(f"{self.metric} has no limit: choose one of {', '.join(LIMITED)}")
        if self.limit_ns <= 0:
            raise UsageError(f"a limit of {self.limit_ns} ns cannot be kept: give one above 0")
        if not 0 < self.budget_ratio < 1:
            raise UsageError(f"a budget of {self.budget_ratio:g}: give a share between 0 and 1, such as 0.01")


def usual_budget(metric: str) -> float:
    """Return the fraction above a quantile from its name: 0.01 for a P99."""
    return round(1 - QUANTILES[LIMITED[metric]][0], 6)


def service_levels(sessions: pl.DataFrame, iterations: pl.DataFrame, limits: Sequence[Limit]) -> pl.DataFrame:
    """Return the state of each limit in each arm.

    Parameters
    ----------
    sessions : rows of `session_quantiles` with the workload. Unsteady and bimodal sessions count too: users had those
        latencies.
    iterations : session_id, iteration and latency_ns of the same sessions; those before steady_from are omitted.
    limits : without limits there are no rows.

    Returns
    -------
    Rows of `service_levels`, sorted by metric and arm. The state is the worse one of the quantile and the share; with
    fewer than five sessions with that quantile it is `not_enough_data`, whatever the share.

    Notes
    -----
    The share's interval is that of Clopper and Pearson for the effective number of independent iterations, from the
    spread between sessions: Korn and Graubard, Confidence intervals for proportions with small expected number of
    positive counts estimated from survey data, 1998. It is too narrow when no session exceeded the limit, since bursts
    that were not observed cannot widen it.
    """
    usable = sessions.filter(pl.col("p50_ns").is_not_null())
    steady = (
        iterations.select("session_id", "iteration", "latency_ns")
        .join(usable.select("session_id", "arm", "steady_from"), on="session_id")
        .filter(pl.col("steady_from").is_null() | (pl.col("iteration") >= pl.col("steady_from")))
    )
    rows = [
        _row(limit, str(arm), of_arm, steady.filter(pl.col("arm") == arm))
        for limit in limits
        for (arm,), of_arm in sessions.partition_by("arm", as_dict=True).items()
    ]
    return pl.DataFrame(rows, schema=_TABLE).sort("metric", "arm")


def quantile_against_limit(quantiles: pl.Series, limit_ns: int) -> dict[str, str | float | int | None]:
    """Compare a typical session's quantile with the limit, with its 95 % interval over sessions.

    Parameters
    ----------
    quantiles : a quantile column of `session_quantiles` in ns; null when the session has none.
    limit_ns : above 0.

    Returns
    -------
    state: `ok` when the whole interval lies at or below the limit, `breached` when it lies above, `at_risk` when the
    limit is inside, `not_enough_data` below five sessions; sessions; quantile_ns, ci_low_ns and ci_high_ns (null
    without an interval).

    Notes
    -----
    A t interval of the mean log of the sessions' quantiles (their geometric mean): sessions are the replicates, and
    an interval from the order of pooled iterations would be too narrow. It describes only the conditions under which
    the sessions ran.
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


def error_budget(over_limit: float, requests: float, budget_ratio: float) -> dict[str, str | float | int | None]:
    """The burn rate of the error budget: the share of requests over the limit divided by the allowed share.

    Parameters
    ----------
    over_limit, requests : the number over the limit and the total; effective numbers, not whole, for correlated
        requests.
    budget_ratio : the allowed share, such as 0.01 for a P99.

    Returns
    -------
    state as in `quantile_against_limit`, for the share; share_ratio with ci_low_ratio and ci_high_ratio; burn (share
    over budget: 1 spends it exactly) with burn_low and burn_high; all null without a request. `not_enough_data` when
    there are too few requests to show a share within the budget even with none over the limit.

    Notes
    -----
    Clopper and Pearson, The use of confidence or fiducial limits, 1934: exact for independent requests. Requests of one
    process come in bursts, for which the interval is too narrow.
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


def _row(limit: Limit, arm: str, sessions: pl.DataFrame, steady: pl.DataFrame) -> dict[str, Any]:
    """The row of `service_levels` of one arm and one limit."""
    quantile = quantile_against_limit(sessions.get_column(LIMITED[limit.metric]), limit.limit_ns)
    counts = steady.group_by("session_id").agg(
        over=(pl.col("latency_ns") > limit.limit_ns).sum(), n=pl.len().cast(pl.Float64)
    )
    over, requests = _independent(counts)
    share = error_budget(over, requests, limit.budget_ratio)
    return {
        "workload": sessions.item(0, "workload"),
        "metric": limit.metric,
        "arm": arm,
        "limit_ns": limit.limit_ns,
        **{**quantile, "state": _worse(str(quantile["state"]), str(share["state"]))},
        "budget_ratio": limit.budget_ratio,
        "over_limit_ratio": share["share_ratio"],
        "over_limit_low_ratio": share["ci_low_ratio"],
        "over_limit_high_ratio": share["ci_high_ratio"],
        "burn_ratio": share["burn"],
        "iterations": steady.height,
    }


def _worse(quantile: str, share: str) -> str:
    if quantile == NOT_ENOUGH_DATA:
        return quantile
    return next(state for state in (BREACHED, AT_RISK, NOT_ENOUGH_DATA, OK) if state in (quantile, share))


def _independent(counts: pl.DataFrame) -> tuple[float, float]:
    """Return the effective numbers of independent iterations: over the limit, and in total."""
    from scipy.special import stdtrit

    over, n = counts.get_column("over").to_numpy().astype(np.float64), counts.get_column("n").to_numpy()
    total, sessions = float(n.sum()), len(n)
    share = float(over.sum()) / total if total else 0.0
    if sessions < 2 or share in (0.0, 1.0):
        return share * total, total
    variance = sessions / (sessions - 1) * float(((over - share * n) ** 2).sum()) / total**2
    wider = (stdtrit(total - 1, 1 - LEVEL / 2) / stdtrit(sessions - 1, 1 - LEVEL / 2)) ** 2
    left = min(total, share * (1 - share) / variance) if variance else total
    return share * left * wider, left * wider


def _quantile_row(
    state: str, sessions: int, middle: float | None, low: float | None, high: float | None
) -> dict[str, str | float | int | None]:
    """Return the figures in whole nanoseconds, with the interval rounded outwards."""
    return {
        "state": state,
        "sessions": sessions,
        "quantile_ns": None if middle is None else round(middle),
        "ci_low_ns": None if low is None else int(np.floor(low)),
        "ci_high_ns": None if high is None else int(np.ceil(high)),
    }
