"""The verdict between arms that cannot alternate, such as two drivers: they were measured on different nights.

Whatever can alternate is compared in the same blocks, by `comparison`, which sees far smaller changes.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import polars as pl

from aaco_pipeline.lake.contracts import polars_types
from aaco_pipeline.statistics.verdicts.block_effects import Floats, t_interval, t_test_p
from aaco_pipeline.statistics.verdicts.comparison import METRICS, of_both_arms, why_left_out
from aaco_pipeline.statistics.verdicts.decision import (
    HARDWARE_DIFFERS,
    INCONCLUSIVE,
    WITHHELD,
    Row,
    busy_host,
    grade,
    percent,
    unjudged,
)
from aaco_pipeline.statistics.verdicts.power import minimum_detectable_ratio
from aaco_pipeline.statistics.verdicts.sequential import LEVEL
from aaco_pipeline.statistics.verdicts.slow_sessions import slow_sessions

Effect = Mapping[str, float | None]
_UNKNOWN: Final[Effect] = dict.fromkeys(("ci_low", "ci_high", "p_value", "minimum_detectable_ratio"))

BETWEEN_NIGHTS: Final = "between nights"
REGRESSED_BETWEEN_NIGHTS: Final = "regressed between nights"
#: Nights of unchanged code on one host from which its night-to-night variance is taken.
LEAST_CANARY_NIGHTS: Final = 20


def compare_between_nights(
    sessions: pl.DataFrame,
    canary_nights: pl.DataFrame,
    baseline: str,
    candidate: str,
    *,
    policy_ratio: float = 0.01,
    metric: str = "latency_p50",
) -> pl.DataFrame:
    """The verdict on one metric of every campaign whose arms ran on different nights.

    Parameters
    ----------
    sessions : as `comparison.compare` takes them, with the night in `block`. The environments of the arms may differ:
        that is what is compared. Host and device may not.
    canary_nights : host and level_ns, one row a night of unchanged code: the geometric mean of the metric over that
        night's sessions, as many as an arm has a night or fewer.

    Returns
    -------
    Rows of `verdicts` with campaign_id: `regressed between nights` when the whole 95 % interval lies beyond the
    policy, else `inconclusive`; `withheld` below 20 canary nights of that host; `hardware differs`.

    Notes
    -----
    Variance of the effect = night variance (1/N + 1/M), from the canary, + session variance within nights of each arm
    over its sessions; degrees of freedom by Satterthwaite, An approximate distribution of estimates of variance
    components, 1946. The canary's nights hold session noise of their own, so the interval is rather too wide. It lies
    when the host changed together with the arm (a move, a repair, a season): that no sessions of one host can tell, so
    this verdict is graded as what it is, and never says improved or equivalent.
    """
    both = of_both_arms(sessions, baseline, candidate)
    valued = both.with_columns(why=why_left_out(metric, METRICS[metric])).with_columns(
        log=pl.when(pl.col("why").is_null()).then(pl.col(METRICS[metric]).log())
    )
    common = {"baseline": baseline, "candidate": candidate, "metric": metric, "role": "primary", "level": LEVEL}
    rows = [
        {"campaign_id": campaign, **common, **_verdict(of_campaign, canary_nights, candidate, policy_ratio)}
        for (campaign,), of_campaign in valued.group_by("campaign_id", maintain_order=True)
    ]
    return pl.DataFrame(rows, schema={"campaign_id": pl.String, **polars_types("verdicts")}).sort("campaign_id")


def _verdict(
    sessions: pl.DataFrame, canary_nights: pl.DataFrame, candidate: str, policy_ratio: float
) -> dict[str, Any]:
    """What one campaign's row holds beside its names."""
    known = sessions.filter(pl.col("log").is_not_null())
    arms = [known.filter((pl.col("arm") == candidate) == of_candidate) for of_candidate in (False, True)]
    hosts = sessions.get_column("host").unique()
    nights = canary_nights.filter(pl.col("host").is_in(hosts.implode())).get_column("level_ns").log().to_numpy()
    slow = slow_sessions(sessions)
    row = {
        **{f"{name}_count": sessions.get_column(name).n_unique() for name in ("host", "device", "cache_state")},
        # The environments differ: that is what is compared.
        "fingerprint_count": 1,
        "sessions_baseline": arms[0].height,
        "sessions_candidate": arms[1].height,
        "slow_arms": slow.get_column("arm").unique().sort().to_list(),
        "slow_sessions": slow.get_column("session_id").to_list(),
        "times_slower": slow.get_column("times_slower").to_list(),
    }
    effect = _effect(arms, nights)
    obstacle = next(_obstacles(row, effect, len(nights)), None)
    boots = sessions.get_column("boot_id")
    verdict, reason, recommendation = obstacle or _by_interval(effect, policy_ratio)
    if verdict in (HARDWARE_DIFFERS, WITHHELD):
        described = effect["effect_ratio"] if verdict == WITHHELD else None
        effect = {**_UNKNOWN, "effect_ratio": described}
    return {
        "sessions_baseline": arms[0].height,
        "sessions_candidate": arms[1].height,
        "verdict": verdict,
        **effect,
        "threshold_ratio": policy_ratio,
        "recommendation": recommendation,
        "design": BETWEEN_NIGHTS,
        "blocks": known.get_column("block").n_unique(),
        "excluded_sessions": sessions.filter(pl.col("log").is_null()).get_column("session_id").to_list(),
        "slow_sessions": row["slow_sessions"],
        "alert_grade": grade(None if boots.null_count() else boots.n_unique())
        if verdict == REGRESSED_BETWEEN_NIGHTS
        else None,
        "reasons": [reason],
    }


