"""`aaco perfetto`: a session as a trace for ui.perfetto.dev, made unless a current one is kept in the lake."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from aaco_pipeline.cli.lake_option import lake_option
from aaco_pipeline.cli.output import say
from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.files import lake_errors, write_atomically

if TYPE_CHECKING:
    from aaco_pipeline.resources.project import Project


@click.command()
@click.argument("session", default="latest")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Write here (default: into the lake).")
@lake_option
def perfetto(project: "Project", *, session: str, output: Path | None) -> None:
    """Write one session (an id, a unique prefix, or latest) as a trace, and print its path: open it at ui.perfetto.dev.

    On one axis: iterations, calls, kernels and copies, the critical path, idle time by cause, threads, counters.
    """
    from aaco_pipeline.cli.finishing import finish_first
    from aaco_pipeline.lake.store import TraceLake
    from aaco_pipeline.report.views import trace_of

    lake = TraceLake(project.lake)
    identifier = lake.find_session(session)
    finish_first(project, lake, identifier, quiet=False)
    say(written(trace_of(lake, identifier), lake.trace(identifier), output))


def written(view: bytes, kept: Path, output: Path | None) -> Path:
    """Say where a view lies: written to `output`, else `kept` in the lake. LakeError where that cannot be written."""
    if output is None:
        if not kept.is_file() or kept.read_bytes() != view:
            raise LakeError(f"{kept}: the lake cannot be written; name another file with --output")
        return kept
    with lake_errors(path := output.absolute()):
        write_atomically(path, view)
    return path
