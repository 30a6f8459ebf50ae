"""Dagster runs: their tags, attempts per session or campaign, and detection of runs whose process is gone.

A killed run stays STARTED in Dagster and keeps its pool slot. Every run is therefore tagged with the identity of its
process (`aaco_pipeline.resources.host.kernel_files`); each host checks only its own runs. A run killed before it was
tagged is left to Dagster's run monitoring (`run_monitoring` in dagster.yaml).
"""

from dataclasses import dataclass
from typing import Final

import dagster as dg

from aaco_pipeline.resources.host.kernel_files import HOST_TAG, PID_TAG, TAG_PREFIX, process_is_gone

#: Run tag: number of the run among those of the same session or inbox content.
ATTEMPT_TAG: Final = "aaco/attempt"
#: Dagster's tag for a run's partition: its session or campaign.
PARTITION_TAG: Final = "dagster/partition"
#: Run tag: the run's session, or all sessions it registers, separated by commas.
SESSION_TAG: Final = "aaco/session"
#: The same for runs that publish or adopt several sessions or campaigns; hidden in the interface.
SESSIONS_TAG: Final = ".dagster/aaco/sessions"
MOST_ATTEMPTS: Final = 5
#: Delay after the first failure; it doubles with each further failure.
FIRST_DELAY_SECONDS: Final = 60.0
ENDED: Final = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
#: Statuses of unfinished runs, whose process may be dead.
UNFINISHED: Final = tuple(status for status in dg.DagsterRunStatus if status not in ENDED)


@dataclass(frozen=True)
class Attempts:
    """Number of runs of a session, in total and since the newest success, and the end time of the last one.

    `ended` is in seconds since 1970, None without a run.
    """

    runs: int
    failed: int
    ended: float | None


@dataclass(frozen=True)
class DeadRun:
    """A run that will never end by itself, and the evidence for that."""

    run_id: str
    reason: str


def attempts_at(instance: dg.DagsterInstance, job: str, partition: str) -> Attempts:
    """Count the runs of `job` for a session or campaign."""
    records = instance.get_run_records(dg.RunsFilter(job_name=job, tags={PARTITION_TAG: partition}))  # newest first
    states = [record.dagster_run.status for record in records]
    failed = states.index(dg.DagsterRunStatus.SUCCESS) if dg.DagsterRunStatus.SUCCESS in states else len(states)
    ended = (records[0].end_time or records[0].update_timestamp.timestamp()) if records else None
    return Attempts(len(records), failed, ended)


def delay_seconds(failures: int) -> float:
    """Return the delay before the next attempt after this number of failures."""
    return FIRST_DELAY_SECONDS * 2.0 ** max(failures - 1, 0)


def find_dead_runs(instance: dg.DagsterInstance) -> list[DeadRun]:
    """Find the unfinished runs of this instance whose process ran on this host and is gone."""
    unfinished = instance.get_runs(dg.RunsFilter(statuses=list(UNFINISHED)))
    return [
        DeadRun(run.run_id, f"its process {run.tags[PID_TAG]} on {run.tags[HOST_TAG]} is gone")
        for run in unfinished
        if process_is_gone(run.tags) and not _has_tags_of_parent(instance, run)
    ]


def living_runs(instance: dg.DagsterInstance, job: str | None = None) -> list[dg.DagsterRun]:
    """List unfinished runs on any host that are not known to be dead; with `job`, only runs of that job."""
    dead = {one.run_id for one in find_dead_runs(instance)}
    unfinished = instance.get_runs(dg.RunsFilter(job_name=job, statuses=list(UNFINISHED)))
    return [run for run in unfinished if run.run_id not in dead]


def reap(instance: dg.DagsterInstance) -> list[DeadRun]:
    """Mark dead runs as failed, free their slots in concurrency pools, and return them."""
    dead = find_dead_runs(instance)
    for one in dead:
        run = instance.get_run_by_id(one.run_id)
        if run is not None:
            instance.report_run_failed(run, f"The run's process ended without reporting: {one.reason}.")
        instance.event_log_storage.free_concurrency_slots_for_run(one.run_id)
    return dead


def sessions_of(run: dg.DagsterRun) -> set[str]:
    """Return the sessions and campaigns of a run."""
    tags = (SESSION_TAG, SESSIONS_TAG, PARTITION_TAG)
    return {session for tag in tags for session in run.tags.get(tag, "").split(",") if session}


def _has_tags_of_parent(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """Return whether the tags were copied from the parent of a re-executed run and describe the parent's process."""
    parent = instance.get_run_by_id(run.parent_run_id) if run.parent_run_id is not None else None
    return parent is not None and all(
        parent.tags.get(name) == value for name, value in run.tags.items() if name.startswith(TAG_PREFIX)
    )
