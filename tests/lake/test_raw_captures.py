"""Raw captures and requests to measure: there whole or not at all, kept until they are withdrawn."""

import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from aaco_pipeline.errors import LakeError, UsageError
from aaco_pipeline.lake.health import faults, mend
from aaco_pipeline.lake.store import TraceLake
from tests.lake.published import LATER, SESSION, Snapshot, dead_process


def kinds(lake: TraceLake) -> dict[str, bool]:
    return {fault.kind: fault.mendable for fault in faults(lake)}


def test_what_is_to_be_measured_is_kept_until_it_is_withdrawn(lake: TraceLake, snapshot: Snapshot) -> None:
    assert lake.requests() == []
    assert lake.requested(SESSION) is None
    lake.withdraw(SESSION)
    assert not lake.path.exists()
    for session in (LATER, SESSION):
        lake.request(session, f'{{"model": "größer {session}"}}')
    assert lake.requests() == [SESSION, LATER]
    assert lake.requested(SESSION) == f'{{"model": "größer {SESSION}"}}'
    lake.request(SESSION, "other")
    assert lake.requested(SESSION) == "other"
    assert lake.sessions() == []
    (lake.path / "launches" / f".tmp-{dead_process()}-0").write_bytes(b"x")
    assert lake.requests() == [SESSION, LATER]
    assert kinds(lake) == {"unfinished write": True}
    assert all(mend(lake, fault) for fault in faults(lake))
    lake.withdraw(SESSION)
    assert lake.requests() == [LATER]
    lake.remove(LATER)
    assert lake.requests() == []
    assert {name for name, content in snapshot(lake.path).items() if content is not None} == set()


def test_a_request_that_cannot_be_kept_or_read_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    lake = TraceLake(tmp_path / "file" / "lake")
    doing: list[Callable[[], object]] = [
        lambda: lake.request(SESSION, "x"),
        lambda: lake.requested(SESSION),
        lambda: lake.withdraw(SESSION),
    ]
    for each in doing:
        with pytest.raises(LakeError, match="Not a directory"):
            each()
    with pytest.raises(UsageError, match="is not a session id"):
        lake.request("../x", "x")


def test_a_capture_is_there_whole_or_not_at_all(lake: TraceLake, snapshot: Snapshot) -> None:
    with lake.receive_raw(SESSION) as folder:
        (folder / "deep").mkdir()
        (folder / "deep" / "a").write_text("1")
        assert not lake.raw(SESSION).exists()
        assert faults(lake) == []
    raw = snapshot(lake.raw(SESSION))
    digest = sha256(b"1").hexdigest()
    assert json.loads(raw.pop("digests.json") or "") == {"list_version": 1, "sha256": {"deep/a": digest}}
    assert raw == {"deep": None, "deep/a": b"1"}
    assert [path.name for path in (lake.path / "raw").iterdir()] == [f"session_id={SESSION}"]
    assert faults(lake) == []


def test_a_capture_is_never_overwritten(lake: TraceLake, snapshot: Snapshot) -> None:
    with lake.receive_raw(SESSION) as folder:
        (folder / "a").write_text("1")
    before = snapshot(lake.path)
    with (
        pytest.raises(LakeError, match="the capture is already complete; a new measurement is a new session"),
        lake.receive_raw(SESSION) as folder,
    ):
        (folder / "a").write_text("2")
    assert snapshot(lake.path) == before


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_capture_that_fails_leaves_nothing(error: type[BaseException], lake: TraceLake) -> None:
    with pytest.raises(error), lake.receive_raw(SESSION) as folder:
        (folder / "a").write_text("1")
        raise error
    assert not lake.raw(SESSION).exists()
    assert list((lake.path / "raw").iterdir()) == []
