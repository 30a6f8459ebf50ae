"""`aaco ui`: Dagster's web interface on the same lake and instance as the command."""

import os
import sys
from typing import TYPE_CHECKING

import click

from aaco_pipeline.cli.lake_option import lake_option

if TYPE_CHECKING:
    from aaco_pipeline.resources.project import Project


@click.command()
@click.option("--port", type=click.IntRange(1, 65535), default=3000, show_default=True)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@lake_option
def ui(project: "Project", port: int, host: str) -> None:
    """Open Dagster on this lake: start sessions, look at them, materialize stages again."""
    from aaco_pipeline.automation.instance import prepare_home

    root = project.require_root()
    prepare_home(project)
    click.echo(f"Dagster on http://{host}:{port} — lake {project.lake} — stop with Ctrl-C")
    sys.stdout.flush()
    os.chdir(root)
    arguments = ["dev", "-w", str(root / "workspace.yaml"), "-p", str(port), "-h", host]
    os.execv(sys.executable, [sys.executable, "-m", "dagster", *arguments])
