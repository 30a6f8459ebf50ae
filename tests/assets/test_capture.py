"""The stage `capture` measures once and completely, or not at all."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from aaco_pipeline.assets.capture import capture
from aaco_pipeline.assets.stage import Log, Outcome, Session
from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.errors import CaptureError, LakeError, ModelError, UsageError
from aaco_pipeline.lake.layout import new_session_id
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.verified import RAW_LIST
from tests.conftest import CapturedLake
from tests.places import CONFIGS
from tests.sessions import made_by

LAUNCH = MeasurementRequest(model="control_flow", iterations=3, seed=5)


Measure = Callable[[MeasurementRequest, Path, Log], None]


class Replaying:
    """Measures nothing: hands out a capture that was made before."""

    def __init__(self, capture: Path) -> None:
        self.files = {file.name: file.read_bytes() for file in capture.iterdir()}
        self.requests: list[MeasurementRequest] = []

    def __call__(self, launch: MeasurementRequest, folder: Path, log: Log) -> None:
        self.requests.append(launch)
        for name, content in self.files.items():
            (folder / name).write_bytes(content)


def forbidden(launch: MeasurementRequest, folder: Path, log: Log) -> None:
    """Whoever measures again breaks the promise."""
    raise AssertionError("it measured again")


def taken(lake: TraceLake, session: str, measure: Measure | None, log: Log = lambda line: None) -> Outcome:
    return capture(Session(lake, session, CONFIGS, measure, log))


@pytest.fixture
def lake(empty_lake: TraceLake) -> TraceLake:
    return empty_lake


@pytest.fixture
def replaying(captured: CapturedLake) -> Replaying:
    return Replaying(captured.lake.raw(captured.sessions["control_flow"]))


@pytest.fixture
def session(lake: TraceLake) -> str:
    """A session that was asked for."""
    name = new_session_id()
    lake.request(name, LAUNCH.to_json())
    return name


def test_the_launch_that_was_asked_for_is_what_is_measured(lake: TraceLake, session: str, replaying: Replaying) -> None:
    outcome = taken(lake, session, replaying)
    assert replaying.requests == [LAUNCH]
    assert {file.name for file in lake.raw(session).iterdir()} == set(replaying.files)
    assert set(outcome.tables) == {"sessions"}


def test_a_captured_session_is_no_longer_waiting(lake: TraceLake, session: str, replaying: Replaying) -> None:
    assert lake.requests() == [session]
    taken(lake, session, replaying)
    assert lake.requests() == []


def test_a_captured_session_is_never_measured_again(lake: TraceLake, session: str, replaying: Replaying) -> None:
    first = taken(lake, session, replaying)
    before = {file.name: (file.stat().st_mtime_ns, file.read_bytes()) for file in lake.raw(session).iterdir()}
    for request_again in (False, True):
        if request_again:
            lake.request(session, LAUNCH.to_json())
        again = taken(lake, session, forbidden)
        assert again.tables["sessions"].equals(first.tables["sessions"])
        assert again.evidence == first.evidence
        assert again.headline == first.headline
    assert {f.name: (f.stat().st_mtime_ns, f.read_bytes()) for f in lake.raw(session).iterdir()} == before
    assert lake.requests() == []


def test_a_session_that_nobody_asked_for_is_a_usage_error_naming_the_way_in(lake: TraceLake) -> None:
    with pytest.raises(
        UsageError, match=r"neither a capture nor a request to measure; start one with `aaco run` or the job"
    ):
        taken(lake, new_session_id(), forbidden)
    assert not (lake.path / "raw").exists()


def test_a_request_that_is_none_is_a_usage_error_naming_the_session(lake: TraceLake, session: str) -> None:
    lake.request(session, "{}")
    with pytest.raises(UsageError, match=f"measurement request of session {session}"):
        taken(lake, session, forbidden)


@pytest.mark.parametrize("error", [ModelError("broken"), RuntimeError("a fault"), KeyboardInterrupt()])
def test_a_capture_that_fails_leaves_no_raw_and_can_be_tried_again(
    error: BaseException, lake: TraceLake, session: str, replaying: Replaying
) -> None:
    def failing(launch: MeasurementRequest, folder: Path, log: Log) -> None:
        (folder / "latency.json").write_text("{}")
        raise error

    with pytest.raises(type(error)):
        taken(lake, session, failing)
    assert not lake.raw(session).exists()
    assert list((lake.path / "raw").iterdir()) == []
    assert lake.requests() == [session]
    assert lake.sessions() == []
    taken(lake, session, replaying)
    assert lake.raw(session).is_dir()


def test_two_that_measure_the_same_session_never_mix(lake: TraceLake, session: str, replaying: Replaying) -> None:
    """The second to finish is refused: what is complete stays what it was."""

    def overtaken(launch: MeasurementRequest, folder: Path, log: Log) -> None:
        taken(lake, session, replaying)
        (folder / "late.json").write_text("{}")

    with pytest.raises(LakeError, match="already complete; a new measurement is a new session"):
        taken(lake, session, overtaken)
    assert {file.name for file in lake.raw(session).iterdir()} == set(replaying.files)


def test_the_log_is_handed_to_whoever_measures(lake: TraceLake, session: str, replaying: Replaying) -> None:
    lines: list[str] = []

    def talking(launch: MeasurementRequest, folder: Path, log: Log) -> None:
        log("waiting")
        replaying(launch, folder, log)

    taken(lake, session, talking, lines.append)
    assert lines == ["waiting"]


def test_where_nothing_can_measure_the_way_in_is_named(lake: TraceLake, session: str) -> None:
    with pytest.raises(UsageError, match=f"session {session} has still to be measured; run its stages with"):
        taken(lake, session, None)
    assert lake.requests() == [session]


# What the description says.


def test_evidence_names_every_raw_file_with_its_digest(captured: CapturedLake) -> None:
    lake, session = captured.lake, captured.sessions["squeezenet"]
    named = [one for one in made_by(lake, session, "capture").evidence if one.sha256 is not None]
    assert {one.source: one.sha256 for one in named} == {
        f"raw/{file.name}": hashlib.sha256(file.read_bytes()).hexdigest()
        for file in lake.raw(session).iterdir()
        if file.name != RAW_LIST
    }
    assert {one.status for one in named} == {"present"}


def test_the_capture_digest_is_of_content_alone(lake: TraceLake, captured: CapturedLake, replaying: Replaying) -> None:
    """The same files under another session are the same capture; one changed byte is another one."""

    def digest(files: dict[str, bytes]) -> str:
        session = new_session_id()
        lake.request(session, LAUNCH.to_json())
        replaying.files = files
        tables = taken(lake, session, replaying).tables
        return str(tables["sessions"].item(0, "capture_digest"))

    files = dict(replaying.files)
    original = captured.lake.read("sessions", captured.sessions["control_flow"]).item(0, "capture_digest")
    assert digest(files) == digest(files) == original
    host = json.loads(files["host.json"])
    assert digest({**files, "host.json": json.dumps(host).encode()}) != original


def test_the_row_of_the_session_says_what_was_run(captured: CapturedLake) -> None:
    row = made_by(captured.lake, captured.sessions["squeezenet"], "capture").tables["sessions"].row(0, named=True)
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
        taken(lake, session, replaying)
