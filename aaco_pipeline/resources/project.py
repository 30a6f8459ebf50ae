"""Where the lake, Dagster's instance and the configuration files of a person's project are, decided once.

Nothing is created here; opening the instance is `aaco_pipeline.automation.instance`.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aaco_pipeline.errors import UsageError

LAKE_VARIABLE: Final = "AACO_LAKE"
HOME_VARIABLE: Final = "DAGSTER_HOME"
_MARKER: Final = "dagster.yaml"


@dataclass(frozen=True)
class Project:
    """`root` is the folder of the nearest dagster.yaml upward, None when there is none."""

    root: Path | None
    lake: Path
    dagster_home: Path

    @property
    def configs(self) -> Path:
        """The folder of models.yaml and backends.yaml; it need not exist."""
        return (self.root or Path.cwd()) / "configs"

    def require_root(self) -> Path:
        """The project's root, else UsageError: running stages needs the settings in dagster.yaml."""
        if self.root is None:
            raise UsageError(
                f"no {_MARKER} in {Path.cwd()} or above it; run in a checkout of aaco_pipeline, or copy its {_MARKER}, "
                "workspace.yaml and configs/ to where you work"
            )
        return self.root


def find_project(lake: str | Path | None = None, start: Path | None = None) -> Project:
    """The project seen from `start` (default: here). UsageError when nothing says where the lake is.

    Lake: the argument, else $AACO_LAKE, else tracelake/ beside the nearest dagster.yaml upward. Dagster's home:
    $DAGSTER_HOME, else .dagster_home/ beside that dagster.yaml; a lake that is elsewhere has its instance inside it,
    because one lake goes with one instance.
    """
    here = (start or Path.cwd()).absolute()
    root = next((folder for folder in (here, *here.parents) if (folder / _MARKER).is_file()), None)
    named = lake or os.environ.get(LAKE_VARIABLE) or None
    if named is None and root is None:
        raise UsageError(f"no lake: give --lake PATH or set {LAKE_VARIABLE} (there is no {_MARKER} in {here} or above)")
    default_lake = root / "tracelake" if root is not None else None
    path = Path(named).expanduser().absolute() if named is not None else default_lake
    assert path is not None
    home = os.environ.get(HOME_VARIABLE) or None
    if home is not None:
        dagster_home = Path(home).expanduser().absolute()
    elif root is not None and path == default_lake:
        dagster_home = root / ".dagster_home"
    else:
        dagster_home = path / ".dagster_home"
    return Project(root, path, dagster_home)
