"""Campaigns that were planned and have come to no end."""

from collections.abc import Sequence
from datetime import date

import polars as pl

from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.comparing.judging import STAGE as LAST_STAGE
from aaco_pipeline.pipeline.comparing.plan import STAGE as PLAN
from aaco_pipeline.pipeline.half_sessions import half_removed


def half_campaigns(lake: TraceLake) -> list[str]:
    """List campaigns that were planned and have come to no end, oldest plan first; none that is being removed."""
    going = half_removed(lake)
    planned = [one for one in lake.manifests("campaign") if one.of_stage(PLAN) and one.id not in going]
    half = [one.id for one in planned if not one.of_stage(LAST_STAGE)]
    return sorted(half, key=lambda campaign: campaign.split("-", 1)[-1])


def over(lake: TraceLake, half: Sequence[str], today: date) -> dict[str, date]:
    """Find those of `half` whose night is over, each with its night: their blocks and today's are not one campaign.

    What confirms a night's finding is gone on with whenever that is.
    """
    first = pl.col("confirms").is_null() & (pl.col("night") < today)
    return dict(lake.read("campaigns", half).filter(first).select("campaign_id", "night").iter_rows())
