"""Sensors that watch this host's stack, failed runs and regressions.

`aaco_pipeline.pipeline.nightly.findings` ensures that a finding is reported once;
`aaco_pipeline.resources.project_settings` runs the configured command.
"""

import platform
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

import dagster as dg

from aaco_pipeline.automation.campaigns import JOB, run_campaign
from aaco_pipeline.automation.resources import Lake, Runner, add_campaigns
from aaco_pipeline.automation.runs import PARTITION_TAG
from aaco_pipeline.pipeline.comparing.plan import Plan, write_plan
from aaco_pipeline.pipeline.nightly.baselines import Memory, fingerprint_of, plans_of_stack
from aaco_pipeline.pipeline.nightly.findings import MOST_ATTEMPTS, findings, tell
from aaco_pipeline.report.formatting import in_a_line
from aaco_pipeline.resources.host.facts import stack_facts
from aaco_pipeline.resources.project_settings import load_notifications, run_hook

#: Older findings are not reported; `aaco alerts` and `aaco compare --resume` still show them.
RECENT: Final = timedelta(days=7)
#: Run tag: fingerprint of the stack that the run was requested for.
STACK_TAG: Final = "aaco/stack"


@dg.sensor(
    job=run_campaign,
    default_status=dg.DefaultSensorStatus.RUNNING,
    minimum_interval_seconds=300,
    description=(
        "When driver, ROCm, firmware, a library or ONNX Runtime of this host is another than before, says which and "
        "requests a campaign of every baseline, so that its nights before and after can be compared. At first sight of "
        "a host it only remembers."
    ),
)
def rocm_stack_changed(context: dg.SensorEvaluationContext, lake: Lake) -> Iterator[dg.RunRequest | dg.SkipReason]:
    host, facts, memory = platform.node(), stack_facts(), Memory.from_text(context.cursor)
    differing = memory.changes(host, facts)
    if not differing:
        known = [f"{name} {value}" for name, value in facts.items() if value not in (None, "absent")]
        first = "seen for the first time" if differing is None else "as it was"
        yield dg.SkipReason(f"the stack of {host} is {first}: {', '.join(known) or 'none of it can be read'}")
    else:
        said = in_a_line(f"the stack of {host} changed: {'; '.join(differing)}")
        context.log.info(said)
        opened = lake.open()
        plans, notes = plans_of_stack(opened)
        for note in notes:
            context.log.warning(in_a_line(note))
        for plan in plans:
            write_plan(opened, plan)
            add_campaigns(context.instance, plan.campaign)
            yield request_of_stack(context.instance, plan, fingerprint_of(facts), said)
        if not plans:
            yield dg.SkipReason(f"{said}; there is no baseline to measure on it: `aaco baseline pin` keeps one")
    context.update_cursor(memory.seeing(host, facts).to_text())


@dg.run_failure_sensor(
    default_status=dg.DefaultSensorStatus.RUNNING,
    minimum_interval_seconds=30,
    description=(
        "Says in one line which run failed and why, and runs the command that configs/notifications.yaml names for it."
    ),
)
def run_failed(context: dg.RunFailureSensorContext, runner: Runner) -> dg.SkipReason:
    run = context.dagster_run
    partition = run.tags.get(PARTITION_TAG)
    of = f"{run.job_name} of {partition}" if partition else run.job_name
    reason = _reason(context)
    said = in_a_line(f"run {run.run_id} ({of}) failed: {reason}")
    context.log.error(said)
    hook = load_notifications(runner.folder).run_failed
    document = {"kind": "run", "sentence": said, "run_id": run.run_id, "job": run.job_name, "partition": partition}
    for attempt in range(MOST_ATTEMPTS if hook is not None else 0):
        failure = run_hook(hook, {**document, "reason": reason})  # type: ignore[arg-type]
        if failure is None:
            break
        left = "tried once more" if attempt + 1 < MOST_ATTEMPTS else "not tried again"
        context.log.warning(in_a_line(f"the command failed, {left}: {failure}"))
    return dg.SkipReason(said)


@dg.sensor(
    default_status=dg.DefaultSensorStatus.RUNNING,
    minimum_interval_seconds=30,
    description=(
        "Tells each confirmed alert and each campaign that ended regressed once: a line in the log, a JSON file in "
        "findings/ of the lake, and the command that configs/notifications.yaml names, tried twice at most."
    ),
)
def regression_found(context: dg.SensorEvaluationContext, lake: Lake, runner: Runner) -> dg.SkipReason:
    opened = lake.open()
    hook = load_notifications(runner.folder).regression_found
    done = tell(opened, findings(opened, datetime.now(UTC) - RECENT), hook, context.log.warning)
    return dg.SkipReason("; ".join(done) or "no regression that was not told")


def request_of_stack(instance: dg.DagsterInstance, plan: Plan, fingerprint: str, change: str) -> dg.RunRequest:
    """Request a run of one campaign for a new stack.

    Dagster never repeats a run key, but a stack can return. The key therefore includes the attempt number: one more
    than the number of runs of this workload on this stack. The sensor `unfinished_campaigns` retries failed runs under
    its own key.
    """
    base = plan.arms["baseline"].request
    what = f"{plan.workload}:{base.backend}"
    tags = {STACK_TAG: f"{fingerprint} {what}"}
    before = instance.get_runs_count(dg.RunsFilter(job_name=JOB, tags=tags))
    key = f"stack {fingerprint} {what} attempt {before + 1}"
    return dg.RunRequest(run_key=key, partition_key=plan.campaign, tags={**tags, "aaco/stack_change": change[:255]})


def _reason(context: dg.RunFailureSensorContext) -> str:
    """Explain why a run failed: from its first failed step, or from Dagster's own message."""
    for event in context.get_step_failure_events():
        data = event.step_failure_data
        if data.user_failure_data is not None and data.user_failure_data.description:
            return data.user_failure_data.description
        if data.error is not None:
            return (data.error.cause or data.error).message
    return context.failure_event.message or "Dagster gives no reason"
