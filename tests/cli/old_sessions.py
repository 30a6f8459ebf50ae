"""Two old sessions in a lake that Dagster has never seen: what commands that tidy up are tried on."""

from pathlib import Path

from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.project import Project
from tests.lake.conftest import _filled

OLD, OLDER = "20240101T000000Z-0000000b-old", "20230101T000000Z-0000000a"


def old_sessions(folder: Path, root: Path) -> Project:
    """Their lake in `folder`, of a project whose settings lie in `root`."""
    lake = TraceLake(folder / "lake")
    for session in (OLDER, OLD):
        lake.publish(session, "capture", {"sessions": _filled("sessions", {"workload": ["w"]})})
    return Project(root, lake.path, folder / "home")
