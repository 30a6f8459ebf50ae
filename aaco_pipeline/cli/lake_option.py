"""The option `--lake`, which works before and after a command's name, and the lake or project it means."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from aaco_pipeline.resources.project import Project

LAKE_HELP: Final = "The lake (default: $AACO_LAKE, else the nearest tracelake/ or dagster.yaml upward)."


def lake_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--lake` to a command that reads a lake; it receives `project`, and is refused where there is no lake."""
    return _lake_option(command, new=False)


def new_lake_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--lake` to a command that makes a lake here where there is none, or that needs none."""
    return _lake_option(command, new=True)


def _lake_option(command: Callable[..., Any], *, new: bool) -> Callable[..., Any]:
    def chosen(context: click.Context, parameter: click.Parameter, value: str | None) -> "Project":
        from aaco_pipeline.resources.project import find_project

        return find_project(value or context.find_root().obj, new=new)

    return click.option("--lake", "project", metavar="PATH", callback=chosen, help=LAKE_HELP)(command)
