"""What of the nights is to be done at a given time: decided from facts alone, so that any time can be tried."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime

import polars as pl

from aaco_pipeline.pipeline.comparing.alerting import Confirmation
from aaco_pipeline.pipeline.nightly.benchmarks import Benchmark


@dataclass(frozen=True)
class Due:
    """What is to be done now.

    `go_on` are campaigns without a verdict, of tonight or such as confirm a finding; `begin` the benchmarks of tonight
    without a plan, `confirm` the findings whose second time slot has come, and `later` those whose has not.
    """

    night: date
    go_on: list[str]
    begin: list[Benchmark]
    confirm: list[Confirmation]
    later: list[Confirmation]

    @property
    def is_nothing(self) -> bool:
        return not (self.go_on or self.begin or self.confirm)


def night_of(now: datetime) -> date:
    """The night that a time belongs to: its day in UTC."""
    return now.astimezone(UTC).date()


def due(
    benchmarks: Sequence[Benchmark],
    campaigns: pl.DataFrame,
    confirmations: Sequence[Confirmation],
    now: datetime,
    only: Collection[tuple[str, str]] | None = None,
) -> Due:
    """What is to be done at `now`.

    Parameters
    ----------
    benchmarks : what is to begin every night; may be empty.
    campaigns : campaign_id, workload, backend, night, confirms, planned_at and is_judged of all campaigns of nights.
    confirmations : findings that wait for a second time slot.
    now : a time with its zone.
    only : workloads and backends; campaigns and findings of others are left alone. None leaves none alone.

    Returns
    -------
    Due, each list in a fixed order: as planned, as in the file, the earliest first. A night that is over is not gone on
    with: its blocks and tonight's would not be one campaign. A finding that a campaign confirms already does not wait.
    """
    night = night_of(now)
    rows = campaigns.sort("planned_at", "campaign_id").to_dicts()
    ours = [row for row in rows if only is None or (row["workload"], row["backend"]) in only]
    begun = {(row["workload"], row["backend"]) for row in rows if row["night"] == night and row["confirms"] is None}
    confirmed = {row["confirms"] for row in rows}
    waiting = [one for one in confirmations if one.campaign not in confirmed]
    mine = [one for one in waiting if only is None or (one.workload, one.backend) in only]
    half = [row for row in ours if not row["is_judged"] and (row["night"] == night or row["confirms"] is not None)]
    return Due(
        night,
        [row["campaign_id"] for row in half],
        [one for one in benchmarks if one.key not in begun],
        [one for one in mine if one.not_before <= now],
        [one for one in mine if one.not_before > now],
    )
