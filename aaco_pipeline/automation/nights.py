"""Nights in Dagster: the schedule that starts a night, and the sensor for its second time slot."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import dagster as dg

from aaco_pipeline.automation.campaigns import JOB, run_campaign
from aaco_pipeline.automation.resources import Lake, Runner, add_campaigns
from aaco_pipeline.automation.runs import ATTEMPT_TAG, attempts_at
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.comparing.plan import Plan, read_plan
from aaco_pipeline.pipeline.nightly.benchmarks import FILE, load_benchmarks, night_of
from aaco_pipeline.pipeline.nightly.night import begin_due, due_now, run_key
from aaco_pipeline.resources.measure.runner import InferenceRunner

#: Time that a campaign's planner has to start it.
BEGINS_WITHIN: Final = timedelta(hours=1)
Requests = list[dg.RunRequest] | dg.SkipReason


@dg.schedule(
    job=run_campaign,
    cron_schedule="0 2 * * *",
    default_status=dg.DefaultScheduleStatus.STOPPED,
    description=(
        f"Each night at 02:00 UTC, one campaign for each benchmark of configs/{FILE} (without entries each registered "
        "model on each usable backend), all of them planned before the first begins. Tells of nights that said "
        "nothing. Off until you switch it on; `aaco nightly` does the same once."
    ),
)
def nightly_baseline(context: dg.ScheduleEvaluationContext, lake: Lake, runner: Runner) -> Requests:
    opened, now = lake.open(), context.scheduled_execution_time.astimezone(UTC)
    if night_of(now) < night_of(datetime.now(UTC)):
        # Dagster catches up on the last missed tick, but measuring today would not count for that night.
        return dg.SkipReason(f"the night of {night_of(now)} is over; without a verdict it alerts")
    benchmarks = load_benchmarks(runner.folder)
    begun = begin_due(opened, runner, benchmarks, now)
    for name, error in begun.refused.items():
        context.log.error(f"{name} is not measured tonight: {error}")
    plans = [read_plan(opened, campaign) for campaign in due_now(opened, benchmarks, now).go_on]
    return _first_runs(context.instance, plans) or dg.SkipReason("every benchmark has its verdict of tonight")


@dg.sensor(
    job=run_campaign,
    default_status=dg.DefaultSensorStatus.RUNNING,
    minimum_interval_seconds=60,
    description=(
        "Confirms what a night suspects: half an hour after its last session, the same files once more. Begins "
        "campaigns of a night that nobody began."
    ),
)
def due_confirmations(context: dg.SensorEvaluationContext, lake: Lake, runner: Runner) -> Requests:
    opened, now = lake.open(), datetime.now(UTC)
    if not opened.path.is_dir():
        return dg.SkipReason("no night was measured yet")
    plans = confirmations_due(opened, context.instance, runner, now)
    return _first_runs(context.instance, plans) or dg.SkipReason("nothing waits for a second time slot")


def confirmations_due(
    lake: TraceLake, instance: dg.DagsterInstance, runner: InferenceRunner, now: datetime
) -> list[Plan]:
    """List the plans to run at `now`: confirmations, and nightly plans that nobody started within an hour."""
    begun = begin_due(lake, runner, [], now)
    fresh = {plan.campaign for plan in begun.plans}
    waiting = [read_plan(lake, campaign) for campaign in due_now(lake, [], now).go_on if campaign not in fresh]
    left = [plan for plan in waiting if now - plan.planned_at >= BEGINS_WITHIN]
    unknown = [plan for plan in left if attempts_at(instance, JOB, plan.campaign).runs == 0]
    return [*begun.plans, *(plan for plan in unknown if not lake.is_measuring(plan.campaign))]


def _first_runs(instance: dg.DagsterInstance, plans: Sequence[Plan]) -> list[dg.RunRequest]:
    add_campaigns(instance, *(plan.campaign for plan in plans))
    tags = {ATTEMPT_TAG: "1"}
    return [dg.RunRequest(run_key=run_key(plan, 1), partition_key=plan.campaign, tags=tags) for plan in plans]
