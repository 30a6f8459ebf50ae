"""The option `--lake`, which works before and after a command's name, and the lake or project it means."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from aaco_pipeline.resources.project import Project


def lake_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--lake`; the command receives `project`, the lake with its instance and configuration."""

    def chosen(context: click.Context, parameter: click.Parameter, value: str | None) -> "Project":
        from aaco_pipeline.resources.project import find_project

        return find_project(value or context.find_root().obj)

    return click.option(
        "--lake",
        "project",
        metavar="PATH",
        callback=chosen,
        help="The lake (default: $AACO_LAKE, else tracelake/ beside the nearest dagster.yaml).",
    )(command)
