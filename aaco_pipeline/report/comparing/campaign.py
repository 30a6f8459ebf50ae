"""Collect the document of a campaign: its verdict, causes, sessions and nights.

`aaco_pipeline.statistics.verdicts` decides the verdict, `verdict` puts it into words.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import polars as pl

from aaco_pipeline.analysis.sessions.metrics import units_of_work
from aaco_pipeline.errors import UsageError
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.comparing.causes import cause_in_words, selection_in_words
from aaco_pipeline.report.comparing.verdict import service_level
from aaco_pipeline.statistics.verdicts.comparison import METRICS, REGRESSED_BETWEEN_NIGHTS
from aaco_pipeline.statistics.verdicts.decision import REGRESSED
from aaco_pipeline.statistics.verdicts.session_quantiles import session_quantiles

Document = dict[str, Any]
Row = dict[str, Any]


def history_of(lake: TraceLake, campaign: str, arm: str, metric: str) -> Document | None:
    """Return the series of an arm's metric up to this campaign; None if the campaign has no history.

    `nights` are rows of `nights` in order, `changes` rows of `change_points` with `night`, the index of the first night
    on the new level, and `levels` the geometric mean of each segment of the raw (ns) and paired series; `forecast` is
    the row of `forecasts` or None. If there are several hosts, the one with the latest night is used.
    """
    ours = (pl.col("arm") == arm) & (pl.col("metric") == metric)
    rows = lake.read("nights", campaign).drop("campaign_id").filter(ours)
    if rows.is_empty():
        return None
    host = rows.sort("started_at").item(-1, "host")
    of_host = pl.col("host").eq_missing(pl.lit(host, pl.String))
    nights = rows.filter(of_host).sort("night")
    places = dict(nights.select("campaign", "night").iter_rows())
    found = lake.read("change_points", campaign).filter(ours & of_host)
    changes = [
        {**row, "night": places[row["campaign"]]}
        for row in found.drop("campaign_id").sort("started_at", "of").to_dicts()
        if row["campaign"] in places
    ]
    levels = pl.concat(_levels(nights, of) for of in ("raw", "paired"))
    forecasts = lake.read("forecasts", campaign).drop("campaign_id").filter(ours & of_host)
    return {
        "forecast": forecasts.row(0, named=True) if forecasts.height else None,
        "host": host,
        "nights": nights.to_dicts(),
        "changes": changes,
        "levels": levels.to_dicts(),
    }


def _levels(nights: pl.DataFrame, of: str) -> pl.DataFrame:
    """Return the level of each segment of the raw or the paired series, over the nights included in it."""
    before = "" if of == "raw" else "paired_"
    value = pl.col("level_ns" if of == "raw" else "paired_ratio").cast(pl.Float64)
    counts = pl.col(f"{before}segment").is_not_null() & ~pl.col(f"{before}is_outlier").fill_null(False)
    return (
        nights.filter(counts & value.is_not_null())
        .group_by(pl.col(f"{before}segment").alias("segment"), maintain_order=True)
        .agg(first=pl.col("night").min(), last=pl.col("night").max(), value=value.log().mean().exp())
        .select(pl.lit(of).alias("of"), pl.all())
    )


def iterations_of(lake: TraceLake, members: pl.DataFrame) -> pl.DataFrame:
    """Read session_id, arm, block, iteration and latency_ns of the unprofiled pass of the sessions in `members`.

    `members` has session_id, arm and block; a session without iterations has one row in which the other columns are
    null.
    """
    units = []
    for session in members.get_column("session_id"):
        iterations = lake.read("iterations", session).filter(pl.col("pass") == "latency")
        own = units_of_work(iterations).select("iteration", latency_ns="time_ns")
        units.append(own.with_columns(session_id=pl.lit(session)))
    placed = members.select("session_id", "arm", "block")
    return placed.join(pl.concat(units), on="session_id", how="left", maintain_order="left")


def quantiles_of(lake: TraceLake, members: pl.DataFrame) -> pl.DataFrame:
    """Read rows of `session_quantiles` for the sessions in `members` (session_id, arm, block), from their unprofiled
    pass.
    """
    return session_quantiles(iterations_of(lake, members))


def measured_sessions(lake: TraceLake, campaign: str, verdict: Mapping[str, Any]) -> list[Row]:
    """List the finished sessions of both arms of a verdict in execution order.

    Each has session_id, arm, block, position, state, value_ns (the verdict's metric, ns; null if unknown), and the
    verdict's is_excluded and is_slow. Value and state are null for sessions removed since. Empty if the lake has no
    session of the campaign.
    """
    arms = verdict["baseline"], verdict["candidate"]
    rows = lake.read("campaign_sessions", campaign).filter(
        (pl.col("state") == "finished") & (pl.col("purpose") == "latency") & pl.col("arm").is_in(arms)
    )
    if rows.is_empty():
        return []
    # Verdicts outlive their sessions: removed sessions no longer have a value.
    left = rows.filter(pl.col("session_id").is_in(lake.sessions()))
    if left.is_empty():
        return []
    found = quantiles_of(lake, left).select("session_id", "state", value_ns=METRICS[verdict["metric"]])
    marked = [
        pl.col("session_id").is_in(verdict[named] or []).alias(name)
        for name, named in (("is_excluded", "excluded_sessions"), ("is_slow", "slow_sessions"))
    ]
    placed = rows.select("session_id", "arm", "block", "position").join(found, on="session_id", how="left")
    return placed.with_columns(marked).sort("block", "position").to_dicts()


def block_ratios(sessions: Sequence[Row], verdict: Mapping[str, Any]) -> list[Row]:
    """Return one row per block: block, ratio (candidate over baseline, as used for the effect; null if an arm has no
    valid value), is_slow (true for any of its sessions) and excluded (number of sessions left out).
    """
    if not sessions:
        return []
    counts = ~pl.col("is_excluded")
    logs = {
        side: pl.col("value_ns").filter(counts & (pl.col("arm") == verdict[side])).log().mean()
        for side in ("baseline", "candidate")
    }
    blocks = pl.DataFrame(sessions, schema_overrides={"value_ns": pl.Int64}).group_by("block", maintain_order=True)
    rows = blocks.agg(
        ratio=(logs["candidate"] - logs["baseline"]).exp(),
        is_slow=pl.col("is_slow").any(),
        excluded=pl.col("is_excluded").sum().cast(pl.Int64),
    )
    return rows.sort("block").to_dicts()


#: Verdicts that found a regression; the second one is for arms that could not alternate, and is marked accordingly.
REGRESSIONS: Final = (REGRESSED, REGRESSED_BETWEEN_NIGHTS)
_KERNELS: Final = ("launches", "duration", "selection")
#: Idle time of the device while it waits for the host.
_OF_THE_HOST: Final = ("host_wait", "launch_latency")
_FACT: Final = ("subject", "evidence_grade")


def verdict_document(lake: TraceLake, campaign: str, candidate: str = "candidate") -> Document:
    """Collect a campaign's verdict on one arm and the baseline, its causes and its sessions. Times are ns per
    iteration.

    `ratios` are those of the blocks, `placebo` the verdict on the baseline's copy, if one ran. UsageError if the
    campaign was not judged.
    """
    judged = lake.read("verdicts", campaign).drop("campaign_id")
    rows = judged.filter(pl.col("candidate") == candidate)
    if rows.is_empty():
        raise UsageError(f"campaign {campaign} has no verdict on {candidate}; `aaco compare --resume {campaign}`")
    plan, arms = lake.read("campaigns", campaign).row(0, named=True), lake.read("campaign_arms", campaign)
    verdicts = rows.sort("role", "metric").to_dicts()
    primary = verdicts[0]
    own = pl.col("candidate") == candidate
    chosen = lake.read("selections", campaign).filter(own).sort("rank").to_dicts()
    parts = lake.read("attributions", campaign).filter(own)
    certain = (pl.col("ci_low_ns") > 0) | (pl.col("ci_high_ns") < 0)
    by_size = certain.fill_null(False), pl.col("delta_ns").abs()
    causes = parts.filter(pl.col("kind") != "environment").sort(by_size, descending=True).to_dicts()
    facts = parts.filter(pl.col("kind") == "environment").select(_FACT).sort("subject")
    sessions = measured_sessions(lake, campaign, primary)
    effect = primary["effect_ratio"]
    return {
        "campaign_id": campaign,
        **{name: plan[name] for name in ("workload", "backend")},
        "arms": arms.select("arm", "artefact", "artefact_sha256").to_dicts(),
        "asked_differently": _asked_differently(arms, candidate),
        "regression": primary["verdict"] in REGRESSIONS,
        "verdict": primary["verdict"],
        "severity": _severity(primary),
        **{name: primary[name] for name in ("design", "alert_grade", "confidence")},
        "latency_delta_pct": None if effect is None else 100 * (effect - 1),
        "suspected_cause": primary["suspected_cause"],
        "evidence": _evidence(causes),
        "recommendation": primary["recommendation"],
        "verdicts": verdicts,
        "placebo": _placebo(judged, candidate),
        "selections": [{**row, "in_words": selection_in_words(row)} for row in chosen],
        "causes": [{**row, "in_words": cause_in_words(row)} for row in causes],
        "service_levels": _service_levels(lake, campaign),
        "environment": facts.to_dicts(),
        "blocks": _blocks(lake, campaign),
        "traced": _traced(lake, campaign, ("baseline", candidate)),
        "sessions": sessions,
        "ratios": block_ratios(sessions, primary),
        "history": history_of(lake, campaign, candidate, primary["metric"]),
        "campaign_kind": plan["kind"],
        "foretold": {"time_ns": plan["foretold_ns"], "detectable_ratio": plan["foretold_detectable_ratio"]},
        "spent": time_spent(lake.read("campaign_sessions", campaign).filter(pl.col("state") == "finished")),
    }


def _asked_differently(arms: pl.DataFrame, candidate: str) -> list[str]:
    """List how the requests and files of the two arms differ: the intended changes."""
    both = [arms.row(by_predicate=pl.col("arm") == arm, named=True) for arm in ("baseline", candidate)]
    before, after = (json.loads(one["specification"]) for one in both)
    for asked in (before, after):
        asked.pop("artefact", None)  # path in the lake; the digest identifies the content
    told = [
        f"{key.replace('_', ' ')}: {_plain(before.get(key))} → {_plain(after.get(key))}"
        for key in sorted({*before, *after} - {"model"})
        if before.get(key) != after.get(key)
    ]
    names = [Path(one["artefact"]).name for one in both]
    is_other = both[0]["artefact_sha256"] != both[1]["artefact_sha256"]
    if is_other and names[0] != names[1]:
        told.insert(0, f"the model: {names[0]} → {names[1]}")
    elif is_other:
        told.append("the model's file")
    return told


def _plain(value: object) -> str:
    return "as registered" if value is None else str(value)


def _placebo(judged: pl.DataFrame, candidate: str) -> Document | None:
    """Return the primary verdict on a placebo, a copy of the baseline, whose differences are measurement errors."""
    is_placebo = (pl.col("candidate") == "placebo") & (pl.col("role") == "primary")
    rows = judged.filter(is_placebo & pl.lit(candidate != "placebo"))
    return rows.row(0, named=True) if rows.height else None


def _severity(row: Document) -> float | None:
    """Return the distance of the interval beyond the threshold, in thresholds; null unless it is a regression."""
    if row["verdict"] not in REGRESSIONS:
        return None
    return float((row["ci_low"] - 1) / row["threshold_ratio"])


def _evidence(causes: list[Document]) -> Document:
    """Return the keys for scripts: how much of the change is due to more launches, longer kernels, and host gaps."""

    def over(name: str, kinds: tuple[str, ...]) -> int | None:
        known = [row[name] for row in causes if row["kind"] in kinds and row[name] is not None]
        return sum(known) if known else None

    kernels = [row for row in causes if row["kind"] in _KERNELS and _counted(row)]
    waits = [row for row in causes if row["kind"] == "gaps" and row["subject"] in _OF_THE_HOST]
    hidden = [row for row in causes if row["kind"] == "hidden_host"]
    counts = [row["candidate_count"] - row["baseline_count"] for row in kernels]
    each = [_mean_ns(kernels, side) for side in ("baseline", "candidate")]
    return {
        "kernel_launch_count_delta": sum(counts) if counts else None,
        "avg_kernel_duration_delta": None if None in each else each[1] - each[0],
        "cpu_overhead_delta": sum(row["delta_ns"] for row in (*waits, *hidden)) if waits or hidden else None,
        "kernel_count_delta_ns": over("count_part_ns", _KERNELS),
        "kernel_duration_delta_ns": over("duration_part_ns", _KERNELS),
        "gaps_delta_ns": over("delta_ns", ("gaps",)),
    }


def _mean_ns(kernels: list[Document], side: str) -> Any:
    """Return the mean duration of a kernel on one side; None if a time is unknown or nothing ran."""
    times, count = [row[f"{side}_ns"] for row in kernels], sum(row[f"{side}_count"] for row in kernels)
    return sum(times) / count if count and None not in times else None


def _counted(row: Document) -> bool:
    return row["baseline_count"] is not None and row["candidate_count"] is not None


def _service_levels(lake: TraceLake, campaign: str) -> list[Document]:
    """List every arm with every service level of the plan, in the order of metrics and arms."""
    rows = lake.read("service_levels", campaign).drop("campaign_id").sort("metric", "arm").to_dicts()
    return [{**row, "in_words": service_level(row)} for row in rows]


def _traced(lake: TraceLake, campaign: str, arms: Sequence[str]) -> dict[str, list[str]]:
    """List the finished traced sessions of these arms in execution order; arms without one are left out."""
    is_traced = (pl.col("purpose") == "trace") & (pl.col("state") == "finished") & pl.col("arm").is_in(arms)
    rows = lake.read("campaign_sessions", campaign).filter(is_traced).sort("block", "position")
    return {arm: own for arm in arms if (own := rows.filter(pl.col("arm") == arm).get_column("session_id").to_list())}


def time_spent(rows: pl.DataFrame) -> Document:
    """Count rows of `campaign_sessions`, add up their known times, and return whether all are known."""
    times = rows.select("spent_ns", "stages_ns")
    return {
        "sessions": rows.height,
        "time_ns": sum(column.sum() for column in times),
        "all_timed": not any(column.has_nulls() for column in times),
    }


def _blocks(lake: TraceLake, campaign: str) -> Document:
    rows = lake.read("campaign_sessions", campaign).group_by("purpose", "state").agg(pl.col("block").n_unique())
    return {f"{purpose}_{state}": blocks for purpose, state, blocks in rows.sort("purpose", "state").iter_rows()}
