"""The sessions of a campaign one by one, so that the noise beneath a verdict is seen: their medians, block by block.

What the verdict makes of them is `aaco_pipeline.statistics.verdicts`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from aaco_pipeline.analysis.sessions.token_latency import units_of_work
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.statistics.session_quantiles import session_quantiles
from aaco_pipeline.statistics.verdicts.comparison import METRICS

Row = dict[str, Any]


def iterations_of(lake: TraceLake, members: pl.DataFrame) -> pl.DataFrame:
    """session_id, arm, block, iteration and latency_ns of the unprofiled pass of the sessions in `members`.

    `members` has session_id, arm and block; a session without iterations has one row in which the others are null.
    """
    units = []
    for session in members.get_column("session_id"):
        iterations = lake.read("iterations", session).filter(pl.col("pass") == "latency")
        own = units_of_work(iterations).select("iteration", latency_ns="time_ns")
        units.append(own.with_columns(session_id=pl.lit(session)))
    placed = members.select("session_id", "arm", "block")
    return placed.join(pl.concat(units), on="session_id", how="left", maintain_order="left")


def quantiles_of(lake: TraceLake, members: pl.DataFrame) -> pl.DataFrame:
    """Rows of `session_quantiles` of the sessions in `members` (session_id, arm, block), from their unprofiled pass."""
    return session_quantiles(iterations_of(lake, members))


def measured_sessions(lake: TraceLake, campaign: str, verdict: Mapping[str, Any]) -> list[Row]:
    """The finished sessions of both arms of a verdict in the order they ran.

    Each with session_id, arm, block, position, state, value_ns (the verdict's metric, ns; null where there is none),
    is_excluded and is_slow (as the verdict has it). Of a session that was removed since, value and state are null;
    nothing where the lake holds no session of the campaign.
    """
    arms = verdict["baseline"], verdict["candidate"]
    rows = lake.read("campaign_sessions", campaign).filter(
        (pl.col("state") == "finished") & (pl.col("purpose") == "latency") & pl.col("arm").is_in(arms)
    )
    if rows.is_empty():
        return []
    # A verdict outlives its sessions: what was removed of them since has no value any more.
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
    """One row a block of these sessions: block, ratio (candidate over baseline, as the verdict's effect is made; null
    where an arm has no value that counts), is_slow (a session of it is) and excluded, how many were left out.
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
