"""A night as one document, from the lake's tables: what each benchmark came to, what alerts, and what to do next.

Verdicts and alerts are made by `aaco_pipeline.statistics`; here they are only gathered.
"""

from collections.abc import Collection, Mapping
from datetime import date, datetime
from typing import Any

import polars as pl

from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.words.service_levels import service_level
from aaco_pipeline.statistics.alerts.events import ACKNOWLEDGED, CONFIRMED, alerts

Document = dict[str, Any]
#: What is shown of a verdict.
_FIGURES = ("effect_ratio", "ci_low", "ci_high", "threshold_ratio", "minimum_detectable_ratio", "blocks")
_OF_AN_ALERT = (
    *("alert", "state", "is_recovering", "sorted_as", "alert_grade"),
    *("effect_ratio", "ci_low", "ci_high", "reasons"),
)


def night_document(
    lake: TraceLake,
    night: date,
    confirm_at: Mapping[str, datetime],
    only: Collection[tuple[str, str]] | None = None,
) -> Document:
    """What the night came to so far, one entry a benchmark in the order of their names.

    `confirm_at` says from when on a campaign's finding can be confirmed; `only` names workloads and backends.
    """
    planned = lake.read("campaigns").filter(pl.col("night") == night).sort("workload", "backend", "planned_at")
    firsts = [row for row in planned.filter(pl.col("confirms").is_null()).to_dicts() if _is_wanted(row, only)]
    seconds = {row["confirms"]: row["campaign_id"] for row in planned.drop_nulls("confirms").to_dicts()}
    events = lake.read("alerts").drop("campaign_id")
    standing = alerts(events).to_dicts()
    told = [_benchmark(lake, row, seconds.get(row["campaign_id"]), standing) for row in firsts]
    for one in told:
        at = confirm_at.get(one["campaign_id"])
        one["confirm_at"] = None if at is None else at.isoformat(timespec="minutes")
    return {
        "night": night.isoformat(),
        "regression": any(one["alert"] is not None and one["alert"]["state"] == CONFIRMED for one in told),
        "benchmarks": told,
    }


# ---- inside ----------------------------------------------------------------------------------------------------------


def _is_wanted(row: Document, only: Collection[tuple[str, str]] | None) -> bool:
    return only is None or (row["workload"], row["backend"]) in only


def _benchmark(lake: TraceLake, planned: Document, second: str | None, standing: list[Document]) -> Document:
    campaign = planned["campaign_id"]
    primary = (pl.col("role") == "primary") & (pl.col("candidate") == "candidate")
    rows = lake.read("verdicts", campaign).filter(primary).to_dicts()
    row = rows[0] if rows else {}
    return {
        "workload": planned["workload"],
        "backend": planned["backend"],
        "campaign_id": campaign,
        "confirmed_by": second,
        "against": _against(lake, campaign),
        "metric": planned["metric"],
        "verdict": row.get("verdict"),
        **{name: row.get(name) for name in _FIGURES},
        "recommendation": row.get("recommendation"),
        "suspected_cause": row.get("suspected_cause"),
        "alert": _alert(planned, standing),
        "service_levels": _service_levels(lake, campaign),
    }


def _against(lake: TraceLake, campaign: str) -> Document:
    """What the candidate was held against: a baseline of the lake, or itself where there is none yet."""
    arms = {row["arm"]: row for row in lake.read("campaign_arms", campaign).to_dicts()}
    identifier = arms["baseline"]["baseline"]
    rows = [] if identifier is None else lake.read("baselines", identifier).to_dicts()
    is_the_same = arms["baseline"]["artefact_sha256"] == arms["candidate"]["artefact_sha256"]
    since = rows[0]["since"].isoformat(timespec="seconds") if rows else None
    kind = rows[0]["kind"] if rows else "itself"
    return {"kind": kind, "baseline": identifier, "since": since, "is_the_same_file": is_the_same}


def _alert(planned: Document, standing: list[Document]) -> Document | None:
    """The alert that speaks for the benchmark that night: one that is open, else the last that ended that night."""
    own = [
        row
        for row in standing
        if (row["workload"], row["backend"]) == (planned["workload"], planned["backend"])
        and (row["is_open"] or row["last_night"] == planned["night"])
    ]
    if not own:
        return None
    order = (CONFIRMED, "suspected", ACKNOWLEDGED)
    first = min(own, key=lambda row: order.index(row["state"]) if row["state"] in order else len(order))
    return {name: first[name] for name in _OF_AN_ALERT}


def _service_levels(lake: TraceLake, campaign: str) -> list[Document]:
    rows = lake.read("service_levels", campaign).drop("campaign_id").filter(pl.col("arm") == "candidate")
    return [{**row, "in_words": service_level(row)} for row in rows.sort("metric").to_dicts()]
