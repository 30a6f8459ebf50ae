"""The stage `capture`, called without Dagster: measured once and whole, or not at all."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from aaco_pipeline.assets.capture import STAGE, TABLES, describe_capture, take_capture
from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.errors import CaptureError, LakeError, ModelError, UsageError
from aaco_pipeline.lake.identity import new_session_id
from aaco_pipeline.lake.store import TraceLake

LAUNCH = MeasurementRequest(model="control_flow", iterations=3, seed=5)


class Replaying:
    """Measures nothing: hands out a capture that was made before."""

    def __init__(self, capture: Path) -> None:
        self.files = {file.name: file.read_bytes() for file in capture.iterdir()}
        self.launches: list[MeasurementRequest] = []

    def capture(self, launch: MeasurementRequest, folder: Path, log: Callable[[str], None]) -> None:
        self.launches.append(launch)
        for name, content in self.files.items():
            (folder / name).write_bytes(content)


class Failing:
    """Leaves half a capture and fails."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def capture(self, launch: MeasurementRequest, folder: Path, log: Callable[[str], None]) -> None:
        (folder / "latency.json").write_text("{}")
        raise self.error


class Forbidden:
    """Whoever measures again breaks the promise."""

    def capture(self, launch: MeasurementRequest, folder: Path, log: Callable[[str], None]) -> None:
        raise AssertionError("it measured again")


def silent(line: str) -> None:
    pass


@pytest.fixture
def lake(lake_path: Path) -> TraceLake:
    return TraceLake(lake_path)


@pytest.fixture
def replaying(captured: Any) -> Replaying:
    return Replaying(captured.lake.raw(captured.sessions["control_flow"]))


@pytest.fixture
def session(lake: TraceLake) -> str:
    """A session that was asked for."""
    name = new_session_id()
    lake.request(name, LAUNCH.to_json())
    return name


def test_the_launch_that_was_asked_for_is_what_is_measured(lake: TraceLake, session: str, replaying: Replaying) -> None:
    outcome = take_capture(lake, session, replaying, silent)
    assert replaying.launches == [LAUNCH]
    assert {file.name for file in lake.raw(session).iterdir()} == set(replaying.files)
    assert set(outcome.tables) == set(TABLES)


def test_a_captured_session_is_no_longer_waiting(lake: TraceLake, session: str, replaying: Replaying) -> None:
    assert lake.requests() == [session]
    take_capture(lake, session, replaying, silent)
    assert lake.requests() == []


def test_a_captured_session_is_never_measured_again(lake: TraceLake, session: str, replaying: Replaying) -> None:
    first = take_capture(lake, session, replaying, silent)
    before = {file.name: (file.stat().st_mtime_ns, file.read_bytes()) for file in lake.raw(session).iterdir()}
    for request_again in (False, True):
        if request_again:
            lake.request(session, LAUNCH.to_json())
        again = take_capture(lake, session, Forbidden(), silent)
        assert all(again.tables[name].equals(first.tables[name]) for name in TABLES)
        assert again.headline == first.headline
    assert {f.name: (f.stat().st_mtime_ns, f.read_bytes()) for f in lake.raw(session).iterdir()} == before
    assert lake.requests() == []


def test_a_session_that_nobody_asked_for_is_a_usage_error_naming_the_way_in(lake: TraceLake) -> None:
    with pytest.raises(
        UsageError, match=r"neither a capture nor a measurement request; start one with `aaco run` or the job"
    ):
        take_capture(lake, new_session_id(), Forbidden(), silent)
    assert not (lake.path / "raw").exists()


def test_a_request_that_is_none_is_a_usage_error_naming_the_session(lake: TraceLake, session: str) -> None:
    lake.request(session, "{}")
    with pytest.raises(UsageError, match=f"measurement request of session {session}"):
        take_capture(lake, session, Forbidden(), silent)


