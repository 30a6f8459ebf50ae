"""The option `--lake`, which works before and after a command's name, and the lake or project it means."""

from collections.abc import Callable
from functools import partial
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


def late_lake_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--lake` to a command that reads a lake for some of what it is asked: `project` is a function that finds it.

    It refuses where there is no lake, as `lake_option` does, and is not called where none is needed.
    """
    return _option(command, lambda named: partial(_project, named, new=False))


def _lake_option(command: Callable[..., Any], *, new: bool) -> Callable[..., Any]:
    return _option(command, lambda named: _project(named, new=new))


def _option(command: Callable[..., Any], given: Callable[[str | None], Any]) -> Callable[..., Any]:
    def chosen(context: click.Context, parameter: click.Parameter, value: str | None) -> Any:
        return given(value or context.find_root().obj)

    return click.option("--lake", "project", metavar="PATH", callback=chosen, help=LAKE_HELP)(command)


def _project(named: str | None, *, new: bool) -> "Project":
    from aaco_pipeline.resources.project import find_project

    return find_project(named, new=new)
