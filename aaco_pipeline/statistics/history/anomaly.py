"""Compare one run with earlier nights, and with other hosts of the same night."""

from typing import Any, Final

import numpy as np
import polars as pl

from aaco_pipeline.statistics.history.levels import LEAST_DEVIATION, Floats

#: Minimum numbers of nights of one level and of hosts of one night.
LEAST_NIGHTS: Final = 8
LEAST_HOSTS: Final = 5
#: Two-sided probability of a false `slower` or `faster`.
_CHANCE: Final = 0.01
AS_BEFORE: Final = "as before"
SLOWER: Final = "slower"
FASTER: Final = "faster"
TOO_LITTLE: Final = "too little history"
#: Median absolute deviation of a standard normal.
_MAD_OF_NORMAL: Final = 0.6745


def place_in_history(nights: pl.DataFrame, value_ns: int, fleet_ns: pl.Series | None = None) -> dict[str, Any]:
    """Compare one session's value with its history and its fleet.

    Parameters
    ----------
    nights : rows of `nights` of one series, in any order.
    value_ns : the session's own value of that metric, above 0.
    fleet_ns : values of the same night on other hosts of the same kind, if there are any.

    Returns
    -------
    state: `as before`, `slower`, `faster` or `too little history`; nights (the number of nights of the last level,
    without outliers); their level_ns; ratio of the value to it; low_ratio and high_ratio, within which 99 of 100
    sessions of that level lie; fleet_hosts, fleet_ratio and fleet_state likewise; reason as a sentence. Unknown figures
    are null.

    Notes
    -----
    The interval is from the median and median absolute deviation of the nights' log levels, the spread of sessions
    within a night, and the t quantile. A run that is slower than its history but not than its fleet points to a common
    cause (a driver, a model), one that is slower than both to its host. Right after a change of level too few nights
    of the new one are known.
    """
    last = nights.filter(pl.col("segment") == pl.col("segment").max())
    known = last.get_column("level_ns").cast(pl.Float64).log().to_numpy()
    value = float(np.log(value_ns))
    row: dict[str, Any] = dict.fromkeys(("level_ns", "ratio", "low_ratio", "high_ratio", "fleet_ratio", "fleet_state"))
    row |= {"nights": len(known), "fleet_hosts": 0 if fleet_ns is None else len(fleet_ns)}
    if len(known):
        row |= {"level_ns": round(float(np.exp(np.median(known)))), "ratio": float(np.exp(value - np.median(known)))}
    if fleet_ns is not None and len(fleet_ns) >= LEAST_HOSTS:
        hosts = fleet_ns.cast(pl.Float64).log().to_numpy()
        row["fleet_ratio"] = float(np.exp(value - np.median(hosts)))
        row["fleet_state"] = _state(value - float(np.median(hosts)), _reach(hosts, 0.0))
    if len(known) < LEAST_NIGHTS:
        return {**row, "state": TOO_LITTLE, "reason": f"{len(known)} of {LEAST_NIGHTS} nights of this level are known"}
    reach = _reach(known, _of_sessions(last))
    row |= {"low_ratio": float(np.exp(-reach)), "high_ratio": float(np.exp(reach))}
    state = _state(value - float(np.median(known)), reach)
    return {**row, "state": state, "reason": _reason(state, row)}


def _of_sessions(nights: pl.DataFrame) -> float:
    """Return the variance of single sessions within a night; 0 if no night has two."""
    variance = nights.select((pl.col("error_ratio") ** 2 * pl.col("sessions")).median()).item()
    return 0.0 if variance is None else float(variance)


def _reach(logs: Floats, beyond: float) -> float:
    """Return the largest usual distance of a new value from the median; `beyond` is its additional variance."""
    from scipy.special import stdtrit

    spread = max(float(np.median(np.abs(logs - np.median(logs)))) / _MAD_OF_NORMAL, LEAST_DEVIATION)
    count = len(logs)
    return float(stdtrit(count - 1, 1 - _CHANCE / 2)) * float(np.sqrt(spread**2 * (1 + np.pi / 2 / count) + beyond))


def _state(off: float, reach: float) -> str:
    return AS_BEFORE if abs(off) <= reach else SLOWER if off > 0 else FASTER


def _reason(state: str, row: dict[str, Any]) -> str:
    share = f"{row['low_ratio']:.3f} to {row['high_ratio']:.3f} times the level of {row['nights']} nights"
    place = f"{row['ratio']:.3f} times, where 99 of 100 sessions lie within {share}"
    if row["fleet_state"] is None or state == AS_BEFORE:
        return place
    if row["fleet_state"] == AS_BEFORE:
        return f"{place}; the other hosts of that night moved with it: what all share changed"
    return f"{place}; the other hosts of that night did not: this host did"
