"""The nights of a benchmark as one series: every nightly campaign up to one, read once and published with it.

What is made of the series is `aaco_pipeline.statistics.history`.
"""

from typing import Any, Final

import polars as pl

from aaco_pipeline.errors import UsageError
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.validation import empty_table, to_contract
from aaco_pipeline.pipeline.comparing.judging import STAGE as JUDGING
from aaco_pipeline.pipeline.comparing.measuring import members
from aaco_pipeline.pipeline.comparing.plan import read_plan
from aaco_pipeline.report.comparing.campaign import quantiles_of
from aaco_pipeline.statistics.history.changes import OF_THE_NIGHT, night_levels, with_levels
from aaco_pipeline.statistics.history.forecast import forecasts

#: The stage that publishes a campaign's history.
STAGE: Final = "history"
NIGHTLY: Final = "nightly"
Tables = dict[str, pl.DataFrame]


def publish_history(lake: TraceLake, campaign: str) -> Tables:
    """Publish and return the history of the campaign's benchmark, as it is seen from its night.

    `nights` of every judged nightly campaign of the same workload and backend that was planned no later, with their
    levels; `change_points`; `forecasts` to the limits of its plan. A campaign of another kind sees the nights before
    it and is none itself. UsageError when it has no plan.

    A night that an earlier history holds is taken from there: what a night measured does not change, and its sessions
    may be gone.
    """
    planned = _nightly(lake, campaign)
    known = _known(lake, campaign, planned)
    frames = [known.select(OF_THE_NIGHT)]
    done = known.get_column("campaign").unique()
    for row in planned.filter(~pl.col("campaign_id").is_in(done.implode())).iter_rows(named=True):
        measured = _sessions(lake, row)
        if not measured.is_empty():
            frames.append(night_levels(measured))
    nights, changes = with_levels(pl.concat(frames))
    limits = lake.read("campaign_limits", campaign).select("metric", "limit_ns")
    held = nights.select("workload", "backend").unique().join(limits, how="cross")
    tables = {"nights": nights, "change_points": changes, "forecasts": forecasts(nights, held)}
    tables = {name: to_contract(name, frame) for name, frame in tables.items()}
    lake.publish(campaign, STAGE, tables, scope="campaign")
    return tables


# ---- inside ----------------------------------------------------------------------------------------------------------


def _nightly(lake: TraceLake, campaign: str) -> pl.DataFrame:
    """The judged nightly campaigns of the same benchmark up to this one, in the order of time."""
    planned = lake.read("campaigns")
    own = planned.filter(pl.col("campaign_id") == campaign)
    if own.is_empty():
        raise UsageError(f"campaign {campaign} has no plan in {lake.path}; `aaco compare` and `aaco nightly` write one")
    same = [pl.col(name) == own.item(0, name) for name in ("workload", "backend")]
    nightly = planned.filter(pl.col("kind") == NIGHTLY, pl.col("planned_at") <= own.item(0, "planned_at"), *same)
    nightly = nightly.sort("planned_at", "campaign_id")
    judged = [bool(lake.manifest(one, "campaign").of_stage(JUDGING)) for one in nightly.get_column("campaign_id")]
    return nightly.filter(pl.Series(judged, dtype=pl.Boolean))


def _known(lake: TraceLake, campaign: str, planned: pl.DataFrame) -> pl.DataFrame:
    """The nights before, as the newest history before this one has them."""
    for earlier in reversed(planned.get_column("campaign_id").to_list()):
        if earlier != campaign:
            rows = lake.read("nights", earlier).drop("campaign_id")
            if not rows.is_empty():
                return rows.filter(pl.col("campaign") != campaign)
    return empty_table("nights")


def _sessions(lake: TraceLake, row: dict[str, Any]) -> pl.DataFrame:
    """The sessions of one campaign as `night_levels` takes them; empty without a finished block."""
    campaign = row["campaign_id"]
    timed = members(lake, campaign).filter((pl.col("state") == "finished") & (pl.col("purpose") == "latency"))
    if timed.is_empty():
        return timed
    what = lake.read("sessions", timed.get_column("session_id").to_list()).select("session_id", "host", "fingerprint")
    plan = read_plan(lake, campaign)
    files = {"arm": list(plan.arms), "artefact_sha256": [one.artefact_sha256 for one in plan.arms.values()]}
    return (
        quantiles_of(lake, timed)
        .join(what, on="session_id", how="left")
        .join(pl.DataFrame(files), on="arm", how="left")
        .with_columns(
            campaign=pl.lit(campaign),
            started_at=pl.lit(row["planned_at"]).cast(pl.Datetime("us", "UTC")),
            workload=pl.lit(row["workload"]),
            backend=pl.lit(row["backend"]),
        )
    )
