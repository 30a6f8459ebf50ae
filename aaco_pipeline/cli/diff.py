"""`aaco diff`: two sessions beside each other: what was selected differently, where the time went, what differs."""

from typing import TYPE_CHECKING

import click

from aaco_pipeline.cli.finishing import finish_first
from aaco_pipeline.cli.lake_option import lake_option
from aaco_pipeline.cli.output import print_json
from aaco_pipeline.errors import UsageError

if TYPE_CHECKING:
    from aaco_pipeline.resources.project import Project

_FORMATS = ("table", "json", "markdown")


@click.command()
@click.argument("baseline")
@click.argument("candidate")
@click.option(
    "--format",
    "form",
    type=click.Choice(_FORMATS),
    default="table",
    show_default=True,
    help="Tables for people, JSON for programs, or Markdown for a pull request.",
)
@click.option("--json", "as_json", is_flag=True, help="Short for --format json.")
@lake_option
def diff(project: "Project", *, baseline: str, candidate: str, form: str, as_json: bool) -> None:
    """Show what changed from session BASELINE to CANDIDATE (ids, unique prefixes, or latest), and why.

    Two sessions are described, not judged: processes of identical code differ, too.
    """
    from aaco_pipeline.lake.store import TraceLake
    from aaco_pipeline.report.document.difference import difference_document

    lake = TraceLake(project.lake)
    before, after = (lake.find_session(name) for name in (baseline, candidate))
    if before == after:
        raise UsageError(f"{before} is both sides: name two sessions; `aaco ls` lists them")
    for session in (before, after):
        finish_first(project, lake, session, quiet=as_json or form != "table")
    document = difference_document(lake, before, after)
    if as_json or form == "json":
        print_json(document)
    elif form == "markdown":
        from aaco_pipeline.report.markdown import render_difference

        click.echo(render_difference(document), nl=False)
    else:
        from aaco_pipeline.report.terminal.difference import print_difference

        print_difference(document)
