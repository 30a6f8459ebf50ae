"""`aaco run`: measure one session, run all its stages, and print the answer."""

from typing import TYPE_CHECKING, Any

import click

from aaco_pipeline.cli.lake_option import new_lake_option
from aaco_pipeline.cli.output import data_format, tell
from aaco_pipeline.cli.progress_bar import progress_bar
from aaco_pipeline.cli.request_options import RequestCommand, request_of
from aaco_pipeline.cli.wait_option import wait_option

if TYPE_CHECKING:
    from aaco_pipeline.capture.request import MeasurementRequest
    from aaco_pipeline.lake.store import TraceLake
    from aaco_pipeline.resources.project import Project


@click.command(cls=RequestCommand)
@wait_option(tell)
@new_lake_option
@data_format
def run(project: "Project", as_json: bool, **options: Any) -> int:
    """Measure a model in a fresh process and analyse it: one session in the lake."""
    from aaco_pipeline.lake.store import TraceLake
    from aaco_pipeline.resources.measure.inference import check_request

    request = request_of(options)
    check_request(request, project.configs)  # a wrong name ends here, before there is a session or a run
    session = observe(project, TraceLake(project.lake), request, quiet=as_json)
    from aaco_pipeline.cli.sessions import show_session

    show_session(TraceLake(project.lake), session, as_json=as_json)
    return 0


def observe(project: "Project", lake: "TraceLake", request: "MeasurementRequest", *, quiet: bool) -> str:
    """Register the session and run all its stages; raise the AacoError that a stage failed with."""
    from aaco_pipeline.errors import LakeError
    from aaco_pipeline.pipeline.session_stages import run_session
    from aaco_pipeline.pipeline.sessions import register
    from aaco_pipeline.resources.progress import progress_listener

    session = register(lake, request)
    try:
        with progress_bar(quiet) as show, progress_listener(show):
            run_session(lake, session, project.configs)
    except LakeError:
        raise  # the lake failed and not what was asked for: finishing the session measures it
    except BaseException:
        if not lake.raw(session).is_dir():
            lake.remove(session)
        raise
    return session
