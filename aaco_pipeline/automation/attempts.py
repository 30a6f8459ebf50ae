"""Trying again what was killed or failed: how often, after how long, and the tag that numbers the runs."""

from dataclasses import dataclass
from typing import Final

import dagster as dg

#: On a run: the how-manieth it is of this session, or of this content of the inbox.
ATTEMPT_TAG: Final = "aaco/attempt"
#: How Dagster marks which partition, so which session, a run is of.
PARTITION_TAG: Final = "dagster/partition"
#: The session a run is of; of a run that is of several, or registers them, all of them, separated by commas.
SESSION_TAG: Final = "aaco/session"
MOST_ATTEMPTS: Final = 5
#: After the first failure; each further one doubles it.
FIRST_DELAY_SECONDS: Final = 60.0
#: Runs that have not ended; one of them may be dead (`aaco_pipeline.automation.dead_runs`).
UNFINISHED: Final = (
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
)


@dataclass(frozen=True)
class Attempts:
    """The runs of one session so far: all of them, those since the newest that succeeded, and when the last one ended.

    `ended` is in seconds since 1970, None without a run.
    """

    runs: int
    failed: int
    ended: float | None


def attempts_at(instance: dg.DagsterInstance, job: str, session: str) -> Attempts:
    """What has been tried of a session's stages, from the runs of `job` for its partition."""
    records = instance.get_run_records(dg.RunsFilter(job_name=job, tags={PARTITION_TAG: session}))  # the newest first
    states = [record.dagster_run.status for record in records]
    failed = states.index(dg.DagsterRunStatus.SUCCESS) if dg.DagsterRunStatus.SUCCESS in states else len(states)
    ended = (records[0].end_time or records[0].update_timestamp.timestamp()) if records else None
    return Attempts(len(records), failed, ended)


def delay_seconds(failures: int) -> float:
    """How long to wait after so many failures before the next attempt."""
    return FIRST_DELAY_SECONDS * 2.0 ** max(failures - 1, 0)
