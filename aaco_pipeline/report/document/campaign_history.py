"""The nights of a campaign's benchmark as a page draws them: one series, its changes of level and of environment.

They are found by the stage history; here they are only read.
"""

from typing import Any

import polars as pl

from aaco_pipeline.lake.store import TraceLake

Document = dict[str, Any]


def history_of(lake: TraceLake, campaign: str, arm: str, metric: str) -> Document | None:
    """The series of an arm's metric up to this campaign; None where the campaign has no history.

    `nights` are rows of `nights` in their order, `changes` those of `change_points` with `night`, the place of the
    first night of the new level among them, and `levels` what each segment of the raw (ns) and of the paired series
    lies at (geometric mean); `forecast` is the row of `forecasts`, None without one. Of several hosts it is the one
    with the latest night.
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
    foretold = lake.read("forecasts", campaign).drop("campaign_id").filter(ours & of_host)
    forecast = foretold.row(0, named=True) if foretold.height else None
    return {
        "forecast": forecast,
        "host": host,
        "nights": nights.to_dicts(),
        "changes": changes,
        "levels": levels.to_dicts(),
    }


def _levels(nights: pl.DataFrame, of: str) -> pl.DataFrame:
    """What each segment of the raw or the paired series lies at, over the nights that enter it."""
    before = "" if of == "raw" else "paired_"
    value = pl.col("level_ns" if of == "raw" else "paired_ratio").cast(pl.Float64)
    counts = pl.col(f"{before}segment").is_not_null() & ~pl.col(f"{before}is_outlier").fill_null(False)
    return (
        nights.filter(counts & value.is_not_null())
        .group_by(pl.col(f"{before}segment").alias("segment"), maintain_order=True)
        .agg(first=pl.col("night").min(), last=pl.col("night").max(), value=value.log().mean().exp())
        .select(pl.lit(of).alias("of"), pl.all())
    )
