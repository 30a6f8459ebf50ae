"""`aaco ui`: Dagster's web interface on the lake and instance of the command, behind the access check."""

import signal
from typing import TYPE_CHECKING

import click

from aaco_pipeline.cli.options import new_lake_option
from aaco_pipeline.cli.output import say
from aaco_pipeline.errors import UnavailableError

if TYPE_CHECKING:
    from aaco_pipeline.resources.project import Project
    from aaco_pipeline.web.serving import Listening


@click.command()
@click.option("--port", type=click.IntRange(1, 65535), default=3000, show_default=True)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--allowed-host",
    "allowed_hosts",
    metavar="NAME",
    multiple=True,
    help="Additional NAME or NAME:PORT for this server in browsers, such as a proxy's (repeatable).",
)
@new_lake_option
def ui(project: "Project", port: int, host: str, allowed_hosts: tuple[str, ...]) -> int:
    """Open Dagster on this lake to start sessions, inspect them and rerun stages.

    The printed link admits one browser; opening it in a second browser prints a new link.
    """
    from aaco_pipeline.web.door import names_of
    from aaco_pipeline.web.serving import listen

    names_of(host, port, allowed_hosts)
    with listen(host, port) as listening:
        return _run(project, listening, host, allowed_hosts)


def _run(project: "Project", listening: "Listening", host: str, allowed_hosts: tuple[str, ...]) -> int:
    """Run Dagster until it ends and return the exit code."""
    from aaco_pipeline.automation.instance import open_instance
    from aaco_pipeline.resources.services import run_together
    from aaco_pipeline.web.dagster_services import dagster_services, socket_folder

    with socket_folder() as folder:
        with open_instance(project):
            pass  # create the databases before several Dagster processes try to
        # Not in the root: the links assets/, resources/ and lake/ of a checkout would become importable there.
        place = project.configs if project.configs.is_dir() else project.dagster_home
        ended = run_together(dagster_services(project, folder, listening, host, allowed_hosts), folder, place)
    if isinstance(ended, str):
        raise UnavailableError(f"{ended}; the others were ended, too")
    say("aaco: interrupted" if ended == signal.SIGINT else "aaco: terminated", err=True)
    return 128 + ended
