"""Removing from Dagster the partitions and runs of sessions that left the lake, and runs that are too old."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

import dagster as dg

from aaco_pipeline.automation.adoption import forget, gone, once_of
from aaco_pipeline.automation.runs import ENDED, PARTITION_TAG, sessions_of
from aaco_pipeline.lake.removals import Account
from aaco_pipeline.lake.store import TraceLake

#: Runs that are looked at at a time.
_BATCH: Final = 100


def forget_removed(lake: TraceLake, instance: dg.DagsterInstance, before: datetime | None) -> int:
    """Delete partitions and runs of what this lake has removed, and its ended runs from before a time.

    A run stays while the lake holds one of its sessions, and for ever when nothing tells that it was of this lake.
    Returns how many runs went.
    """
    forget(instance, gone(lake, instance))
    present = {*lake.sessions(), *lake.campaigns(), *lake.captured(), *lake.requests()}
    account = Account(lake)
    removed = sorted((account.named("session") | account.named("campaign")) - present)
    going = set[str]()
    for first in range(0, len(removed), _BATCH):
        asked = dg.RunsFilter(statuses=list(ENDED), tags={PARTITION_TAG: removed[first : first + _BATCH]})
        going |= {run.run_id for run in instance.get_runs(asked)}
    for runs in () if before is None else _ended_runs(instance, before):
        absent = [run for run in runs if sessions_of(run).isdisjoint(present)]
        own = once_of(lake, instance, {one for run in absent for one in sessions_of(run)})
        going |= {run.run_id for run in absent if not sessions_of(run) or sessions_of(run) & own}
    for run_id in going:
        instance.delete_run(run_id)
    return len(going)


def _ended_runs(instance: dg.DagsterInstance, before: datetime) -> Iterator[Sequence[dg.DagsterRun]]:
    """Give all runs that have ended and were made before a time, some at a time."""
    asked = dg.RunsFilter(statuses=list(ENDED), created_before=before)
    cursor = None
    while runs := instance.get_runs(asked, cursor=cursor, limit=_BATCH):
        cursor = runs[-1].run_id
        yield runs