def _obstacles(row: Row, effect: Effect, nights: int) -> Iterator[tuple[str, str, str]]:
    """What keeps the interval from deciding, in the form of `unjudged`."""
    yield from unjudged(row)
    if nights < LEAST_CANARY_NIGHTS:
        what = f"{nights} of {LEAST_CANARY_NIGHTS} nights of unchanged code on this host are known"
        yield WITHHELD, what, "run the canary every night, or both arms in the same blocks if they can alternate"
    if effect["ci_low"] is None:
        what = "no night has two sessions of an arm, so their spread is unknown"
        yield INCONCLUSIVE, what, "run several sessions a night"
    yield from busy_host(row)


def _by_interval(effect: Effect, policy_ratio: float) -> tuple[str, str, str | None]:
    low, high = effect["ci_low"], effect["ci_high"]
    interval = f"the interval, {low:.4f} to {high:.4f}, nights' spread included,"
    if low is not None and low > 1 + policy_ratio:
        return REGRESSED_BETWEEN_NIGHTS, f"{interval} lies beyond a difference of {percent(policy_ratio)}", None
    what = f"{interval} does not lie beyond a slowdown of {percent(policy_ratio)}"
    return INCONCLUSIVE, what, "run both arms in the same blocks if they can alternate"


def _effect(arms: list[pl.DataFrame], nights: Floats) -> Effect:
    """The effect with its interval, p and minimum detectable ratio; all but the effect null without both variances."""
    logs = [arm.get_column("log").to_numpy() for arm in arms]
    counts = [arm.get_column("block").n_unique() for arm in arms]
    effect = float(np.exp(logs[1].mean() - logs[0].mean())) if all(len(log) for log in logs) else None
    freedoms = [len(log) - count for log, count in zip(logs, counts, strict=True)]
    if len(nights) < LEAST_CANARY_NIGHTS or min(freedoms) < 1:
        return {"effect_ratio": effect, **_UNKNOWN}
    parts = [(nights.var(ddof=1) * sum(1 / count for count in counts), len(nights) - 1)]
    for arm, log, freedom in zip(arms, logs, freedoms, strict=True):
        within = log - arm.select(pl.col("log").mean().over("block")).to_series().to_numpy()
        parts.append(((within**2).sum() / freedom / len(log), freedom))
    variance = np.array(sum(part for part, _ in parts))
    freedom = variance**2 / np.array(sum(part**2 / each for part, each in parts))
    mean, level = np.array(logs[1].mean() - logs[0].mean()), np.array(LEVEL)
    low, high = t_interval(mean, np.sqrt(variance), freedom, level)
    return {
        "effect_ratio": effect,
        "ci_low": float(np.exp(low)),
        "ci_high": float(np.exp(high)),
        "p_value": float(t_test_p(mean, np.sqrt(variance), freedom)),
        "minimum_detectable_ratio": float(minimum_detectable_ratio(np.sqrt(variance), freedom, level)),
    }
