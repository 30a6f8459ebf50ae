"""Runs whose process is gone: recognizing them, and freeing the measurement slot they would hold for ever.

A run killed outright stays STARTED in Dagster and keeps its slot in the pool. Every run therefore carries the identity
of its process (`aaco_pipeline.resources.host.process_identity`) as tags, and those of another host are left to it. A
run that was killed before it had tags is judged by what its launcher wrote down, and only where Dagster's storage is
SQLite: that is one host's.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import dagster as dg
from dagster._core.storage.event_log.sqlite.sqlite_event_log import SqliteEventLogStorage
from dagster._core.storage.tags import GRPC_INFO_TAG

from aaco_pipeline.automation.attempts import UNFINISHED
from aaco_pipeline.resources.host.process_identity import (
    HOST_TAG,
    PID_TAG,
    TAG_PREFIX,
    process_is_gone,
    python_lives_as,
)
from aaco_pipeline.resources.measure.measurement_slot import slot_is_free

#: How long a run may take to say whose it is.
UNTAGGED_GRACE_SECONDS: Final = 60.0
#: Dagster's daemon says every 30 s that it lives.
LATE_WORD_SECONDS: Final = 45.0
_QUEUE: Final = "QUEUED_RUN_COORDINATOR"
_POLL_SECONDS: Final = 0.5


@dataclass(frozen=True)
class DeadRun:
    """A run that will never end by itself, and how that is known."""

    run_id: str
    reason: str


def find_dead_runs(instance: dg.DagsterInstance) -> list[DeadRun]:
    """All runs of this instance that are unfinished in Dagster and whose process is gone."""
    is_of_one_host = isinstance(instance.event_log_storage, SqliteEventLogStorage)
    dead: list[DeadRun] = []
    for record in _begun(instance):
        run, own = record.dagster_run, _own_tags(instance, record.dagster_run)
        gone = process_is_gone(own)
        if gone:
            dead.append(DeadRun(run.run_id, f"its process {run.tags[PID_TAG]} on {run.tags[HOST_TAG]} is gone"))
        elif gone is None and PID_TAG not in own and is_of_one_host:
            reason = _why_dead(instance, run, is_young=_seconds_to_say(record) >= 0)
            if reason is not None:
                dead.append(DeadRun(run.run_id, reason))
    return dead


def await_names(instance: dg.DagsterInstance) -> None:
    """Wait until every run under way has said whose it is, has ended, or is late with it.

    Before that one that was killed cannot be told from one that is about to begin.
    """
    while True:
        nameless = [one for one in _begun(instance) if PID_TAG not in _own_tags(instance, one.dagster_run)]
        left = max(map(_seconds_to_say, nameless), default=0.0)
        if left <= 0:
            return
        time.sleep(min(left, _POLL_SECONDS))


def unserved_runs(instance: dg.DagsterInstance, *, wait: bool) -> list[dg.DagsterRun]:
    """Runs in Dagster's queue whose daemon is gone: nobody will ever begin them, until one is started again.

    The daemon counts as gone when its word is late; with `wait` that is waited for, `LATE_WORD_SECONDS` at most.
    """
    queued = instance.get_run_records(dg.RunsFilter(statuses=[dg.DagsterRunStatus.QUEUED]))
    if not queued:
        return []
    newest = max(record.create_timestamp.timestamp() for record in queued)
    before = _last_word(instance)
    late = max(before, newest) + LATE_WORD_SECONDS
    while (left := late - time.time()) > 0:
        if not wait or _last_word(instance) > before:
            return []
        time.sleep(min(left, _POLL_SECONDS))
    return [record.dagster_run for record in queued]


def _last_word(instance: dg.DagsterInstance) -> float:
    """When the daemon that serves the queue last said that it lives, in seconds since 1970; 0 when it never did."""
    beat = instance.get_daemon_heartbeats().get(_QUEUE)
    return 0.0 if beat is None else float(beat.timestamp)


def living_runs(instance: dg.DagsterInstance) -> list[dg.DagsterRun]:
    """The unfinished runs, of whatever host, that nothing shows to be dead."""
    dead = {one.run_id for one in find_dead_runs(instance)}
    unfinished = instance.get_runs(dg.RunsFilter(statuses=list(UNFINISHED)))
    return [run for run in unfinished if run.run_id not in dead]


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


def _begun(instance: dg.DagsterInstance) -> Sequence[dg.RunRecord]:
    """The unfinished runs that somebody has begun with: one in the queue is in nobody's hands yet."""
    statuses = [status for status in UNFINISHED if status != dg.DagsterRunStatus.QUEUED]
    return instance.get_run_records(dg.RunsFilter(statuses=statuses))


def _own_tags(instance: dg.DagsterInstance, run: dg.DagsterRun) -> Mapping[str, str]:
    """A re-executed run is created with its parent's tags; they say nothing of its own process."""
    return {} if _has_tags_of_parent(instance, run) else run.tags


def _seconds_to_say(record: dg.RunRecord) -> float:
    """How long the run may still take to say whose it is; below 0 it is late."""
    since = record.start_time or record.create_timestamp.timestamp()
    return since + UNTAGGED_GRACE_SECONDS - time.time()


def _has_tags_of_parent(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    parent = instance.get_run_by_id(run.parent_run_id) if run.parent_run_id is not None else None
    return parent is not None and all(
        parent.tags.get(name) == value for name, value in run.tags.items() if name.startswith(TAG_PREFIX)
    )


def _why_dead(instance: dg.DagsterInstance, run: dg.DagsterRun, *, is_young: bool) -> str | None:
    """How it is known that a run which never said whose it is has no process; None while it may have or get one."""
    pid = _recorded_pid(instance, run.run_id)
    if pid is not None:
        return None if python_lives_as(pid) else f"its process {pid} is gone"
    if is_young:
        return None
    if run.status == dg.DagsterRunStatus.NOT_STARTED and GRPC_INFO_TAG not in run.tags:
        return "it was never launched"
    if GRPC_INFO_TAG in run.tags:
        return None if _server_lives(run.tags) else "the server that was to start its process is gone"
    if run.run_id in instance.event_log_storage.get_concurrency_run_ids() and slot_is_free():
        return "it claims the measurement slot, and nothing on this host measures"
    return None


def _recorded_pid(instance: dg.DagsterInstance, run_id: str) -> int | None:
    """The process in which Dagster says it began the run, by the newest event that names one."""
    for entry in reversed(instance.all_logs(run_id, of_type=dg.DagsterEventType.ENGINE_EVENT)):
        event = entry.dagster_event
        told = event.engine_event_data.metadata.get("pid") if event is not None else None
        if told is not None and str(told.value).isdecimal():
            return int(str(told.value))
    return None


def _server_lives(tags: Mapping[str, str]) -> bool:
    """Whether the code server that a run was handed to answers."""
    from dagster._grpc.client import DagsterGrpcClient  # slow to import, and needed once in a hundred days

    told = json.loads(tags[GRPC_INFO_TAG])
    client = DagsterGrpcClient(
        port=told.get("port"),
        socket=told.get("socket"),
        host=told.get("host"),
        use_ssl=bool(told.get("use_ssl", False)),
    )
    try:
        client.ping("")
    except dg.DagsterError:
        return False
    return True
