"""Sessions of an arm, and facts that differ between two arms, each with a grade of evidence.

A difference is `observed` if the two sides have different values; `correlated` if it also separates slow and fast
sessions of one side; `isolated` if it is the only difference and the sides ran in the same blocks.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import polars as pl

from aaco_pipeline.statistics.causes.accounts import Account, Tables, account

#: Tables of an arm in addition to `ACCOUNTED_FROM`.
FACTS: Final = ("sessions", "environment", "devices")


@dataclass(frozen=True)
class Arm:
    """One side of a comparison: the accounts of its sessions, and rows of the tables `FACTS` with session_id.

    `left_out` has the reason for each session without an account. `blocks` has the block of each account; None outside
    a campaign.
    """

    accounts: tuple[Account, ...]
    blocks: tuple[int | None, ...]
    sessions: pl.DataFrame
    environment: pl.DataFrame
    devices: pl.DataFrame
    left_out: Mapping[str, str]


def arm(sessions: Mapping[str, Tables]) -> Arm:
    """Build one side of a comparison from its sessions' tables (`ACCOUNTED_FROM` and `FACTS`), by session id."""
    made = {session: account(tables) for session, tables in sessions.items()}
    kept = {session: one for session, one in made.items() if isinstance(one, Account)}
    facts = {
        name: pl.concat(
            [tables[name].with_columns(session_id=pl.lit(session)) for session, tables in sessions.items()],
            how="diagonal_relaxed",
        )
        for name in FACTS
    }
    blocks = {session: tables["sessions"].item(0, "block") for session, tables in sessions.items()}
    return Arm(
        accounts=tuple(kept.values()),
        blocks=tuple(blocks[session] for session in kept),
        sessions=facts["sessions"],
        environment=facts["environment"],
        devices=facts["devices"],
        left_out={session: one for session, one in made.items() if isinstance(one, str)},
    )


OBSERVED: Final = "observed"
CORRELATED: Final = "correlated"
ISOLATED: Final = "isolated"
#: Categories of momentary readings, which differ between any two sessions.
_OF_THE_MOMENT: Final = ("moment",)
#: Facts of the recorder, not of the environment.
_OF_THE_RUN: Final = (("package", "aaco_pipeline"),)
#: Columns of `devices` that count as environment.
_OF_DEVICES: Final = ("product", "arch", "partition_mode", "power_cap_w", "memory_bytes", "compute_units")


def environment_differences(baseline: Arm, candidate: Arm, *, interleaved: bool) -> pl.DataFrame:
    """Facts that differ: category, key, baseline, candidate (values, several joined by ` | `), evidence_grade.

    `interleaved` is True if sessions of both sides alternated in blocks; otherwise no difference is isolated.
    """
    before, after = (_values(side) for side in (baseline, candidate))
    both = before.join(after, on=("category", "key"), how="full", coalesce=True, suffix="_candidate")
    # Facts that one side did not record do not count as differences.
    different = both.drop_nulls(["values", "values_candidate"]).filter(pl.col("values") != pl.col("values_candidate"))
    if different.is_empty():
        return pl.DataFrame(schema=_SCHEMA)
    alone = different.height == 1 and interleaved
    apart = pl.col("values").list.set_intersection("values_candidate").list.len() == 0
    moves = _moving_with_time(baseline, candidate)
    return (
        different.with_columns(apart=apart)
        .join(moves, on=("category", "key"), how="left")
        .with_columns(
            evidence_grade=pl.when(pl.col("apart") & alone)
            .then(pl.lit(ISOLATED))
            .when(pl.col("moves").fill_null(False))
            .then(pl.lit(CORRELATED))
            .otherwise(pl.lit(OBSERVED))
        )
        .select(
            "category",
            "key",
            baseline=pl.col("values").list.join(" | "),
            candidate=pl.col("values_candidate").list.join(" | "),
            evidence_grade="evidence_grade",
        )
        .sort("category", "key")
    )


_SCHEMA: Final = dict.fromkeys(("category", "key", "baseline", "candidate", "evidence_grade"), pl.String)


def facts(side: Arm) -> pl.DataFrame:
    """Host, software and device facts of each session: session_id, category, key, value."""
    run = pl.any_horizontal([(pl.col("category") == a) & (pl.col("key") == b) for a, b in _OF_THE_RUN])
    rows = side.environment.select("session_id", *(pl.col(one).cast(pl.String) for one in ("category", "key", "value")))
    rows = rows.filter(~pl.col("category").is_in(_OF_THE_MOMENT) & ~run)
    device = side.devices.filter(pl.col("device_id") == pl.col("device_id").min().over("session_id"))
    of_device = device.select("session_id", *(pl.col(one).cast(pl.String) for one in _OF_DEVICES)).unpivot(
        index="session_id", variable_name="key"
    )
    host = side.sessions.select("session_id", key=pl.lit("name"), value=pl.col("host").cast(pl.String))
    return pl.concat(
        [
            rows,
            of_device.select("session_id", pl.lit("device").alias("category"), "key", "value"),
            host.select("session_id", pl.lit("host").alias("category"), "key", "value"),
        ]
    ).unique(("session_id", "category", "key"), keep="first", maintain_order=True)


def _values(side: Arm) -> pl.DataFrame:
    """Distinct values of each fact over a side's sessions, in order, without nulls."""
    known = facts(side).drop_nulls("value")
    return known.group_by("category", "key").agg(values=pl.col("value").unique().sort())


def _moving_with_time(baseline: Arm, candidate: Arm) -> pl.DataFrame:
    """`moves` is True for facts whose values separate slow and fast sessions of one side."""
    rows = []
    for side in (baseline, candidate):
        names = [one for one in side.sessions.get_column("session_id") if one not in side.left_out]
        time = pl.DataFrame(
            {"session_id": names, "time": [one.time_ns / one.steps for one in side.accounts]},
            schema={"session_id": pl.String, "time": pl.Float64},
        )
        spans = (
            facts(side)
            .drop_nulls("value")
            .join(time, on="session_id")
            .group_by("category", "key", "value")
            .agg(low=pl.col("time").min(), high=pl.col("time").max(), count=pl.len())
            .filter((pl.len() > 1).over("category", "key"))
            .sort("low")
        )
        apart = (pl.col("low") > pl.col("high").shift(1)).fill_null(True).all() & (pl.col("count").min() >= 2)
        rows.append(spans.group_by("category", "key").agg(moves=apart))
    return pl.concat(rows).group_by("category", "key").agg(pl.col("moves").any())
