"""The verdict of a campaign as one document, from the lake's tables: what `aaco compare` prints and writes.

The verdict itself is made by `aaco_pipeline.statistics.verdicts`; here it is only gathered.
"""

import json
from typing import Any, Final

import polars as pl

from aaco_pipeline.errors import UsageError
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.words.causes import cause_in_words, selection_in_words
from aaco_pipeline.report.words.service_levels import service_level
from aaco_pipeline.statistics.verdicts.between_nights import REGRESSED_BETWEEN_NIGHTS
from aaco_pipeline.statistics.verdicts.decision import REGRESSED

Document = dict[str, Any]
#: Verdicts that found a regression; the second is of arms that could not alternate, and graded as that.
REGRESSIONS: Final = (REGRESSED, REGRESSED_BETWEEN_NIGHTS)


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
        "regression": primary["verdict"] in REGRESSIONS,
        "verdict": primary["verdict"],
        "design": primary["design"],
        "alert_grade": primary["alert_grade"],
        "severity": _severity(primary),
        "confidence": primary["confidence"],
        "latency_delta_pct": None if effect is None else 100 * (effect - 1),
        "suspected_cause": primary["suspected_cause"],
        "evidence": _evidence(causes),
        "recommendation": primary["recommendation"],
        "verdicts": verdicts,
        "selections": [{**row, "in_words": selection_in_words(row)} for row in chosen],
        "causes": [{**row, "in_words": cause_in_words(row)} for row in causes],
        "service_levels": _service_levels(lake, campaign),
        "environment": parts.filter(pl.col("kind") == "environment").get_column("subject").to_list(),
        "blocks": _blocks(lake, campaign),
    }


def _asked_differently(arms: pl.DataFrame, candidate: str) -> list[str]:
    """What the two arms were asked for differently, and whether their files differ: the one thing that was changed."""
    both = [arms.row(by_predicate=pl.col("arm") == arm, named=True) for arm in ("baseline", candidate)]
    before, after = (json.loads(one["specification"]) for one in both)
    for asked in (before, after):
        asked.pop("artefact", None)  # where the lake keeps the file: what is in it is told by its digest
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
    if row["verdict"] not in REGRESSIONS:
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


def _service_levels(lake: TraceLake, campaign: str) -> list[Document]:
    """Every arm against every limit of the plan, in the order of metrics and arms."""
    rows = lake.read("service_levels", campaign).drop("campaign_id").sort("metric", "arm").to_dicts()
    return [{**row, "in_words": service_level(row)} for row in rows]


def _blocks(lake: TraceLake, campaign: str) -> Document:
    rows = lake.read("campaign_sessions", campaign).group_by("purpose", "state").agg(pl.col("block").n_unique())
    return {f"{purpose}_{state}": blocks for purpose, state, blocks in rows.sort("purpose", "state").iter_rows()}
