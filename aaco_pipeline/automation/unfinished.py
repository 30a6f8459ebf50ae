"""Decide which incomplete sessions and campaigns Dagster finishes, and when; anything in progress is left alone.

Each attempt at a killed session is its own run, after a delay that doubles; after the last attempt the user has to
intervene. A failed stage is run once by Dagster, which then shows the error. `aaco_pipeline.pipeline` defines what is
incomplete; the sensors are in `sensors`.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

import dagster as dg

from aaco_pipeline.assets.stage import standing, to_finish
from aaco_pipeline.automation.campaigns import JOB as CAMPAIGN_JOB
from aaco_pipeline.automation.resources import PARTITIONS_NAME
from aaco_pipeline.automation.runs import MOST_ATTEMPTS, PARTITION_TAG, attempts_at, delay_seconds, living_runs
from aaco_pipeline.automation.stage_assets import JOB
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.comparing.judging import half_campaigns, over
from aaco_pipeline.pipeline.comparing.plan import STEPS
from aaco_pipeline.pipeline.sessions import begun, can_be_run, running_sessions

#: A session written to this recently is in progress, or about to be requested.
STILL_SECONDS: Final = 60.0
#: Maximum number of sessions finished at once; the others wait.
MOST_AT_ONCE: Final = 4
#: Maximum number of runs per campaign.
MOST_CAMPAIGN_ATTEMPTS: Final = 2


@dataclass(frozen=True)
class Finish:
    """A session to finish: attempt number, stages, and a unique run key."""

    session: str
    attempt: int
    stages: tuple[str, ...]
    run_key: str


@dataclass
class DueSessions:
    """Sessions to finish now, and the reasons for skipping the others."""

    requests: list[Finish] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass
class DueCampaigns:
    """Campaigns to run now with their attempt numbers, and the reasons for skipping the others."""

    requests: list[tuple[str, int]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def busy_sessions(lake: TraceLake, instance: dg.DagsterInstance, sessions: Collection[str]) -> set[str]:
    """Return the sessions that a process or a live run of this instance is working on."""
    of_runs = {run.tags[PARTITION_TAG] for run in living_runs(instance) if PARTITION_TAG in run.tags}
    return running_sessions(lake, sessions) | of_runs


def due_sessions(lake: TraceLake, instance: dg.DagsterInstance, now: float) -> DueSessions:
    """Return the incomplete sessions to finish at `now`, in seconds since 1970."""
    answer = DueSessions()
    known, half = set(instance.get_dynamic_partitions(PARTITIONS_NAME)), begun(lake)
    busy = busy_sessions(lake, instance, half)
    free = MOST_AT_ONCE - len(busy)
    for session in half:
        if session in busy or session not in known or _is_fresh(lake, session, now):
            continue
        progress = standing(lake, session)
        if progress.is_whole or not can_be_run(lake, session):
            continue
        tried = attempts_at(instance, JOB, session)
        wait = 0.0 if tried.ended is None else tried.ended + delay_seconds(tried.failed) - now
        if progress.failed and tried.failed:
            answer.notes.append(f"{session}: {progress.failed[0].stage} failed; `aaco show {session}` says why")
        elif tried.failed >= MOST_ATTEMPTS:
            answer.notes.append(f"{session}: {tried.failed} attempts failed; `aaco show {session}` says why")
        elif tried.failed and 0 < wait <= delay_seconds(tried.failed):
            answer.notes.append(f"{session}: attempt {tried.failed + 1} of {MOST_ATTEMPTS} in {wait:.0f} s")
        elif len(answer.requests) >= free:
            answer.notes.append(f"{session} waits its turn")
        else:
            key = f"{session}-{tried.runs + 1}"
            answer.requests.append(Finish(session, tried.failed + 1, to_finish(lake, session), key))
    return answer


def due_campaigns(lake: TraceLake, instance: dg.DagsterInstance, now: datetime) -> DueCampaigns:
    """Return the incomplete campaigns to run at `now`: their run has ended and no process measures them."""
    answer, half = DueCampaigns(), half_campaigns(lake)
    nights = over(lake, half, now.astimezone(UTC).date())
    living = {run.tags.get(PARTITION_TAG) for run in living_runs(instance, CAMPAIGN_JOB)}
    for campaign in half:
        if campaign in living or lake.is_measuring(campaign):
            continue
        if lake.read("campaigns", campaign).item(0, "kind") in STEPS:
            continue  # a step of a search is continued by the search
        tried = attempts_at(instance, CAMPAIGN_JOB, campaign)
        if tried.runs == 0:
            continue  # the planner is about to run it
        if campaign in nights:
            answer.notes.append(f"{campaign}: its night, {nights[campaign]}, is over; `aaco rm {campaign}`")
        elif tried.failed >= MOST_CAMPAIGN_ATTEMPTS:
            answer.notes.append(f"{campaign}: {tried.failed} attempts failed; `aaco compare --resume {campaign}`")
        else:
            answer.requests.append((campaign, tried.runs + 1))
    return answer


def _is_fresh(lake: TraceLake, session: str, now: float) -> bool:
    """Return whether the session was written to within the last minute, by this host's clock."""
    for path in (lake.manifest_path(session, "session"), lake.request_path(session), lake.raw(session)):
        try:
            if 0 <= now - path.stat().st_mtime < STILL_SECONDS:
                return True
        except FileNotFoundError:
            continue
    return False
