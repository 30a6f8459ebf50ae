"""Which half campaigns a sensor asks Dagster to finish: those that were killed or failed, once more and no more.

What a campaign lacks is measured by its next run; a second failure is for a person to look at.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Final

import dagster as dg
import polars as pl

from aaco_pipeline.automation.attempts import PARTITION_TAG, attempts_at
from aaco_pipeline.automation.campaigns.definitions import JOB
from aaco_pipeline.automation.campaigns.judging import STAGE as LAST_STAGE
from aaco_pipeline.automation.campaigns.plan import STAGE as PLAN
from aaco_pipeline.automation.campaigns.plan import STEPS
from aaco_pipeline.automation.dead_runs import living_runs
from aaco_pipeline.automation.partitions import CAMPAIGN_PARTITIONS_NAME
from aaco_pipeline.automation.unfinished import half_removed
from aaco_pipeline.lake.store import TraceLake

#: The first run of a campaign, and one more.
MOST_ATTEMPTS: Final = 2


@dataclass
class Asked:
    """Campaigns to run now with the number of the attempt, and in words why not the others."""

    requests: list[tuple[str, int]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def half_campaigns(lake: TraceLake) -> list[str]:
    """Campaigns that were planned and have come to no end, oldest plan first; none that is being removed."""
    going = half_removed(lake)
    planned = [one for one in lake.manifests("campaign") if one.of_stage(PLAN) and one.id not in going]
    half = [one.id for one in planned if not one.of_stage(LAST_STAGE)]
    return sorted(half, key=lambda campaign: campaign.split("-", 1)[-1])


def unknown_campaigns(lake: TraceLake, instance: dg.DagsterInstance) -> list[str]:
    """Campaigns that were planned and that Dagster does not show, sorted: of another host, or killed early."""
    with lake.catalogue() as known:
        planned = {campaign for campaign, entry in known.entries("campaigns", "campaign") if entry.rows}
    return sorted(planned.difference(instance.get_dynamic_partitions(CAMPAIGN_PARTITIONS_NAME)))


def over(lake: TraceLake, half: Sequence[str], today: date) -> dict[str, date]:
    """Those of `half` whose night is over, each with its night: their blocks and today's would not be one campaign.

    What confirms a night's finding is gone on with whenever that is.
    """
    first = pl.col("confirms").is_null() & (pl.col("night") < today)
    return dict(lake.read("campaigns", half).filter(first).select("campaign_id", "night").iter_rows())


def due(lake: TraceLake, instance: dg.DagsterInstance, now: datetime) -> Asked:
    """The half campaigns to run at `now`: those whose one run ended, and that no process is at work on."""
    answer, half = Asked(), half_campaigns(lake)
    nights = over(lake, half, now.astimezone(UTC).date())
    living = {run.tags.get(PARTITION_TAG) for run in living_runs(instance) if run.job_name == JOB}
    for campaign in half:
        if campaign in living or lake.is_measuring(campaign):
            continue
        if lake.read("campaigns", campaign).item(0, "kind") in STEPS:
            continue  # one step of a search answers nothing: whoever goes on with the search measures it
        tried = attempts_at(instance, JOB, campaign)
        if tried.runs == 0:
            continue  # whoever planned it is about to run it
        if campaign in nights:
            answer.notes.append(f"{campaign}: its night, {nights[campaign]}, is over; `aaco rm {campaign}`")
        elif tried.failed >= MOST_ATTEMPTS:
            answer.notes.append(f"{campaign}: {tried.failed} attempts failed; `aaco compare --resume {campaign}`")
        else:
            answer.requests.append((campaign, tried.runs + 1))
    return answer
