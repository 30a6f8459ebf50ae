"""The verdict of a campaign as one document, from the lake's tables: what `aaco compare` prints and writes.

The verdict itself is made by `aaco_pipeline.statistics.verdicts`; here it is only gathered.
"""

import json
from typing import Any

import polars as pl

from aaco_pipeline.errors import UsageError
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.words.causes import cause_in_words, selection_in_words

Document = dict[str, Any]


def verdict_document(lake: TraceLake, campaign: str, candidate: str = "candidate") -> Document:
    """A campaign's verdict on one arm against the baseline, its causes and its sessions. Times are ns an iteration.

    UsageError when the campaign was not judged.
    """
    rows = lake.read("verdicts", campaign).filter(pl.col("candidate") == candidate).drop("campaign_id")
    if rows.is_empty():
        raise UsageError(f"campaign {campaign} has no verdict on {candidate}; `aaco compare --resume {campaign}`")
    plan, arms = lake.read("campaigns", campaign).row(0, named=True), lake.read("campaign_arms", campaign)
    verdicts = rows.sort("role", "metric").to_dicts()
    primary = verdicts[0]
    own = pl.col("candidate") == candidate
    chosen = lake.read("selections", campaign).filter(own).sort("rank").to_dicts()
    parts = lake.read("attributions", campaign).filter(own)
    causes = parts.filter(pl.col("kind") != "environment").sort(pl.col("delta_ns").abs(), descending=True).to_dicts()
    effect = primary["effect_ratio"]
    return {
        "campaign_id": campaign,
        "workload": plan["workload"],
        "backend": plan["backend"],
        "arms": arms.select("arm", "artefact", "artefact_sha256").to_dicts(),
        "asked_differently": _asked_differently(arms, candidate),
        "regression": primary["verdict"] == "regressed",
        "verdict": primary["verdict"],
        "severity": _severity(primary),
        "confidence": primary["confidence"],
        "latency_delta_pct": None if effect is None else 100 * (effect - 1),
        "suspected_cause": primary["suspected_cause"],
        "evidence": _evidence(causes),
        "recommendation": primary["recommendation"],
        "verdicts": verdicts,
        "selections": [{**row, "in_words": selection_in_words(row)} for row in chosen],
        "causes": [{**row, "in_words": cause_in_words(row)} for row in causes],
        "environment": parts.filter(pl.col("kind") == "environment").get_column("subject").to_list(),
        "blocks": _blocks(lake, campaign),
        "kind": plan["kind"],
        "foretold": {
            "time_ns": plan["foretold_ns"],
            "detectable_ratio": plan["foretold_detectable_ratio"],
        },
        "spent": _spent(lake, campaign),
    }


def _asked_differently(arms: pl.DataFrame, candidate: str) -> list[str]:
    """What the two arms were asked for differently, and whether their files differ: the one thing that was changed."""
    both = [arms.row(by_predicate=pl.col("arm") == arm, named=True) for arm in ("baseline", candidate)]
    before, after = (json.loads(one["specification"]) for one in both)
    told = [
        f"{key.replace('_', ' ')}: {_plain(before.get(key))} → {_plain(after.get(key))}"
        for key in sorted({*before, *after})
        if before.get(key) != after.get(key)
    ]
    if both[0]["artefact_sha256"] != both[1]["artefact_sha256"]:
        told.append("the model's file")
    return told


def _plain(value: object) -> str:
    return "as registered" if value is None else str(value)


def _severity(row: Document) -> float | None:
    """How many times the threshold the whole interval lies beyond it; null for what is no regression."""
    if row["verdict"] != "regressed":
        return None
    return float((row["ci_low"] - 1) / row["threshold_ratio"])


def _evidence(causes: list[Document]) -> Document:
    """The keys that scripts read: what of the change is in more launches, in longer kernels, in the host's gaps."""

    def over(name: str, kinds: tuple[str, ...]) -> int | None:
        known = [row[name] for row in causes if row["kind"] in kinds and row[name] is not None]
        return sum(known) if known else None

    kernels = ("launches", "duration", "selection")
    counts = [
        row["candidate_count"] - row["baseline_count"] for row in causes if row["kind"] in kernels and _counted(row)
    ]
    return {
        "kernel_launch_count_delta": sum(counts) if counts else None,
        "kernel_count_delta_ns": over("count_part_ns", kernels),
        "kernel_duration_delta_ns": over("duration_part_ns", kernels),
        "gaps_delta_ns": over("delta_ns", ("gaps",)),
    }


def _counted(row: Document) -> bool:
    return row["baseline_count"] is not None and row["candidate_count"] is not None


def _spent(lake: TraceLake, campaign: str) -> Document:
    """Finished sessions, and the time that they took with their stages, at the least where some are not timed."""
    return time_spent(lake.read("campaign_sessions", campaign).filter(pl.col("state") == "finished"))


def time_spent(rows: pl.DataFrame) -> Document:
    """Of rows of `campaign_sessions`: how many, the time that is known of them, and whether that is all of it."""
    times = rows.select("spent_ns", "stages_ns")
    return {
        "sessions": rows.height,
        "time_ns": sum(column.sum() for column in times),
        "all_timed": not any(column.has_nulls() for column in times),
    }


def _blocks(lake: TraceLake, campaign: str) -> Document:
    rows = lake.read("campaign_sessions", campaign).group_by("purpose", "state").agg(pl.col("block").n_unique())
    return {f"{purpose}_{state}": blocks for purpose, state, blocks in rows.sort("purpose", "state").iter_rows()}