@pytest.mark.parametrize("error", [ModelError("broken"), RuntimeError("a fault"), KeyboardInterrupt()])
def test_a_capture_that_fails_leaves_no_raw_and_can_be_tried_again(
    error: BaseException, lake: TraceLake, session: str, replaying: Replaying
) -> None:
    with pytest.raises(type(error)):
        take_capture(lake, session, Failing(error), silent)
    assert not lake.raw(session).exists()
    assert list((lake.path / "raw").iterdir()) == []
    assert lake.requests() == [session]
    assert lake.sessions() == []
    take_capture(lake, session, replaying, silent)
    assert lake.raw(session).is_dir()


def test_two_that_measure_the_same_session_never_mix(lake: TraceLake, session: str, replaying: Replaying) -> None:
    """The second to finish is refused: what is complete stays what it was."""

    class Overtaken:
        def capture(self, launch: MeasurementRequest, folder: Path, log: Callable[[str], None]) -> None:
            take_capture(lake, session, replaying, silent)
            (folder / "late.json").write_text("{}")

    with pytest.raises(LakeError, match="already complete; a new measurement is a new session"):
        take_capture(lake, session, Overtaken(), silent)
    assert {file.name for file in lake.raw(session).iterdir()} == set(replaying.files)


def test_the_log_is_handed_to_whoever_measures(lake: TraceLake, session: str, replaying: Replaying) -> None:
    lines: list[str] = []

    class Talking:
        def capture(self, launch: MeasurementRequest, folder: Path, log: Callable[[str], None]) -> None:
            log("waiting")
            replaying.capture(launch, folder, log)

    take_capture(lake, session, Talking(), lines.append)
    assert lines == ["waiting"]


# What the description says.


def test_evidence_names_every_raw_file_with_its_digest(captured: Any) -> None:
    lake, session = captured.lake, captured.sessions["squeezenet"]
    evidence = describe_capture(lake, session).tables["evidence"].filter(pl.col("sha256").is_not_null())
    digests = dict(evidence.select("source", "sha256").iter_rows())
    assert digests == {
        f"raw/{file.name}": hashlib.sha256(file.read_bytes()).hexdigest() for file in lake.raw(session).iterdir()
    }
    assert set(evidence.get_column("status")) == {"present"}
    assert set(evidence.get_column("stage")) == {STAGE}


def test_the_capture_digest_is_of_content_alone(lake: TraceLake, captured: Any, replaying: Replaying) -> None:
    """The same files under another session are the same capture; one changed byte is another one."""

    def digest(files: dict[str, bytes]) -> str:
        session = new_session_id()
        lake.request(session, LAUNCH.to_json())
        replaying.files = files
        tables = take_capture(lake, session, replaying, silent).tables
        return str(tables["sessions"].item(0, "capture_digest"))

    files = dict(replaying.files)
    original = captured.lake.read("sessions", captured.sessions["control_flow"]).item(0, "capture_digest")
    assert digest(files) == digest(files) == original
    host = json.loads(files["host.json"])
    assert digest({**files, "host.json": json.dumps(host).encode()}) != original


def test_the_row_of_the_session_says_what_was_run(captured: Any) -> None:
    row = describe_capture(captured.lake, captured.sessions["squeezenet"]).tables["sessions"].row(0, named=True)
    expected = {
        "source_kind": "live",
        "workload": "inference",
        "model_name": "squeezenet",
        "backend": "cpu",
        "provider": "CPUExecutionProvider",
        "precision": "float32",
        "batch_size": 1,
        "threads": 1,
        "seed": 0,
        "allow_fallback": False,
        "arm": None,
    }
    assert {name: row[name] for name in expected} == expected
    assert row["started_at"] is not None
    assert len(row["fingerprint"]) == 16


@pytest.mark.parametrize("name", ["capture.json", "host.json", "latency.json", "trace.json"])
def test_a_capture_without_one_of_its_documents_is_a_capture_error_naming_it(
    name: str, lake: TraceLake, session: str, replaying: Replaying
) -> None:
    del replaying.files[name]
    with pytest.raises(CaptureError, match=name):
        take_capture(lake, session, replaying, silent)
