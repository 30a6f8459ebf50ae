"""The sensors: what makes stages run without a person asking.

Each sensor's decision is a function elsewhere that a test calls without Dagster; here is only when it is asked.
"""

import json
from collections.abc import Iterator

import dagster as dg

from aaco_pipeline.automation.dead_runs import reap
from aaco_pipeline.automation.inbox import arrivals, inbox_of
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
    description="Takes in each finished capture of the inbox, once: one with .done in it, or that changes no more.",
)
def capture_inbox(context: dg.SensorEvaluationContext, lake: LakeResource) -> Iterator[dg.RunRequest | dg.SkipReason]:
    inbox = inbox_of(lake.open().path)
    found, seen = arrivals(inbox, json.loads(context.cursor) if context.cursor else {})
    context.update_cursor(json.dumps(seen, sort_keys=True))
    if not found:
        waiting = f"{len(seen)} captures are not finished yet" if seen else f"nothing in {inbox}"
        yield dg.SkipReason(waiting)
        return
    for arrival in found:
        config = {"path": str(arrival.path), "from_inbox": True}
        yield dg.RunRequest(run_key=arrival.key, run_config={"ops": {"take_in_capture": {"config": config}}})


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
