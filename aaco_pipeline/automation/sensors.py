"""The sensors: what makes stages run without a person asking.

Each sensor's decision is a function elsewhere that a test calls without Dagster; here is only when it is asked.
"""

from collections.abc import Iterator
from time import monotonic

import dagster as dg

from aaco_pipeline.automation.attempts import ATTEMPT_TAG, MOST_ATTEMPTS
from aaco_pipeline.automation.dead_runs import reap
from aaco_pipeline.automation.inbox import STILL_SECONDS, Memory, inbox_of
from aaco_pipeline.automation.inbox_runs import INBOX_TAG, due
from aaco_pipeline.automation.jobs import ingest_capture, start_session
from aaco_pipeline.automation.session_runs import SESSION_TAG
from aaco_pipeline.automation.stage_assets import observe
from aaco_pipeline.resources.dagster_resources import LakeResource


@dg.run_status_sensor(
    run_status=dg.DagsterRunStatus.SUCCESS,
    monitored_jobs=[start_session, ingest_capture],
    request_job=observe,
    default_status=dg.DefaultSensorStatus.RUNNING,
    minimum_interval_seconds=2,
    description="When start_session or ingest_capture has registered sessions, requests observe for each, once.",
)
def start_observing(context: dg.RunStatusSensorContext) -> Iterator[dg.RunRequest | dg.SkipReason]:
    registered = context.dagster_run.tags.get(SESSION_TAG)
    if registered is None:
        yield dg.SkipReason(f"run {context.dagster_run.run_id} registered no session")
        return
    for session in registered.split(","):
        yield dg.RunRequest(run_key=session, partition_key=session, tags={SESSION_TAG: session})


@dg.sensor(
    job_name="ingest_capture",
    default_status=dg.DefaultSensorStatus.RUNNING,
    minimum_interval_seconds=30,
    description=(
        "Takes in each finished capture of the inbox: one with .done in it, or that has not changed for "
        f"{STILL_SECONDS / 60:g} minutes. A run that was killed, or that the system failed, is tried again, at most "
        f"{MOST_ATTEMPTS} times in all."
    ),
)
def capture_inbox(context: dg.SensorEvaluationContext, lake: LakeResource) -> Iterator[dg.RunRequest | dg.SkipReason]:
    opened, memory = lake.open(), Memory.from_text(context.cursor)
    inbox = inbox_of(opened.path)
    asked = due(opened, context.instance, inbox, memory, monotonic())
    context.update_cursor(memory.to_text())
    if not asked.requests:
        yield dg.SkipReason(asked.message or f"nothing in {inbox}")
        return
    for arrival, attempt in asked.requests:
        config = {"path": str(arrival.path), "from_inbox": True}
        yield dg.RunRequest(
            run_key=f"{arrival.key}-{attempt}",
            run_config={"ops": {"take_in_capture": {"config": config}}},
            tags={INBOX_TAG: arrival.key, ATTEMPT_TAG: str(attempt)},
        )


@dg.sensor(
    default_status=dg.DefaultSensorStatus.RUNNING,
    minimum_interval_seconds=15,
    description="Marks runs failed whose process was killed, and frees the measurement slot they would keep.",
)
def dead_runs(context: dg.SensorEvaluationContext) -> dg.SkipReason:
    reaped = reap(context.instance)
    if not reaped:
        return dg.SkipReason("no dead runs")
    return dg.SkipReason("freed: " + "; ".join(f"run {dead.run_id} ({dead.reason})" for dead in reaped))
