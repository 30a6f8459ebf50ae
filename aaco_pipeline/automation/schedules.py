"""Housekeeping schedules and jobs: retention, compaction, and cleanup of what was removed from the lake.

The schedules are off by default. `aaco_pipeline.lake.retention` decides what is removed.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

import dagster as dg
from pydantic import Field

from aaco_pipeline.assets.capture import MEASUREMENT_POOL
from aaco_pipeline.automation.adoption import forget, gone, once_of
from aaco_pipeline.automation.resources import Lake, Runner
from aaco_pipeline.automation.runs import ENDED, PARTITION_TAG, sessions_of
from aaco_pipeline.automation.stage_events import expected_errors
from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.retention import Account, Limits, parse_age
from aaco_pipeline.lake.segments.compaction import compact
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.retention import clean_up
from aaco_pipeline.report.formatting import in_a_line
from aaco_pipeline.resources.project_settings import RETENTION_FILE, retention_settings

#: Number of runs fetched at a time.
_BATCH: Final = 100


class CompactionConfig(dg.Config):
    """Grace period before a session's own files are deleted, after a segment contains their rows."""

    grace: str = Field("1d", description="A number and h, d or w, such as 1d.")


@dg.op(
    description="Put the sessions' files of each table together into segments; remove what earlier rounds replaced.",
    out=dg.Out(dg.Nothing),
    pool=MEASUREMENT_POOL,  # it would disturb a measurement
)
def compact_tables(context: dg.OpExecutionContext, config: CompactionConfig, lake: Lake) -> None:
    with expected_errors():
        done = compact(lake.open(), datetime.now(UTC), parse_age(config.grace))
        for one in done:
            for line in one.left:
                context.log.warning(in_a_line(f"{one.table}: {line}"))
        written = [one.written for one in done if one.written is not None]
        context.add_output_metadata(
            {
                "tables": len(done),
                "files put together": sum(one.taken.files for one in done),
                "segments written": sum(one.files for one in written),
                "bytes written": sum(one.bytes for one in written),
                "files replaced and gone": sum(one.gone.files for one in done),
                "files waiting for their grace": sum(one.waiting.files for one in done),
            }
        )


@dg.job(
    description="Put the sessions' files of each table together into segments; the same as `aaco compact`.",
    executor_def=dg.in_process_executor,
)
def compaction() -> None:
    compact_tables()


@dg.schedule(
    job=compaction,
    cron_schedule="30 4 * * *",
    default_status=dg.DefaultScheduleStatus.STOPPED,
    description=(
        "Each night at 04:30 UTC, after the baseline, puts the sessions' files of each table together into segments; "
        f"the files go after the grace in configs/{RETENTION_FILE} (without the file: 1 day). Off until you switch it "
        "on; `aaco compact --dry-run` shows what there is to do."
    ),
)
def nightly_compaction(runner: Runner) -> dg.RunRequest:
    grace = retention_settings(runner.folder).grace
    return dg.RunRequest(run_config={"ops": {compact_tables.name: {"config": {"grace": grace}}}})


def forget_removed(lake: TraceLake, instance: dg.DagsterInstance, before: datetime | None) -> int:
    """Delete partitions and runs of removed sessions and campaigns, and ended runs created before a given time.

    A run is kept while the lake holds one of its sessions, or if nothing shows that it belonged to this lake. Returns
    the number of deleted runs.
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
    """Yield all ended runs created before a given time, in batches."""
    asked = dg.RunsFilter(statuses=list(ENDED), created_before=before)
    cursor = None
    while runs := instance.get_runs(asked, cursor=cursor, limit=_BATCH):
        cursor = runs[-1].run_id
        yield runs


class RetentionConfig(dg.Config):
    """Limits of one retention round; without `keep` and `keep_last` no session is deleted."""

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
