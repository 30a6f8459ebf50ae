"""Compare two arms metric by metric, from sessions of the same blocks or of different nights.

`effects` computes the figures, `decision` the verdicts.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import polars as pl

from aaco_pipeline.errors import UsageError
from aaco_pipeline.lake.contracts import polars_types
from aaco_pipeline.statistics.steady_state import BIMODAL, UNSTEADY
from aaco_pipeline.statistics.verdicts.decision import (
    DESIGN,
    HARDWARE_DIFFERS,
    INCONCLUSIVE,
    INTERLEAVED,
    WITHHELD,
    Row,
    busy_host,
    decided,
    floors,
    grade,
    percent,
    unjudged,
)
from aaco_pipeline.statistics.verdicts.effects import (
    LEAST_BLOCKS,
    LEVEL,
    Floats,
    block_effects,
    levels_at_looks,
    minimum_detectable_ratio,
    slow_sessions,
    t_interval,
    t_test_p,
)
from aaco_pipeline.statistics.verdicts.session_quantiles import UNUSABLE

#: Metrics with verdicts, and their columns of `session_quantiles`.
METRICS: Final = {
    "latency_p50": "p50_ns",
    "latency_p90": "p90_ns",
    "latency_p99": "p99_ns",
    "latency_trimmed_mean": "trimmed_mean_ns",
}
#: States whose median may fall between two levels; such sessions are omitted only from P50.
_WITHOUT_LEVEL: Final = (UNSTEADY, BIMODAL)
#: Columns that must be equal in all sessions of a campaign.
_SHARED: Final = ("host", "device", "fingerprint", "cache_state")
_SPREAD: Final = ("paired", "mean", "deviation")
_VERDICTS: Final = polars_types("verdicts")


@dataclass(frozen=True)
class Plan:
    """The plan of a campaign, fixed before its first session.

    `looks` are the numbers of blocks at which a verdict is made; `policy_ratio` is the largest irrelevant difference
    from 1; `primary` is the metric that decides.
    """

    baseline: str
    candidate: str
    looks: tuple[int, ...]
    policy_ratio: float = 0.01
    primary: str = "latency_p50"
    design: Literal["interleaved", "stored baseline"] = INTERLEAVED

    def __post_init__(self) -> None:
        if self.primary not in METRICS:
            raise UsageError(f"{self.primary} is no metric that is compared: choose one of {', '.join(METRICS)}")
        if not 0 < self.policy_ratio < 1:
            raise UsageError(f"a policy of {self.policy_ratio} allows no difference; use a value such as 0.01")
        levels_at_looks(self.looks)


def compare(sessions: pl.DataFrame, plan: Plan, ledger: pl.DataFrame) -> pl.DataFrame:
    """Return the verdicts on every metric of every campaign.

    Parameters
    ----------
    sessions : rows of `session_quantiles` with campaign_id, workload, host, device, fingerprint, boot_id and
        cache_state (`cold`, `warm` or null); facts that were not recorded are null. Other arms are not compared, but
        their slow sessions count when the host is checked.
    plan : the plan of all these campaigns.
    ledger : rows of `aa_ledger`; may be empty.

    Returns
    -------
    Rows of `verdicts` with campaign_id, sorted by campaign and metric; q_value is null (`false_discoveries` adds it).

    Raises
    ------
    UsageError for an arm without sessions, and for a campaign with two workloads.

    Notes
    -----
    The effect is the mean over blocks of the log ratio of session quantiles, with a t interval at the level of the
    plan's look. Regressed: the whole interval lies above 1 + threshold, exact sign flips about the threshold agree
    (from six blocks on), and the same is true without slow sessions. Improved is symmetric. Equivalent: two one-sided
    tests (Schuirmann, A comparison of the two one-sided tests procedure, 1987), the whole 90 % interval within the
    threshold. All else is inconclusive. The threshold is the larger one of the policy and the floor of identical code.
    Sessions must not influence later ones, and campaigns must follow their plan.
    """
    both = of_both_arms(sessions, plan.baseline, plan.candidate)
    slow = slow_sessions(sessions)
    campaigns = _campaigns(both, plan, slow)
    known = floors(ledger)
    frames = []
    for metric, column in METRICS.items():
        values = both.with_columns(why=why_left_out(metric, column)).with_columns(
            value=pl.when(pl.col("why").is_null()).then(column)
        )
        left_out = values.filter(pl.col("why").is_not_null()).group_by("campaign_id", maintain_order=True)
        quiet = values.join(slow, on=["campaign_id", "session_id"], how="anti")
        effects, quiet_effects = (
            block_effects(of_sessions, plan.baseline, plan.candidate, "value") for of_sessions in (values, quiet)
        )
        rows = (
            campaigns.join(effects, on="campaign_id")
            .join(quiet_effects.select("campaign_id", *_SPREAD), on="campaign_id", how="left", suffix="_quiet")
            .join(
                left_out.agg(excluded_sessions="session_id", why=pl.col("why").value_counts(sort=True)),
                on="campaign_id",
                how="left",
            )
            .with_columns(metric=pl.lit(metric), design=pl.lit(plan.design))
            .join(known, on=list(DESIGN), how="left", nulls_equal=True)
        )
        frames.append(_with_interval(rows, plan.looks))
    found = [decided(row, plan.policy_ratio, plan.looks) for row in pl.concat(frames).iter_rows(named=True)]
    common = {"baseline": plan.baseline, "candidate": plan.candidate}
    rows = pl.DataFrame([{**row, **common} for row in found], schema={"campaign_id": pl.String, **_VERDICTS})
    role = pl.when(pl.col("metric") == plan.primary).then(pl.lit("primary")).otherwise(pl.lit("supporting"))
    return rows.with_columns(role=role).sort("campaign_id", "metric")


def of_both_arms(sessions: pl.DataFrame, baseline: str, candidate: str) -> pl.DataFrame:
    """Return the sessions of both arms; UsageError for a missing arm or different workloads."""
    arms = set(sessions.get_column("arm"))
    for arm in (baseline, candidate):
        if arm not in arms:
            raise UsageError(f"no session is of arm {arm}: there is {', '.join(sorted(arms)) or 'none'}")
    both = sessions.filter(pl.col("arm").is_in([baseline, candidate]))
    mixed = (
        both.group_by("campaign_id").agg(pl.col("workload").unique().sort()).filter(pl.col("workload").list.len() > 1)
    )
    if mixed.height:
        campaign, workloads = mixed.row(0)
        raise UsageError(f"campaign {campaign} compares {workloads[0]} with {workloads[1]}: give one workload")
    return both


def why_left_out(metric: str, column: str) -> pl.Expr:
    """Return why a session's value of the metric is omitted, or null."""
    state, missing = pl.col("state"), pl.col(column).is_null()
    without_level = state.is_in(_WITHOUT_LEVEL) & pl.lit(metric == "latency_p50")
    return (
        pl.when((state == UNUSABLE) | without_level).then(state).when(missing).then(pl.lit("with too few iterations"))
    )


