"""`aaco baseline`: what workloads are held against: pin one, list them, retire one.

What a baseline keeps, and how it is measured again, is `aaco_pipeline.pipeline.comparing.baselines`.
"""

from typing import TYPE_CHECKING, Any

import click

from aaco_pipeline.cli.lake_option import lake_option, new_lake_option
from aaco_pipeline.cli.output import data_format, print_json, print_table, say
from aaco_pipeline.cli.request_options import RequestCommand, request_of

if TYPE_CHECKING:
    from aaco_pipeline.resources.project import Project


@click.group()
def baseline() -> None:
    """What workloads are held against: `aaco nightly` measures it again beside the candidate."""


@baseline.command(cls=RequestCommand)
@new_lake_option
@data_format
def pin(project: "Project", as_json: bool, **options: Any) -> int:
    """Keep what these options measure now as the baseline of its model and backend.

    The model's file is copied into the lake, so that it can be measured again when yours has changed. Nothing is
    measured now.
    """
    from aaco_pipeline.lake.store import TraceLake
    from aaco_pipeline.pipeline.comparing.baselines import pin as keep
    from aaco_pipeline.resources.measure.inference import check_request

    request = request_of(options)
    check_request(request, project.configs)
    lake = TraceLake(project.lake)
    identifier = keep(lake, request, project.configs)
    if as_json:
        print_json(lake.read("baselines", identifier).row(0, named=True))
    else:
        say(f"{identifier}: {request.model} on {request.backend} is pinned")
    return 0


@baseline.command("ls")
@lake_option
@data_format
def list_baselines(project: "Project", as_json: bool) -> int:
    """List baselines, the newest first; `current` is what a workload is held against."""
    from aaco_pipeline.lake.store import TraceLake
    from aaco_pipeline.pipeline.comparing.baselines import baselines

    rows = baselines(TraceLake(project.lake))
    if as_json:
        print_json(rows.to_dicts())
    else:
        shown = rows.select("campaign_id", "workload", "backend", "kind", "since", "is_current").iter_rows()
        cells = [
            (*names, f"{since:%Y-%m-%d %H:%M}", "yes" if is_current else "") for *names, since, is_current in shown
        ]
        print_table(("baseline", "workload", "backend", "kind", "since (UTC)", "current"), cells)
    return 0


@baseline.command()
@click.argument("name")
@lake_option
def retire(project: "Project", name: str) -> int:
    """Let a baseline count no more. What was held against it still finds it."""
    from aaco_pipeline.lake.store import TraceLake
    from aaco_pipeline.pipeline.comparing.baselines import retire as let_go

    let_go(TraceLake(project.lake), name)
    say(f"{name} is retired")
    return 0
