"""`aaco run`: measure one session, run all its stages, and print the answer.

The stages are Dagster's job `observe`, run in this process against the same instance as the UI.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click

from aaco_pipeline.cli.lake_option import new_lake_option
from aaco_pipeline.cli.output import data_format, say, tell
from aaco_pipeline.cli.progress_bar import progress_bar
from aaco_pipeline.cli.request_options import RequestCommand, request_of
from aaco_pipeline.cli.wait_option import wait_option

if TYPE_CHECKING:
    import dagster as dg

    from aaco_pipeline.capture.request import MeasurementRequest
    from aaco_pipeline.lake.store import TraceLake
    from aaco_pipeline.resources.project import Project

_SLOT_POLL_SECONDS: Final = 0.5


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
    """Register the session and run all its stages; raises the AacoError that a stage failed with."""
    from aaco_pipeline.automation.dead_runs import reap
    from aaco_pipeline.automation.instance import open_instance
    from aaco_pipeline.automation.session_runs import run_session
    from aaco_pipeline.automation.sessions import forget, register
    from aaco_pipeline.errors import LakeError
    from aaco_pipeline.resources.progress import progress_listener

    with open_instance(project) as instance:
        for dead in reap(instance):
            say(f"run {dead.run_id} was dead and is cleared away: {dead.reason}", err=True)
        with progress_bar(quiet) as show:
            _wait_for_slot(instance, show)
        session = register(lake, instance, request)
        try:
            with progress_bar(quiet) as show, progress_listener(show):
                run_session(lake, instance, session, project.configs)
        except LakeError:
            raise  # the lake failed and not what was asked for: finishing the session measures it
        except BaseException:
            if not lake.raw(session).is_dir():
                forget(lake, instance, session)
            raise
    return session


def _wait_for_slot(instance: "dg.DagsterInstance", show: Callable[[str, int, int], None]) -> None:
    """Wait until no living run holds the measurement slot. The pool itself decides; this only keeps the wait short."""
    from aaco_pipeline.assets.capture import MEASUREMENT_POOL
    from aaco_pipeline.automation.dead_runs import reap, slot_holders
    from aaco_pipeline.resources.measure.measurement_slot import slot_holder
    from aaco_pipeline.resources.measure.slot_holder import SlotWait

    wait = SlotWait(None, slot_holder)
    while slot_holders(instance, MEASUREMENT_POOL):
        show("waiting for the measurement slot", 0, 0)
        wait.go_on()
        reap(instance)
        time.sleep(_SLOT_POLL_SECONDS)