def _campaigns(both: pl.DataFrame, plan: Plan, slow: pl.DataFrame) -> pl.DataFrame:
    """One row for each campaign: shared facts, number of blocks, and slow sessions."""
    is_candidate = pl.col("arm") == plan.candidate
    blocks_of = [pl.col("block").filter(of_arm).unique() for of_arm in (is_candidate, ~is_candidate)]
    campaigns = both.group_by("campaign_id", maintain_order=True).agg(
        pl.col("workload", "host").first(),
        *(pl.col(name).n_unique().alias(f"{name}_count") for name in _SHARED),
        boots=pl.when(pl.col("boot_id").null_count() == 0).then(pl.col("boot_id").n_unique()),
        blocks=blocks_of[0].is_in(blocks_of[1].implode()).sum().cast(pl.Int64),
    )
    per_block = both.group_by("campaign_id", "block", "arm").len().group_by("campaign_id").agg(pl.col("len").max())
    in_comparison = pl.col("arm").is_in([plan.baseline, plan.candidate])
    slow_of = slow.group_by("campaign_id", maintain_order=True).agg(
        pl.col("session_id").filter(in_comparison).alias("slow_sessions"),
        pl.col("times_slower").filter(in_comparison),
        slow_arms=pl.col("arm").unique().sort(),
    )
    return (
        campaigns.join(per_block.rename({"len": "sessions_per_block"}), on="campaign_id")
        .join(slow_of, on="campaign_id", how="left")
        .with_columns(pl.col("sessions_per_block").cast(pl.Int64))
    )


