"""The sensors: what makes stages run without a person asking.

Each sensor's decision is a function elsewhere that a test calls without Dagster; here is only when it is asked.
"""

from collections.abc import Iterator

import dagster as dg

from aaco_pipeline.automation.dead_runs import reap
from aaco_pipeline.automation.jobs import SESSION_TAG, observe, start_session


@dg.run_status_sensor(
    run_status=dg.DagsterRunStatus.SUCCESS,
    monitored_jobs=[start_session],
    request_job=observe,
    default_status=dg.DefaultSensorStatus.RUNNING,
    minimum_interval_seconds=2,
    description="When start_session has registered a session, requests the job observe for it, once.",
)
def start_observing(context: dg.RunStatusSensorContext) -> Iterator[dg.RunRequest | dg.SkipReason]:
    session = context.dagster_run.tags.get(SESSION_TAG)
    if session is None:
        yield dg.SkipReason(f"run {context.dagster_run.run_id} registered no session")
        return
    yield dg.RunRequest(run_key=session, partition_key=session, tags={SESSION_TAG: session})


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
