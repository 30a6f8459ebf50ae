"""`aaco ui`: a session from Dagster's launchpad becomes what `aaco run` makes, on the same lake and instance."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import aaco_pipeline
from aaco_pipeline.cli.main import main
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.project import HOME_VARIABLE, LAKE_VARIABLE

ROOT: Final = Path(aaco_pipeline.__file__).parents[1]
ENTRY: Final = "from aaco_pipeline.cli.main import entry; entry()"
LONGEST_WAIT_SECONDS: Final = 300.0
POLL_SECONDS: Final = 0.5
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

Query = Callable[..., Any]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {LAKE_VARIABLE: str(tmp_path / "lake"), HOME_VARIABLE: str(tmp_path / "home")}


@pytest.fixture
def query(environment: dict[str, str], tmp_path: Path) -> Iterator[Query]:
    """Ask the GraphQL interface of a running `aaco ui`, which is ended with all its processes afterwards."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = tmp_path / "ui.log"
    (tmp_path / "empty").mkdir()

    def ask(text: str, **variables: object) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/graphql",
            json.dumps({"query": text, "variables": variables}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.load(response)["data"]

    def answers() -> bool:
        assert process.poll() is None, log.read_text()
        try:
            return bool(ask("{ version }"))
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    with (
        log.open("wb") as stream,
        subprocess.Popen(
            [sys.executable, "-P", "-c", ENTRY, "ui", "--port", str(port)],
            cwd=tmp_path / "empty",
            env={**os.environ, **environment, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process,
    ):
        try:
            _wait_for(answers, log.read_text)
            yield ask
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_a_session_from_the_launchpad_is_what_aaco_run_makes(
    query: Query, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched = query(
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
        return {run["jobName"]: run for run in query(RUNS)["runsOrError"]["results"]}

    def ended() -> bool:
        found = runs()
        failed = [run for run in found.values() if run["status"] in ("FAILURE", "CANCELED")]
        assert failed == [], (tmp_path / "ui.log").read_text()
        return "observe" in found and found["observe"]["status"] == "SUCCESS"

    _wait_for(ended, lambda: f"{runs()}\n{(tmp_path / 'ui.log').read_text()}")
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
    assert {run["jobName"] for run in query(RUNS)["runsOrError"]["results"][:1]} == {"observe"}
    assert len(query(RUNS)["runsOrError"]["results"]) == 3
    assert main(["doctor"]) == 0
    first, *others = (tmp_path / "ui.log").read_text().splitlines()
    assert first.startswith("Dagster on http://127.0.0.1:")
    assert [line for line in others if " - DEBUG - " in line or "SensorDaemon" in line] == []


def _published(lake: TraceLake, session: str) -> set[tuple[str, str, int]]:
    return {(entry.table, entry.stage, entry.contract_version) for entry in lake.manifest(session).entries}


def _wait_for(condition: Callable[[], bool], explain: Callable[[], str]) -> None:
    deadline = time.monotonic() + LONGEST_WAIT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {LONGEST_WAIT_SECONDS:g} s: {explain()}")
        time.sleep(POLL_SECONDS)
