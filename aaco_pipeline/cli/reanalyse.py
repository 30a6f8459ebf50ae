"""`aaco reanalyse`: rerun stages of many sessions after their code has changed.

`aaco_pipeline.pipeline.reanalysis` selects and runs them.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import click

from aaco_pipeline.cli.options import lake_option, open_lake
from aaco_pipeline.cli.output import data_format, print_json, progress_bar, say
from aaco_pipeline.report.formatting import counted

if TYPE_CHECKING:
    from aaco_pipeline.pipeline.reanalysis import Done, Plan
    from aaco_pipeline.resources.project import Project

_NAMED: Final = 5


@click.command()
@click.option("--stage", "names", multiple=True, required=True, metavar="NAME", help="Stage to run again (repeatable).")
@click.option("--downstream", is_flag=True, help="Also run the stages that depend on it.")
@click.option("--where", metavar="SQL", help="Only sessions that match this condition on the view `sessions`.")
@click.option("--dry-run", is_flag=True, help="List the stages that would run; run nothing.")
@lake_option
@data_format
def reanalyse(
    project: "Project", *, names: Sequence[str], downstream: bool, where: str | None, dry_run: bool, as_json: bool
) -> int:
    """Run stages again in sessions where they failed or where another code version ran them.

    Nothing is measured. After a kill, repeat the command: finished sessions are skipped.

    Example: aaco reanalyse --stage timeline --downstream --where "model_name LIKE 'bert%'"
    """
    from aaco_pipeline.pipeline.reanalysis import Done, chosen_stages, plan
    from aaco_pipeline.pipeline.reanalysis import reanalyse as carry_out

    lake = open_lake(project)
    planned, done = plan(lake, chosen_stages(names, downstream=downstream), where), Done()
    if planned.due and not dry_run:
        with progress_bar(as_json):
            done = carry_out(lake, planned, project.configs)
    if as_json:
        print_json({"dry_run": dry_run, **asdict(planned), **asdict(done)})
    else:
        _print(planned, done, dry_run=dry_run)
    return done.failed[0].exit_code if done.failed else 0


def _print(planned: "Plan", done: "Done", *, dry_run: bool) -> None:
    what = ", ".join(planned.stages)
    if dry_run:
        say(f"Would run {what} in {counted(len(planned.due), 'session')}{_named(list(planned.due))}")
    else:
        say(f"Ran {what} in {counted(len(done.sessions), 'session')}")
    if planned.current:
        say(f"{counted(len(planned.current), 'session')} already of this version of the code")
    if planned.without_capture:
        sessions = counted(len(planned.without_capture), "session")
        say(f"{sessions} left as they are, their captures are gone{_named(planned.without_capture)}")
    if done.skipped:
        say(f"{counted(len(done.skipped), 'session')} skipped, another process is at work on them:")
        for session, reason in done.skipped.items():
            say(f"  {session}: {reason}")
    for one in done.failed:
        say(f"aaco: {one.session}: {one.stage} failed: {one.reason}", err=True)
    if planned.behind and (done.sessions or dry_run):
        say(
            f"Stages that read from it then have older inputs: {', '.join(planned.behind)}; --downstream runs them, too"
        )


def _named(sessions: Sequence[str]) -> str:
    if not sessions:
        return ""
    more = f" and {len(sessions) - _NAMED} more" if len(sessions) > _NAMED else ""
    return f": {', '.join(sessions[:_NAMED])}{more}"
