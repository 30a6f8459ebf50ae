"""`aaco ui`: a session from Dagster's launchpad becomes what `aaco run` makes, on the same lake; SIGTERM ends it."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from aaco_pipeline.cli.main import main
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.project import HOME_VARIABLE, LAKE_VARIABLE
from tests.user_interface import LONGEST_WAIT_SECONDS, UserInterface, user_interface, wait_for

SETTINGS: Final = {"model": "control_flow", "iterations": 5, "warmup": 1}
LAUNCH: Final = """
mutation Launch($params: ExecutionParams!) {
  launchPipelineExecution(executionParams: $params) {
    __typename
    ... on LaunchRunSuccess { run { runId } }
    ... on PythonError { message }
    ... on RunConfigValidationInvalid { errors { message } }
  }
}
"""
RUNS: Final = "{ runsOrError { ... on Runs { results { runId jobName status tags { key value } } } } }"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {LAKE_VARIABLE: str(tmp_path / "lake"), HOME_VARIABLE: str(tmp_path / "home")}


@pytest.fixture
def opened(environment: dict[str, str], tmp_path: Path) -> Iterator[UserInterface]:
    """A running `aaco ui`, started as a shell starts what stands before `&`: with the interrupt ignored."""
    (tmp_path / "empty").mkdir()
    background = ("sh", "-c", '"$@" & echo $!; wait $!', "sh")
    with user_interface(tmp_path / "empty", environment, before=background) as running:
        wait_for(running.is_up, running.log.read_text)
        yield running


@pytest.mark.nightly
def test_a_session_from_the_launchpad_is_what_aaco_run_makes_and_sigterm_ends_every_process(
    opened: UserInterface, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opener = opened.signed_in()
    launched = opened.ask(
        opener,
        LAUNCH,
        params={
            "selector": {
                "repositoryLocationName": "aaco_pipeline",
                "repositoryName": "__repository__",
                "jobName": "start_session",
            },
            "runConfigData": {"ops": {"register_session": {"config": SETTINGS}}},
            "mode": "default",
        },
    )["launchPipelineExecution"]
    assert launched["__typename"] == "LaunchRunSuccess", launched

    def runs() -> dict[str, dict[str, Any]]:
        return {run["jobName"]: run for run in opened.ask(opener, RUNS)["runsOrError"]["results"]}

    def ended() -> bool:
        found = runs()
        failed = [run for run in found.values() if run["status"] in ("FAILURE", "CANCELED")]
        assert failed == [], opened.log.read_text()
        return "observe" in found and found["observe"]["status"] == "SUCCESS"

    wait_for(ended, lambda: f"{runs()}\n{opened.log.read_text()}")
    lake = TraceLake(environment[LAKE_VARIABLE])
    (session,) = lake.sessions()
    tags = {tag["key"]: tag["value"] for tag in runs()["observe"]["tags"]}
    assert tags["dagster/partition"] == session

    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path / "empty")
    options = [text for name, value in SETTINGS.items() for text in (f"--{name}", str(value))]
    assert main(["run", *options]) == 0
    older, newer = lake.sessions()
    assert older == session
    assert _published(lake, older) == _published(lake, newer)
    assert (
        lake.read("iterations", older)
        .select("pass", "iteration", "phase")
        .equals(lake.read("iterations", newer).select("pass", "iteration", "phase"))
    )
    assert main(["doctor"]) == 0
    command, link, *others = opened.log.read_text().splitlines()
    assert link.startswith("Dagster on http://127.0.0.1:")
    assert [line for line in others if " - DEBUG - " in line or "SensorDaemon" in line] == []
    sigterm_ends_all(opened, int(command))


def _published(lake: TraceLake, session: str) -> set[tuple[str, str, int]]:
    return {(entry.table, entry.stage, entry.contract_version) for entry in lake.manifest(session).entries}


def sigterm_ends_all(running: UserInterface, command: int) -> None:
    """Dagster maps SIGTERM to the interrupt, which a shell has everything in the background ignore."""
    below = set(running.descendants())
    assert len(below) >= 6
    before = len(running.log.read_text().splitlines())
    os.kill(command, signal.SIGTERM)
    assert running.process.wait(LONGEST_WAIT_SECONDS) == 143
    assert [pid for pid in below if Path(f"/proc/{pid}").exists()] == []
    said = running.log.read_text().splitlines()[before:]
    # Dagster may log an error of its own meanwhile, but nobody says more of the end.
    assert said[-1] == "aaco: terminated", said
    assert [line for line in said if line.startswith("aaco: ") or "Interrupt" in line] == ["aaco: terminated"], said
