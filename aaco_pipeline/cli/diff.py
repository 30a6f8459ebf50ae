"""`aaco diff`: two sessions beside each other: what was selected differently, where the time went, what differs."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aaco_pipeline.cli.finishing import finish_first
from aaco_pipeline.cli.lake_option import lake_option
from aaco_pipeline.cli.verdict_output import give, verdict_format
from aaco_pipeline.errors import UsageError

if TYPE_CHECKING:
    from aaco_pipeline.lake.store import TraceLake
    from aaco_pipeline.resources.project import Project


@click.command()
@click.argument("baseline")
@click.argument("candidate")
@lake_option
@verdict_format
def diff(project: "Project", *, baseline: str, candidate: str, form: str, output: Path | None) -> None:
    """Show what changed from session BASELINE to CANDIDATE (ids, unique prefixes, or latest), and why.

    Two sessions are described, not judged: processes of identical code differ, too. BASELINE may be a baseline file of
    an earlier tool: its figures are looked at before they are believed.
    """
    from aaco_pipeline.lake.store import TraceLake
    from aaco_pipeline.report.document.difference import difference_document

    lake = TraceLake(project.lake)
    if Path(baseline).is_file():
        session = lake.find_session(candidate)
        finish_first(project, lake, session, quiet=form != "table")
        return give(_against_file(lake, Path(baseline), session), form, output, "stored difference")
    before, after = (lake.find_session(name) for name in (baseline, candidate))
    if before == after:
        raise UsageError(f"{before} is both sides: name two sessions; `aaco ls` lists them")
    for session in (before, after):
        finish_first(project, lake, session, quiet=form != "table")
        if (failure := lake.read("sessions", session).item(0, "failure")) is not None:
            raise UsageError(f"{session}: its program failed ({failure}), so it is compared with no other")
    return give(difference_document(lake, before, after), form, output, "difference")


def _against_file(lake: "TraceLake", file: Path, session: str) -> dict[str, Any]:
    """The session beside the figures of a baseline file."""
    from aaco_pipeline.capture.stored_baseline import read_stored_baseline
    from aaco_pipeline.report.document.stored_difference import stored_difference_document

    return stored_difference_document(lake, file, read_stored_baseline(file), session)
