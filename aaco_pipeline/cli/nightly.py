"""`aaco nightly`: what is due of tonight's benchmarks and of what needs a second look, one campaign after another.

What is due, and the plans, are `aaco_pipeline.pipeline.nightly`.
"""

from typing import TYPE_CHECKING, Final

import click

from aaco_pipeline.cli.lake_option import new_lake_option
from aaco_pipeline.cli.output import data_format, print_json, say, tell
from aaco_pipeline.cli.progress_bar import progress_bar
from aaco_pipeline.cli.wait_option import wait_option
from aaco_pipeline.errors import AacoError

if TYPE_CHECKING:
    from aaco_pipeline.resources.project import Project

REGRESSION: Final = 5
INCONCLUSIVE: Final = 7
_DECIDED: Final = ("improved", "equivalent")


@click.command()
@click.option(
    "--only", multiple=True, metavar="MODEL[:BACKEND]", help="Only these benchmarks (may be given several times)."
)
@click.option("--strict", is_flag=True, help="Exit with 7 when a benchmark is suspected or has no verdict.")
@wait_option(tell)
@new_lake_option
@data_format
def nightly(project: "Project", *, as_json: bool, strict: bool, only: tuple[str, ...]) -> int:
    """Measure what is due: tonight's benchmarks, and what an earlier run of the night suspects.

    The night is today's date in UTC, and each benchmark of configs/nightly.yaml is measured once in it; a killed one
    goes on. What regressed is suspected, and confirmed by `aaco nightly` half an hour later. Exits with 5 when a
    regression is confirmed and nobody acknowledged it.
    """
    from datetime import UTC, datetime

    from aaco_pipeline.lake.store import TraceLake
    from aaco_pipeline.pipeline.comparing.running import run
    from aaco_pipeline.pipeline.nightly.benchmarks import chosen, load_benchmarks
    from aaco_pipeline.pipeline.nightly.due import night_of
    from aaco_pipeline.pipeline.nightly.night import begin_due, due_now
    from aaco_pipeline.report.document.night import night_document
    from aaco_pipeline.report.terminal.night import print_night
    from aaco_pipeline.resources.measure.runner import InferenceRunner
    from aaco_pipeline.resources.progress import progress_listener

    benchmarks = chosen(load_benchmarks(project.configs), only)
    keys = {one.key for one in benchmarks}
    lake, now = TraceLake(project.lake), datetime.now(UTC)
    with progress_bar(as_json) as show, progress_listener(show):
        begun = begin_due(lake, InferenceRunner(configs=str(project.configs)), benchmarks, now, only=keys)
        failed = list(begun.refused.items())
        campaigns = due_now(lake, [], now, keys).go_on
        for number, campaign in enumerate(campaigns):
            show("campaigns of the night", number, len(campaigns))
            try:
                run(project.configs, lake, campaign)
            except AacoError as error:
                failed.append((campaign, error))
    waiting = due_now(lake, [], datetime.now(UTC), keys)
    confirm_at = {one.campaign: one.not_before for one in (*waiting.confirm, *waiting.later)}
    document = night_document(lake, night_of(now), confirm_at, keys)
    if as_json:
        print_json({**document, "failed": [{"what": what, "why": str(why)} for what, why in failed]})
    else:
        print_night(document)
    for what, why in failed:
        say(f"aaco: {what}: {why}", err=True)
    if document["regression"]:
        return REGRESSION
    if failed:
        return failed[0][1].exit_code
    undecided = any(row["verdict"] not in _DECIDED for row in document["benchmarks"])
    return INCONCLUSIVE if strict and undecided else 0
