"""`aaco sweep`: one session for each batch size and prompt length, and the scaling curve they make together.

Each point is measured as `aaco run` does it; the points are one campaign.
"""

from typing import TYPE_CHECKING, Any

import click

from aaco_pipeline.cli.lake_option import new_lake_option
from aaco_pipeline.cli.output import data_format, print_json, say, tell
from aaco_pipeline.cli.request_options import RequestCommand, request_of
from aaco_pipeline.cli.wait_option import wait_option

if TYPE_CHECKING:
    from aaco_pipeline.resources.project import Project


class Sizes(click.ParamType):  # type: ignore[type-arg]  # not generic in older releases of click
    """Whole numbers from 1, separated by commas."""

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
    """Measure a model at several batch sizes: one session each, one campaign, one scaling curve."""
    from aaco_pipeline.cli.run import observe
    from aaco_pipeline.errors import AacoError
    from aaco_pipeline.lake.store import TraceLake
    from aaco_pipeline.pipeline.sweeps import publish_curve, sweep_points
    from aaco_pipeline.report.terminal.scaling import print_scaling
    from aaco_pipeline.resources.measure.inference import check_request

    request = request_of(options, prompt_tokens=prompt_tokens[0] if prompt_tokens else None)
    points = sweep_points(request, batch_size, prompt_tokens or [])
    check_request(points[0], project.configs)
    lake = TraceLake(project.lake)
    campaign = points[0].campaign_id
    assert campaign is not None
    sessions: list[str] = []
    failure: AacoError | None = None
    for number, point in enumerate(points, start=1):
        label = f"batch {point.batch_size}" + (f", prompt {point.prompt_tokens}" if point.prompt_tokens else "")
        say(f"{number} of {len(points)}: {label}", err=True)
        try:
            sessions.append(observe(project, lake, point, quiet=as_json))
        except AacoError as error:  # what was measured before is worth its curve
            failure = type(error)(f"{label}: {error}; {len(sessions)} of {len(points)} points were measured")
            break
    if sessions:
        curve = publish_curve(lake, campaign, sessions)
        if as_json:
            print_json({"campaign_id": campaign, "points": curve.to_dicts()})
        else:
            print_scaling(campaign, curve.to_dicts())
    if failure is not None:
        raise failure
    return 0
