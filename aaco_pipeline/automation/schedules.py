"""The schedules: what happens at fixed times. They are off until a person switches them on.

What retention removes is decided in `aaco_pipeline.lake.retention`; here is only when, and by which settings.
"""

from datetime import UTC, datetime

import dagster as dg
from pydantic import Field

from aaco_pipeline.assets.capture import MEASUREMENT_POOL
from aaco_pipeline.automation.forgetting import forget_removed
from aaco_pipeline.automation.resources import Lake, Runner
from aaco_pipeline.automation.stage_events import expected_errors
from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.retention import Limits, parse_age
from aaco_pipeline.pipeline.retention import clean_up
from aaco_pipeline.report.words.printable import in_a_line
from aaco_pipeline.resources.retention_settings import RETENTION_FILE, retention_settings


class RetentionConfig(dg.Config):
    """The limits of one round; without `keep` and `keep_last` no session goes."""

    keep: str | None = Field(None, description="Keep sessions younger than this: a number and h, d or w, such as 90d.")
    keep_last: int | None = Field(None, description="Keep so many of the newest sessions.")
    keep_baselines: bool = Field(True, description="Keep sessions that were measured as a baseline.")
    dry_run: bool = Field(False, description="Only say what would go.")


@dg.op(
    description="Remove the sessions beyond the limits that nothing needs, their runs, and what dead writers left.",
    out=dg.Out(dg.Nothing),
    pool=MEASUREMENT_POOL,  # deleting thousands of files would disturb a measurement
)
def remove_what_is_not_kept(context: dg.OpExecutionContext, config: RetentionConfig, lake: Lake) -> None:
    with expected_errors():
        keep = None if config.keep is None else parse_age(config.keep)
        limits = Limits(keep, config.keep_last, config.keep_baselines)
        opened, now = lake.open(), datetime.now(UTC)
        done = clean_up(opened, limits, now, dry_run=config.dry_run)
        for one in done.removed:
            context.log.info(in_a_line(f"{one.kind} {one.name}: {one.reason}"))
        runs = 0 if config.dry_run else forget_removed(opened, context.instance, None if keep is None else now - keep)
        kinds = [one.kind for one in done.removed]
        context.add_output_metadata(
            {
                "dry run": config.dry_run,
                "sessions": kinds.count("session"),
                "runs": runs,
                "leftovers": kinds.count("leftover"),
                "freed bytes": sum(one.bytes for one in done.removed),
                "sessions kept": len(done.kept),
            }
        )
        if done.failed:
            raise LakeError("; ".join(done.failed))


@dg.job(
    description="Remove what is beyond the limits of retention and needed by nothing, as `aaco gc` does, and its runs.",
    executor_def=dg.in_process_executor,
)
def retention() -> None:
    remove_what_is_not_kept()


@dg.schedule(
    job=retention,
    cron_schedule="30 2 * * *",
    default_status=dg.DefaultScheduleStatus.STOPPED,
    description=(
        f"Each night at 02:30 UTC, removes what the limits of configs/{RETENTION_FILE} do not keep (without the file: "
        "90 days, the 10 newest, baselines). Off until you switch it on; `aaco gc --dry-run` shows what would go."
    ),
)
def nightly_retention(runner: Runner) -> dg.RunRequest:
    limits = retention_settings(runner.folder).model_dump(exclude={"grace"})
    return dg.RunRequest(run_config={"ops": {remove_what_is_not_kept.name: {"config": limits}}})
