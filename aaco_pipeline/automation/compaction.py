"""The job and the schedule of compaction: when it runs, and by which settings; off until a person switches it on.

What it does is decided in `aaco_pipeline.lake.segments.compaction`.
"""

from datetime import UTC, datetime

import dagster as dg
from pydantic import Field

from aaco_pipeline.assets.capture import MEASUREMENT_POOL
from aaco_pipeline.automation.resources import Lake, Runner
from aaco_pipeline.automation.stage_events import expected_errors
from aaco_pipeline.lake.retention import parse_age
from aaco_pipeline.lake.segments.compaction import compact
from aaco_pipeline.report.words.printable import in_a_line
from aaco_pipeline.resources.retention_settings import RETENTION_FILE, retention_settings


class CompactionConfig(dg.Config):
    """How long sessions' own files stay after a segment has their rows."""

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
