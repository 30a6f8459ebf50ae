"""Opening the Dagster instance that belongs to a lake, with the settings of the project's dagster.yaml.

Where both are is decided in `aaco_pipeline.resources.project`.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

import dagster as dg

from aaco_pipeline.errors import LakeError
from aaco_pipeline.resources.project import HOME_VARIABLE, LAKE_VARIABLE, Project

_SETTINGS: Final = "dagster.yaml"


def prepare_home(project: Project) -> None:
    """Make Dagster's home with a link to the project's settings, and point this process and its children there."""
    root = project.require_root()
    home = project.dagster_home
    link = home / _SETTINGS
    try:
        home.mkdir(parents=True, exist_ok=True)
        if not link.exists():
            link.unlink(missing_ok=True)  # a link to a project that has moved
            with suppress(FileExistsError):  # another process makes the same link at the same moment
                link.symlink_to(Path(os.path.relpath(root / _SETTINGS, home)))
    except OSError as error:
        raise LakeError(f"{home}: {error.strerror}; Dagster's home must be writable, set {HOME_VARIABLE}") from error
    os.environ[HOME_VARIABLE] = str(home)
    os.environ[LAKE_VARIABLE] = str(project.lake)


def open_instance(project: Project) -> dg.DagsterInstance:
    """The instance of `project`; the caller closes it by using it as a context manager."""
    prepare_home(project)
    return dg.DagsterInstance.get()