def _with_interval(rows: pl.DataFrame, looks: tuple[int, ...]) -> pl.DataFrame:
    """The rows with level, p_value and minimum_detectable_ratio, and from five blocks on both intervals of log ratios.

    Between the plan's looks the level is null, and the intervals are those of a single look.
    """
    levels = dict(zip(looks, levels_at_looks(looks), strict=True))
    rows = rows.with_columns(level=pl.col("blocks").replace_strict(levels, default=None, return_dtype=pl.Float64))
    level = rows.get_column("level").fill_null(LEVEL).to_numpy()
    paired, mean, error = _spread(rows, "")
    low, high = t_interval(mean, error, paired - 1, level)
    # Two one-sided tests at this level correspond to the interval at twice the level.
    narrow_low, narrow_high = t_interval(mean, error, paired - 1, 2 * level)
    of_quiet, quiet_mean, quiet_error = _spread(rows, "_quiet")
    quiet_low, quiet_high = t_interval(quiet_mean, quiet_error, of_quiet - 1, level)
    figures = {
        "paired": {"low": low, "high": high, "narrow_low": narrow_low, "narrow_high": narrow_high},
        "paired_quiet": {"low_quiet": quiet_low, "high_quiet": quiet_high},
    }
    figures["paired"]["p_value"] = t_test_p(mean, error, paired - 1)
    detectable = minimum_detectable_ratio(error, paired - 1, level)
    return rows.with_columns(
        *(
            pl.when(pl.col(counted) >= LEAST_BLOCKS).then(pl.Series(values).fill_nan(None)).alias(name)
            for counted, named in figures.items()
            for name, values in named.items()
        ),
        minimum_detectable_ratio=pl.Series(np.where(np.isfinite(detectable), detectable, np.nan)).fill_nan(None),
    )


def _spread(rows: pl.DataFrame, suffix: str) -> tuple[Floats, Floats, Floats]:
    """Blocks, mean and standard error of each row, NaN with too few blocks."""
    paired, mean, deviation = (rows.get_column(name + suffix).cast(pl.Float64).to_numpy() for name in _SPREAD)
    with np.errstate(divide="ignore", invalid="ignore"):
        return paired, mean, deviation / np.sqrt(paired)


Effect = Mapping[str, float | None]
_UNKNOWN: Final[Effect] = dict.fromkeys(("ci_low", "ci_high", "p_value", "minimum_detectable_ratio"))

BETWEEN_NIGHTS: Final = "between nights"
REGRESSED_BETWEEN_NIGHTS: Final = "regressed between nights"
#: Minimum number of nights of unchanged code on one host for its night-to-night variance.
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
    """Return the verdict on one metric of every campaign whose arms ran on different nights.

    Parameters
    ----------
    sessions : as in `compare`, with the night in `block`. The environments of the arms may differ, host and device may
        not.
    canary_nights : host and level_ns, one row for each night of unchanged code: the geometric mean of the metric over
        that night's sessions, at most as many as an arm has in a night.

    Returns
    -------
    Rows of `verdicts` with campaign_id: `regressed between nights` when the whole 95 % interval lies beyond the
    policy, else `inconclusive`; `withheld` with fewer than 20 canary nights of that host; `hardware differs`.

    Notes
    -----
    Variance of the effect = night variance (1/N + 1/M), from the canary, + session variance within nights of each arm
    over its sessions; degrees of freedom by Satterthwaite, An approximate distribution of estimates of variance
    components, 1946. The canary's nights include session noise, so the interval is slightly too wide. A change of the
    host together with the arm (a move, a repair) cannot be detected from sessions on one host, so the verdict is never
    improved or equivalent.
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
    """The columns of one campaign's row."""
    known = sessions.filter(pl.col("log").is_not_null())
    arms = [known.filter((pl.col("arm") == candidate) == of_candidate) for of_candidate in (False, True)]
    hosts = sessions.get_column("host").unique()
    nights = canary_nights.filter(pl.col("host").is_in(hosts.implode())).get_column("level_ns").log().to_numpy()
    slow = slow_sessions(sessions)
    row = {
        **{f"{name}_count": sessions.get_column(name).n_unique() for name in ("host", "device", "cache_state")},
        # The environments may differ.
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
    """Reasons against a decision by the interval, in the format of `unjudged`."""
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
