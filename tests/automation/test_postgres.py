"""The fleet's settings of dagster.yaml start on Postgres, where adoption, sessions and sensors work as on SQLite.

The tests are those of the other modules, with an instance whose storage is a database of a server of their own.
"""

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, Final

import dagster as dg
import pytest
import yaml

from tests.automation.test_adoption import (
    lake,
    test_a_session_of_the_command_is_complete_after_the_adopting_run,
    test_a_session_that_dagster_ran_is_not_adopted,
    test_a_stage_that_failed_and_then_passed_shows_as_passed,
    test_after_three_reanalyses_the_newest_result_shows,
    test_killed_between_any_two_events_it_doubles_nothing_and_misses_nothing,
    test_partitions_of_removed_sessions_go_and_those_of_another_lake_stay,
)
from tests.automation.test_jobs import (
    dropped,
    test_a_good_capture_becomes_a_session_whose_stages_are_then_asked_for,
    test_what_the_launchpad_opens_with_begins_a_session,
)
from tests.automation.test_sensors import (
    started,
    test_a_session_that_was_started_is_observed_once,
    test_dead_runs_are_reaped_and_named,
)
from tests.places import ROOT

__all__ = [
    "dropped",
    "lake",
    "started",
    "test_a_good_capture_becomes_a_session_whose_stages_are_then_asked_for",
    "test_a_session_of_the_command_is_complete_after_the_adopting_run",
    "test_a_session_that_dagster_ran_is_not_adopted",
    "test_a_session_that_was_started_is_observed_once",
    "test_a_stage_that_failed_and_then_passed_shows_as_passed",
    "test_after_three_reanalyses_the_newest_result_shows",
    "test_dead_runs_are_reaped_and_named",
    "test_killed_between_any_two_events_it_doubles_nothing_and_misses_nothing",
    "test_partitions_of_removed_sessions_go_and_those_of_another_lake_stay",
    "test_what_the_launchpad_opens_with_begins_a_session",
]

pytestmark = pytest.mark.nightly

BINARIES: Final = max(Path("/usr/lib/postgresql").glob("*/bin"), default=Path("/nowhere"))
#: The server refuses to run as root.
ACCOUNT: Final = "postgres" if os.geteuid() == 0 else None
DATABASES: Final = count()


class Server:
    """A Postgres server on this host alone, in which everybody of this host is who he says."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port = folder, port

    def run(self, program: str, *arguments: str) -> None:
        command = [str(BINARIES / program), *arguments]
        subprocess.run(command, user=ACCOUNT, check=True, cwd=self.folder, stdout=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    if not (BINARIES / "initdb").is_file():
        pytest.skip("Postgres is not installed: apt-get install postgresql")
    pytest.importorskip("dagster_postgres", reason="pip install -c constraints.txt -e '.[fleet]'")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = Path(tempfile.mkdtemp(prefix="aaco-postgres-"))
    made = Server(folder, port)
    if ACCOUNT is not None:
        shutil.chown(folder, ACCOUNT)
    options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off"
    try:
        made.run("initdb", "-D", "data", "-A", "trust", "-U", "aaco")
        made.run("pg_ctl", "-D", "data", "-w", "-l", "log", "-o", options, "start")
        yield made
    finally:
        made.run("pg_ctl", "-D", "data", "-m", "immediate", "stop")
        shutil.rmtree(folder)


def fleet_settings() -> dict[str, Any]:
    """The settings for a fleet's storage that dagster.yaml shows as a comment."""
    lines = (ROOT / "dagster.yaml").read_text().splitlines()
    first = lines.index("# storage:")
    shown = lines[first : lines.index("#", first)]
    settings: dict[str, Any] = yaml.safe_load("\n".join(line.removeprefix("# ") for line in shown))
    return settings


@pytest.fixture
def dagster_home(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home for Dagster with the project's settings and the fleet's storage, a database of the test's own."""
    database = f"aaco_{next(DATABASES)}"
    server.run("createdb", "-h", "127.0.0.1", "-p", f"{server.port}", "-U", "aaco", database)
    for name, value in {"HOST": "127.0.0.1", "USER": "aaco", "PASSWORD": "none"}.items():
        monkeypatch.setenv(f"AACO_POSTGRES_{name}", value)
    settings = {**yaml.safe_load((ROOT / "dagster.yaml").read_text()), **fleet_settings()}
    settings["storage"]["postgres"]["postgres_db"].update(db_name=database, port=server.port)
    home = tmp_path / "home"
    home.mkdir()
    (home / "dagster.yaml").write_text(yaml.safe_dump(settings))
    return home


def test_events_are_stored_in_postgres(instance: dg.DagsterInstance) -> None:
    assert type(instance.event_log_storage).__name__ == "PostgresEventLogStorage"
    instance.add_dynamic_partitions("session", ["a"])
    assert instance.get_dynamic_partitions("session") == ["a"]
