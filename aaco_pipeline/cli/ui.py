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
    # Not in the root itself: there Dagster warns of the dagster.yaml that its home is linked to anyway, and the links
    # assets/, resources/ and lake/ would be importable. From its folder configs/ the same project is found.
    os.chdir(project.configs if project.configs.is_dir() else root)
    # `dg dev`, which this warning recommends, comes in a package that adds nothing else here.
    python = [sys.executable, "-W", "ignore:Function `dev_command` is superseded"]
    arguments = ["dev", "-w", str(root / "workspace.yaml"), "-p", str(port), "-h", host]
    os.execv(sys.executable, [*python, "-m", "dagster", *arguments])
