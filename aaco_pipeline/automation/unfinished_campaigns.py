"""Which half campaigns a sensor asks Dagster to finish: those that were killed or failed, once more and no more.

What a campaign lacks is measured by its next run; a second failure is for a person to look at.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

import dagster as dg

from aaco_pipeline.automation.campaigns import JOB
from aaco_pipeline.automation.runs import PARTITION_TAG, attempts_at, living_runs
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.comparing.judging import half_campaigns, over
from aaco_pipeline.pipeline.comparing.plan import STEPS

#: The first run of a campaign, and one more.
MOST_ATTEMPTS: Final = 2


@dataclass
class Asked:
    """Campaigns to run now with the number of the attempt, and in words why not the others."""

    requests: list[tuple[str, int]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def due(lake: TraceLake, instance: dg.DagsterInstance, now: datetime) -> Asked:
    """The half campaigns to run at `now`: those whose one run ended, and that no process is at work on."""
    answer, half = Asked(), half_campaigns(lake)
    nights = over(lake, half, now.astimezone(UTC).date())
    living = {run.tags.get(PARTITION_TAG) for run in living_runs(instance, JOB)}
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
