"""Locate the lake, Dagster's instance and a project's settings, in one place.

Nothing is created here; `aaco_pipeline.automation.instance` opens the instance, and `aaco init` writes settings to
edit.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aaco_pipeline.errors import UsageError
from aaco_pipeline.lake.storage import lake_path

LAKE_VARIABLE: Final = "AACO_LAKE"
HOME_VARIABLE: Final = "DAGSTER_HOME"
SETTINGS: Final = "dagster.yaml"
WORKSPACE: Final = "workspace.yaml"
#: Settings shipped with the package. They apply if a project has no file of its own.
DEFAULTS: Final = Path(__file__).parents[1] / "defaults"
_LAKE_FOLDER: Final = "tracelake"


@dataclass(frozen=True)
class Project:
    """A project. `root` is the nearest folder upward with a dagster.yaml or a tracelake/, else the current folder."""

    root: Path
    lake: Path
    dagster_home: Path

    @property
    def configs(self) -> Path:
        """The folder of the project's own models.yaml, backends.yaml and so on; it need not exist."""
        return self.root / "configs"

    def settings(self, name: str) -> Path:
        """Return the effective file `name`: the project's own, else the package's."""
        own = self.root / name
        return own if own.is_file() else DEFAULTS / name


def find_project(lake: str | Path | None = None, start: Path | None = None, *, new: bool = False) -> Project:
    """Return the project seen from `start` (default: the current folder).

    Lake: the argument, else $AACO_LAKE, else tracelake/ in the nearest folder upward that has a dagster.yaml or a
    tracelake/. If there is none, `new` selects one in `start`; otherwise UsageError is raised. Dagster's home:
    $DAGSTER_HOME, else .dagster_home/ next to a lake called tracelake and inside any other lake, so that a lake always
    has the same instance, whatever the current folder.
    """
    here = (start or Path.cwd()).absolute()
    upward = (here, *here.parents)
    found = next((one for one in upward if (one / SETTINGS).is_file() or (one / _LAKE_FOLDER).is_dir()), None)
    named = lake or os.environ.get(LAKE_VARIABLE)
    if not (named or found or new):
        raise UsageError(
            f"no lake in {here} or above it; `aaco run` or `aaco ingest` makes one here, or name one with --lake PATH "
            f"or {LAKE_VARIABLE}"
        )
    root = found or here
    path = lake_path(named) if named else root / _LAKE_FOLDER
    home = os.environ.get(HOME_VARIABLE) or (path.parent if path.name == _LAKE_FOLDER else path) / ".dagster_home"
    return Project(root, path, Path(home).expanduser().absolute())
