"""`aaco diff`: two sessions beside each other: what was selected differently, where the time went, what differs."""

from typing import TYPE_CHECKING

import click

from aaco_pipeline.cli.finishing import finish_first
from aaco_pipeline.cli.lake_option import lake_option
from aaco_pipeline.cli.verdict_output import give, verdict_format
from aaco_pipeline.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from aaco_pipeline.resources.project import Project


@click.command()
@click.argument("baseline")
@click.argument("candidate")
@lake_option
@verdict_format
def diff(project: "Project", *, baseline: str, candidate: str, form: str, output: "Path | None") -> None:
    """Show what changed from session BASELINE to CANDIDATE (ids, unique prefixes, or latest), and why.

    Two sessions are described, not judged: processes of identical code differ, too.
    """
    from aaco_pipeline.lake.store import TraceLake
    from aaco_pipeline.report.document.difference import difference_document
    from aaco_pipeline.report.terminal.difference import print_difference

    lake = TraceLake(project.lake)
    before, after = (lake.find_session(name) for name in (baseline, candidate))
    if before == after:
        raise UsageError(f"{before} is both sides: name two sessions; `aaco ls` lists them")
    for session in (before, after):
        finish_first(project, lake, session, quiet=form != "table")
    give(difference_document(lake, before, after), form, output, "difference", print_difference)
