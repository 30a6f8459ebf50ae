"""Open the Dagster instance of a lake with the project's settings, or the package's defaults.

Their locations are defined in `aaco_pipeline.resources.project`.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Final

import dagster as dg

from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.files import exclusive_lock
from aaco_pipeline.resources.project import DEFAULTS, HOME_VARIABLE, LAKE_VARIABLE, SETTINGS, Project

#: Lock held while an instance is opened: Dagster creates the databases of a new home without any locking.
_LOCK: Final = ".opening.lock"
_WAIT_SECONDS: Final = 300.0
#: Dagster's databases in its home, each with a table that is non-empty once the database is in use.
_DATABASES: Final = (
    ("history/runs.db", "runs"),
    ("history/runs/index.db", "event_logs"),
    ("schedules/schedules.db", "jobs"),
)


def prepare_home(project: Project) -> None:
    """Create Dagster's home with a link to the active settings, and export its path to child processes."""
    home = project.dagster_home
    settings = project.settings(SETTINGS)
    with _home_errors(home):
        home.mkdir(parents=True, exist_ok=True)
        if not _holds(home / SETTINGS, settings):
            link = home / f".{SETTINGS}.{os.getpid()}"  # replaced atomically: another process may do the same now
            link.symlink_to(Path(os.path.relpath(settings, home)) if settings.parent == project.root else settings)
            link.replace(home / SETTINGS)
    os.environ[HOME_VARIABLE] = str(home)
    os.environ[LAKE_VARIABLE] = str(project.lake)


def _holds(link: Path, settings: Path) -> bool:
    """Return whether the home's settings are kept: they are `settings`, or the user put other settings there.

    Links to a project that has moved, or to the defaults of another installation of this package, are replaced.
    """
    if not link.exists():
        return False
    is_default = link.is_symlink() and link.resolve().parent.parts[-2:] == DEFAULTS.parts[-2:]
    return link.samefile(settings) or not is_default


def open_instance(project: Project) -> dg.DagsterInstance:
    """Open the instance of `project` and create missing databases; use it as a context manager."""
    prepare_home(project)
    home = project.dagster_home
    with ExitStack() as held:
        with _home_errors(home):
            held.enter_context(exclusive_lock(home / _LOCK, timeout_seconds=_WAIT_SECONDS, purpose=f"{home}"))
            _remove_half_made(home)
        return dg.DagsterInstance.get()


def _remove_half_made(home: Path) -> None:
    """Remove databases left behind by a process that was killed while Dagster created them.

    Dagster writes the schema version last. It treats a database without a version as an old one and never completes it.
    """
    for name, table in _DATABASES:
        path = home / name
        if path.exists() and not _is_made(path, table):
            for end in ("-wal", "-shm", ""):
                Path(f"{path}{end}").unlink(missing_ok=True)


def _is_made(path: Path, table: str) -> bool:
    """Return whether a database has a schema version or any rows; a database that SQLite cannot read is left alone."""
    try:
        with closing(sqlite3.connect(path, timeout=_WAIT_SECONDS)) as database:
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            kept = [one for one in ("alembic_version", table) if one in tables]
            return any(database.execute(f"SELECT 1 FROM {one} LIMIT 1").fetchone() for one in kept)
    except sqlite3.DatabaseError:
        return True


@contextmanager
def _home_errors(home: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LakeError(f"{home}: {error.strerror}; Dagster's home must be writable, set {HOME_VARIABLE}") from error
