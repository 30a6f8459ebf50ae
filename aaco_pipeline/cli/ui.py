"""`aaco ui`: Dagster's web interface on the same lake and instance as the command."""

import os
import sys
from typing import TYPE_CHECKING

import click

from aaco_pipeline.cli.lake_option import new_lake_option
from aaco_pipeline.cli.output import say

if TYPE_CHECKING:
    from aaco_pipeline.resources.project import Project


@click.command()
@click.option("--port", type=click.IntRange(1, 65535), default=3000, show_default=True)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@new_lake_option
def ui(project: "Project", port: int, host: str) -> None:
    """Open Dagster on this lake: start sessions, look at them, materialize stages again."""
    from aaco_pipeline.automation.instance import open_instance
    from aaco_pipeline.resources.project import WORKSPACE
    from aaco_pipeline.resources.report_server import serve_lake

    with open_instance(project):
        pass  # its databases are there before Dagster's processes would each make them
    serve_lake(project.lake)
    say(f"Dagster on http://{host}:{port} — lake {project.lake} — stop with Ctrl-C")
    sys.stdout.flush()
    # Not in the root itself: there Dagster warns of the dagster.yaml that its home is linked to anyway, and the links
    # assets/, resources/ and lake/ of a checkout would be importable. From configs/ the same settings are found; where
    # there is no such folder they are the package's, from anywhere.
    os.chdir(project.configs if project.configs.is_dir() else project.dagster_home)
    # `dg dev`, which this warning recommends, comes in a package that adds nothing else here.
    python = [sys.executable, "-W", "ignore:Function `dev_command` is superseded"]
    # At Dagster's own level, info, every tick of every sensor is a line.
    quiet = ["--log-level", "warning", "--code-server-log-level", "warning"]
    arguments = ["dev", "-w", str(project.settings(WORKSPACE)), "-p", str(port), "-h", host, *quiet]
    os.execv(sys.executable, [*python, "-m", "dagster", *arguments])
