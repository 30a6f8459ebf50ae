"""Sessions by name: found by a part of it, removed wholly, new ones later than all others."""

from collections.abc import Collection
from pathlib import Path

import pytest

from aaco_pipeline.errors import UsageError
from aaco_pipeline.lake.health import faults
from aaco_pipeline.lake.storage import LocalStorage
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.verified import RAW_LIST
from tests.lake.published import LATER, SESSION, Filled, Metrics, Snapshot, kernels


def test_a_session_is_found_by_id_by_unique_prefix_and_as_the_latest(lake: TraceLake, metrics: Metrics) -> None:
    with pytest.raises(UsageError, match="no sessions yet"):
        lake.find_session("latest")
    others = [f"{SESSION[:-1]}b", LATER]
    for session in (LATER, SESSION, others[0]):
        lake.publish(session, "a", {"session_metrics": metrics(1.0)})
    assert lake.sessions() == [SESSION, *others]
    assert lake.find_session("latest") == LATER
    assert lake.find_session(SESSION) == SESSION
    assert lake.find_session("20250102") == LATER
    with pytest.raises(UsageError, match=f"session '20250101' is ambiguous: {SESSION}, {others[0]}"):
        lake.find_session("20250101")
    for unknown in ("1999", SESSION + "0", "0000000a"):
        with pytest.raises(UsageError, match=rf"no session '{unknown}'.*newest {LATER}"):
            lake.find_session(unknown)
        with pytest.raises(UsageError, match="no session"):
            lake.read("session_metrics", unknown)


def test_a_session_is_found_with_or_without_its_workload_and_not_by_that_alone(
    lake: TraceLake, metrics: Metrics
) -> None:
    named = f"{SESSION}-squeezenet"
    lake.publish(named, "a", {"session_metrics": metrics(1.0)})
    lake.publish(LATER, "a", {"session_metrics": metrics(1.0)})
    assert lake.sessions() == [named, LATER]
    for name in (named, SESSION, f"{SESSION}-squ", "20250101"):
        assert lake.find_session(name) == named
    with pytest.raises(UsageError, match="no session 'squeezenet'"):
        lake.find_session("squeezenet")


def test_a_removed_session_is_gone_wholly_and_the_others_are_unharmed(
    lake: TraceLake, metrics: Metrics, filled: Filled, snapshot: Snapshot
) -> None:
    lake.publish(LATER, "a", {"session_metrics": metrics(2.0)})
    before = snapshot(lake.path)
    lake.publish(SESSION, "a", {"session_metrics": metrics(1.0), "kernels": kernels(filled, "gemm")})
    with lake.receive_raw(SESSION) as folder:
        (folder / "deep").mkdir()
        (folder / "deep" / "capture.json").write_bytes(b"x" * 1000)
    for name in ("traces", "reports"):
        (lake.path / name / f"session_id={SESSION}").mkdir(parents=True)
        (lake.path / name / f"session_id={SESSION}" / "file").write_bytes(b"y" * 100)
    expected = 1200 + (lake.raw(SESSION) / RAW_LIST).stat().st_size
    expected += sum(entry.bytes for entry in lake.manifest(SESSION).entries)
    assert lake.disk_bytes(SESSION) == expected
    assert lake.remove(SESSION) == expected
    left = snapshot(lake.path)
    assert {name: content for name, content in left.items() if content is not None or SESSION in name} == {
        name: content for name, content in before.items() if content is not None
    }
    assert lake.sessions() == [LATER]
    assert lake.disk_bytes(SESSION) == 0
    assert lake.remove(SESSION) == 0
    assert faults(lake) == []


def test_a_session_is_out_of_view_before_its_first_file_is_deleted(
    lake: TraceLake, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.publish(SESSION, "a", {"session_metrics": metrics(1.0)})
    sessions_then: list[list[str]] = []

    def note(_: LocalStorage, folder: Path, names: Collection[str]) -> None:
        if names:
            sessions_then.append(lake.sessions())

    monkeypatch.setattr(LocalStorage, "clear", note)
    lake.remove(SESSION)
    assert sessions_then == [[]]
    assert [(fault.kind, fault.mendable) for fault in faults(lake)] == [("orphan file", True)]


def test_a_new_session_is_the_latest_whatever_the_clock_says(lake: TraceLake, metrics: Metrics) -> None:
    """Also within a second, and after the clock has stepped back by years."""
    ahead = "20990101T000000Z-0000000a"
    made = [lake.new_session("größe")]
    lake.request(made[0], "{}")
    made.append(lake.new_session())
    with lake.receive_raw(made[1]) as folder:
        (folder / "a").touch()
    made.append(lake.new_session())
    lake.publish(made[2], "a", {"session_metrics": metrics(1.0)})
    lake.publish(ahead, "a", {"session_metrics": metrics(1.0)})
    made += [ahead, lake.new_session()]
    lake.publish(made[4], "a", {"session_metrics": metrics(1.0)})
    assert made == sorted(made)
    assert made[4].startswith("20990101T000001Z-")
    assert lake.find_session("latest") == made[4]
    lake.request("99999999T999999Z-0000000a", "{}")  # an id, and no time
    assert lake.new_session().startswith("20990101T000002Z-")
