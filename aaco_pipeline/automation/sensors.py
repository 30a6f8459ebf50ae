"""Sensors that run stages automatically.

Each decision is a function in another module, testable without Dagster; only the timing is here.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from time import monotonic, time

import dagster as dg

from aaco_pipeline.assets.stage import stages
from aaco_pipeline.automation import adoption
from aaco_pipeline.automation.adoption import Adoption, adopt
from aaco_pipeline.automation.campaigns import run_campaign
from aaco_pipeline.automation.inbox_runs import INBOX_TAG, due
from aaco_pipeline.automation.jobs import ingest_capture, start_session
from aaco_pipeline.automation.resources import Lake
from aaco_pipeline.automation.runs import ATTEMPT_TAG, MOST_ATTEMPTS, SESSION_TAG, living_runs, reap
from aaco_pipeline.automation.stage_assets import MOST_SESSIONS_A_RUN, observe
from aaco_pipeline.automation.unfinished import MOST_CAMPAIGN_ATTEMPTS, due_campaigns, due_sessions
from aaco_pipeline.pipeline.inbox import STILL_SECONDS, Memory, inbox_of


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
def capture_inbox(context: dg.SensorEvaluationContext, lake: Lake) -> Iterator[dg.RunRequest | dg.SkipReason]:
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
    job=observe,
    default_status=dg.DefaultSensorStatus.RUNNING,
    minimum_interval_seconds=30,
    description=(
        "Finishes sessions that a killed run left half: requests the stages that are not published, at most "
        f"{MOST_ATTEMPTS} times in all, and never while a run is at work on the session, here or on another host. A "
        "stage that failed outside of Dagster is requested once, so that its failure shows."
    ),
)
def unfinished_sessions(context: dg.SensorEvaluationContext, lake: Lake) -> Iterator[dg.RunRequest | dg.SkipReason]:
    asked = due_sessions(lake.open(), context.instance, time())
    requests: list[dg.RunRequest | dg.SkipReason] = [
        dg.RunRequest(
            run_key=one.run_key,
            partition_key=one.session,
            asset_selection=[dg.AssetKey(name) for name in one.stages],
            tags={SESSION_TAG: one.session, ATTEMPT_TAG: str(one.attempt)},
        )
        for one in asked.requests
    ]
    yield from requests or [dg.SkipReason("; ".join(asked.notes) or "every session is whole")]


@dg.sensor(
    job=run_campaign,
    default_status=dg.DefaultSensorStatus.RUNNING,
    minimum_interval_seconds=30,
    description=(
        "Goes on with campaigns whose run was killed or failed: requests what is left of their plan, at most "
        f"{MOST_CAMPAIGN_ATTEMPTS} times in all, and never while a process measures the campaign, here or on another "
        "host."
    ),
)
def unfinished_campaigns(context: dg.SensorEvaluationContext, lake: Lake) -> Iterator[dg.RunRequest | dg.SkipReason]:
    asked = due_campaigns(lake.open(), context.instance, datetime.now(UTC))
    requests: list[dg.RunRequest | dg.SkipReason] = [
        dg.RunRequest(run_key=f"{campaign}-{attempt}", partition_key=campaign, tags={ATTEMPT_TAG: str(attempt)})
        for campaign, attempt in asked.requests
    ]
    yield from requests or [dg.SkipReason("; ".join(asked.notes) or "every campaign is judged or in work")]


@dg.sensor(
    job_name=adoption.JOB,
    default_status=dg.DefaultSensorStatus.RUNNING,
    minimum_interval_seconds=30,
    description=(
        "Shows in Dagster what it did not make: of the command, of another host, of a restored copy, or of a home that "
        f"was deleted. Requests one run of adopt_sessions for up to {adoption.MOST_ADOPTED} sessions, the newest "
        "first, and the next one when that has ended. Takes away the partitions of what was removed."
    ),
)
def lake_sessions(context: dg.SensorEvaluationContext, lake: Lake) -> dg.RunRequest | dg.SkipReason:
    if living_runs(context.instance, adoption.JOB):
        return dg.SkipReason("a run is adopting")
    opened, look = lake.open(), adoption.look_of(context.cursor, time())
    context.update_cursor(look)
    removed = adoption.gone(opened, context.instance)
    adoption.forget(context.instance, removed)
    asked = adoption.due(opened, context.instance, look)
    if asked:
        config = Adoption(sessions=[*asked.sessions], campaigns=[*asked.campaigns], searches=[*asked.searches])
        return dg.RunRequest(run_config=dg.RunConfig(ops={adopt.name: config}))
    dropped = sum(map(len, removed.values()))
    return dg.SkipReason(f"{dropped} partitions removed" if dropped else "all that the lake holds is shown")


#: Off by default: after an upgrade it reruns stages of most sessions in the lake.
stale_stages = dg.AutomationConditionSensorDefinition(
    "stale_stages",
    target=dg.AssetSelection.assets(*(name for name, one in stages().items() if one.pool is None)),
    minimum_interval_seconds=300,
    use_user_code_server=True,
    description=(
        "Runs stages again in the sessions for which another version of their code has published them, with all that "
        f"read from them: a backfill, whose runs are of up to {MOST_SESSIONS_A_RUN:,} sessions. Once for each version "
        "of the code; nothing is measured."
    ),
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
