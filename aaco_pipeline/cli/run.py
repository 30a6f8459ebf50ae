"""`aaco run` and `aaco sweep`: measure one session, or one session per batch size and prompt length.

`aaco_pipeline.pipeline.session_stages` runs stages; `compare` compares sessions.
"""

from typing import TYPE_CHECKING, Any

import click

from aaco_pipeline.cli.options import RequestCommand, new_lake_option, open_lake, request_of, wait_option
from aaco_pipeline.cli.output import data_format, print_json, progress_bar, say, tell

if TYPE_CHECKING:
    from aaco_pipeline.capture.request import MeasurementRequest
    from aaco_pipeline.lake.store import TraceLake
    from aaco_pipeline.resources.project import Project


@click.command(cls=RequestCommand)
@wait_option(tell)
@new_lake_option
@data_format
def run(project: "Project", as_json: bool, **options: Any) -> int:
    """Measure a model in a fresh process and analyse the result: one session in the lake."""
    from aaco_pipeline.resources.measure.inference import check_request

    request = request_of(options)
    check_request(request, project.configs)  # fail on invalid names before a session or run exists
    session = observe(project, open_lake(project), request, quiet=as_json)
    from aaco_pipeline.cli.sessions import show_session

    show_session(open_lake(project), session, as_json=as_json)
    return 0


def observe(project: "Project", lake: "TraceLake", request: "MeasurementRequest", *, quiet: bool) -> str:
    """Register the session and run all its stages; raise the AacoError of a failed stage."""
    from aaco_pipeline.errors import LakeError
    from aaco_pipeline.pipeline.session_stages import run_session
    from aaco_pipeline.pipeline.sessions import register

    session = register(lake, request)
    try:
        with progress_bar(quiet):
            run_session(lake, session, project.configs)
    except LakeError:
        raise  # the lake failed, not the measurement: finishing the session measures it
    except BaseException:
        if not lake.raw(session).is_dir():
            lake.remove(session)
        raise
    return session


class Sizes(click.ParamType):  # type: ignore[type-arg]  # not generic in older releases of click
    """Parse positive integers, separated by commas."""

    name = "sizes"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> list[int]:
        if isinstance(value, list):
            return value
        parts = [part.strip() for part in str(value).split(",")]
        if not all(part.isdigit() and int(part) >= 1 for part in parts):
            self.fail(f"{value!r} is not a list of sizes; expected 1,2,4,8", parameter, context)
        return [int(part) for part in parts]


@click.command(cls=RequestCommand)
@click.option(
    "--batch", "batch_size", type=Sizes(), default="1,2,4,8", show_default=True, help="Batch sizes to measure."
)
@click.option("--prompt", "prompt_tokens", type=Sizes(), help="With --tokens: prompt lengths to measure.")
@wait_option(tell)
@new_lake_option
@data_format
def sweep(
    project: "Project", as_json: bool, batch_size: list[int], prompt_tokens: list[int] | None, **options: Any
) -> int:
    """Measure a model at several batch sizes: one session per size, one campaign, one scaling curve."""
    from aaco_pipeline.errors import AacoError
    from aaco_pipeline.pipeline.sweeps import publish_curve, sweep_points
    from aaco_pipeline.report.scaling import scaling_view
    from aaco_pipeline.report.terminal import print_view
    from aaco_pipeline.resources.measure.inference import check_request

    request = request_of(options, prompt_tokens=prompt_tokens[0] if prompt_tokens else None)
    points = sweep_points(request, batch_size, prompt_tokens or [])
    check_request(points[0], project.configs)
    lake = open_lake(project)
    campaign = points[0].campaign_id
    assert campaign is not None
    sessions: list[str] = []
    failure: AacoError | None = None
    for number, point in enumerate(points, start=1):
        label = f"batch {point.batch_size}" + (f", prompt {point.prompt_tokens}" if point.prompt_tokens else "")
        say(f"{number} of {len(points)}: {label}", err=True)
        try:
            sessions.append(observe(project, lake, point, quiet=as_json))
        except AacoError as error:  # earlier measurements still get a curve
            failure = type(error)(f"{label}: {error}; {len(sessions)} of {len(points)} points were measured")
            break
    if sessions:
        curve = publish_curve(lake, campaign, sessions)
        if as_json:
            print_json({"campaign_id": campaign, "points": curve.to_dicts()})
        else:
            print_view(scaling_view(campaign, curve.to_dicts()))
    if failure is not None:
        raise failure
    return 0
