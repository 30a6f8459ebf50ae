"""Alerts of the nights: a night's table is closed once its last campaign is judged, and what it says is published.

What an alert is, is `aaco_pipeline.statistics.alerts`; here the lake is read and events are added to it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime
from typing import Final

import polars as pl

from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.validation import empty_table

#: The stage that publishes what a night's table says of a campaign: with it that campaign's time slot is closed.
STAGE: Final = "alerting"
Tables = dict[str, pl.DataFrame]


@dataclass(frozen=True)
class Confirmation:
    """A campaign whose finding waits for a second time slot.

    `blocks` are those that the confirming campaign plans, `event` is `suspected` or `recovering`.
    """

    alert: str
    event: str
    campaign: str
    night: date
    not_before: datetime
    blocks: int
    is_due: bool


def waits_for(lake: TraceLake, campaign: str) -> list[str]:
    """The campaigns of the same night's time slot that are planned and not judged, sorted; its table waits for them."""
    return []


def judge_night(lake: TraceLake, campaign: str) -> Tables:
    """Publish and return the events of `campaign`: `alerts`, empty while its night's table waits for other campaigns.

    The last campaign of a night that is judged closes the table of its time slot: false discoveries are taken back over
    all of it, and the events of every campaign in it are published. What was published stays as it is. Empty for a
    campaign of no night.
    """
    return {"alerts": empty_table("alerts")}


def acknowledge(lake: TraceLake, alert: str, who: str, why: str) -> str:
    """Add to an alert that a person knows of it, and why it may stay; its whole name, of which `alert` may be a part.

    UsageError for an alert that there is not, that is over, or without a reason.
    """
    return alert


def missing_nights(lake: TraceLake, benchmarks: Iterable[tuple[str, str]], now: datetime) -> Tables:
    """Publish and return `missing` events of workloads and backends that a night which is over has no verdict of.

    A night is over 24 hours after its day began (UTC). Tables of such a night that wait for campaigns which never came
    to an end are closed without them.
    """
    return {"alerts": empty_table("alerts")}


def due_confirmations(lake: TraceLake, now: datetime) -> list[Confirmation]:
    """Findings that wait for a second time slot, the earliest first; `is_due` once 30 minutes are over."""
    return []
