"""Runs whose process is gone: recognizing them, and freeing the measurement slot they would hold for ever.

A run killed outright stays STARTED in Dagster and keeps its slot in the pool. Every run therefore carries the identity
of its process (`aaco_pipeline.resources.host.process_identity`) as tags. Only runs of this host are ever judged.
"""

import time
from dataclasses import dataclass
from typing import Final

import dagster as dg

from aaco_pipeline.resources.host.process_identity import HOST_TAG, PID_TAG, TAG_PREFIX, process_is_gone
from aaco_pipeline.resources.measure.measurement_slot import slot_is_free

_UNFINISHED: Final = (
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
)
#: A run that never came to tag itself is dead when the slot it claims is free on this host for so long.
UNTAGGED_GRACE_SECONDS: Final = 60.0


@dataclass(frozen=True)
class DeadRun:
    """A run that will never end by itself, and how that is known."""

    run_id: str
    reason: str


def find_dead_runs(instance: dg.DagsterInstance) -> list[DeadRun]:
    """All runs of this instance that are unfinished in Dagster and whose process is gone."""
    dead: list[DeadRun] = []
    for record in instance.get_run_records(dg.RunsFilter(statuses=list(_UNFINISHED))):
        run = record.dagster_run
        # A re-executed run is created with its parent's tags; they say nothing of its own process.
        own = run.tags if not _has_tags_of_parent(instance, run) else {}
        gone = process_is_gone(own)
        if gone:
            dead.append(DeadRun(run.run_id, f"its process {run.tags[PID_TAG]} on {run.tags[HOST_TAG]} is gone"))
        elif gone is None and PID_TAG not in own and _claims_slot(instance, run.run_id):
            since = record.start_time or record.create_timestamp.timestamp()
            if time.time() - since > UNTAGGED_GRACE_SECONDS and slot_is_free():
                dead.append(DeadRun(run.run_id, "it claims the measurement slot, and nothing on this host measures"))
    return dead


def reap(instance: dg.DagsterInstance) -> list[DeadRun]:
    """Mark dead runs failed and free what they hold in concurrency pools. Returns them."""
    dead = find_dead_runs(instance)
    for one in dead:
        run = instance.get_run_by_id(one.run_id)
        if run is not None:
            instance.report_run_failed(run, f"The run's process ended without reporting: {one.reason}.")
        instance.event_log_storage.free_concurrency_slots_for_run(one.run_id)
    return dead


def slot_holders(instance: dg.DagsterInstance, pool: str) -> set[str]:
    """Ids of the runs that hold a slot of `pool`."""
    info = instance.event_log_storage.get_concurrency_info(pool)
    return {slot.run_id for slot in info.claimed_slots}


def _has_tags_of_parent(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    parent = instance.get_run_by_id(run.parent_run_id) if run.parent_run_id is not None else None
    return parent is not None and all(
        parent.tags.get(name) == value for name, value in run.tags.items() if name.startswith(TAG_PREFIX)
    )


def _claims_slot(instance: dg.DagsterInstance, run_id: str) -> bool:
    return run_id in instance.event_log_storage.get_concurrency_run_ids()
