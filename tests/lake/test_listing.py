"""A list of sessions matches manifests, tables and folders, and unchanged facts are read once."""

import shutil
from datetime import UTC, datetime
from typing import Any

import pytest

from aaco_pipeline.lake import listing
from aaco_pipeline.lake.listing import FACTS, listed
from aaco_pipeline.lake.storage import LocalStorage
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.validation import empty_table
from tests.lake.published import LATER, SESSION, Filled, file_of


@pytest.fixture
def two(lake: TraceLake, filled: Filled) -> TraceLake:
    """Two sessions, of which the later has no metrics."""
    for session in (SESSION, LATER):
        facts: dict[str, list[Any]] = {
            "model_name": [session[-1]],
            "started_at": [datetime(2025, 1, 1, 12, tzinfo=UTC)],
            "batch_size": [4],
        }
        lake.publish(session, "capture", {"sessions": filled("sessions", facts)})
    metrics = {"metric": ["latency_p50", "latency_p90"], "pass": ["latency"] * 2, "phase": ["measure"] * 2}
    lake.publish(SESSION, "inference", {"session_metrics": filled("session_metrics", {**metrics, "value": [1.0, 2.0]})})
    with lake.receive_raw(SESSION) as raw:
        (raw / "capture").mkdir()
        (raw / "capture" / "trace").write_bytes(b"x" * 1000)
    return lake


def refuse(*_: object) -> None:
    raise AssertionError("what had not changed was read again")


def test_it_has_the_newest_first_with_facts_and_disk_use(two: TraceLake) -> None:
    rows = listed(two).rows
    assert [row["session_id"] for row in rows] == [LATER, SESSION]
    assert [row["model_name"] for row in rows] == ["b", "a"]
    assert [row["latency_p50_ns"] for row in rows] == [None, 1.0]
    assert {row["started_at"] for row in rows} == {"2025-01-01T12:00:00+00:00"}
    assert [row["disk_bytes"] for row in rows] == [two.disk_bytes(LATER), two.disk_bytes(SESSION)]
    assert [row["session_id"] for row in listed(two, 1).rows] == [LATER]


def test_what_has_not_changed_is_not_read_again_and_what_has_is(
    two: TraceLake, filled: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = listed(two).rows
    with monkeypatch.context() as patch:
        patch.setattr(listing, "select_rows", refuse)
        patch.setattr(LocalStorage, "bytes_below", refuse)
        assert listed(two).rows == before
    with two.new_view(LATER, "perfetto_trace", two.trace(LATER), "it") as path:
        path.write_bytes(b"x" * 500)
    two.publish(LATER, "capture", {"sessions": filled("sessions", {"model_name": ["other"]})})
    row = listed(two).rows[0]
    assert (row["model_name"], row["disk_bytes"]) == ("other", two.disk_bytes(LATER))
    shutil.rmtree(two.raw(SESSION))
    row = listed(two).rows[1]
    assert row["disk_bytes"] == two.disk_bytes(SESSION) < before[1]["disk_bytes"]


def test_one_that_cannot_be_read_is_listed_with_the_reason_and_the_others_as_they_are(two: TraceLake) -> None:
    before = listed(two).rows
    two.manifest_path(SESSION, "session").write_text("{")
    found = listed(two)
    assert found.rows[0] == before[0]
    nothing = dict.fromkeys((*FACTS, "progress", "disk_bytes"))
    assert found.rows[1] == {"session_id": SESSION, **nothing}
    assert "not a manifest" in str(found.errors[SESSION])
    assert SESSION not in found.progress


def test_a_torn_table_leaves_the_facts_of_its_session_out_until_it_is_mended(two: TraceLake) -> None:
    file = file_of(two, "sessions")
    content = file.read_bytes()
    file.write_bytes(b"torn")
    found = listed(two)
    assert [row["model_name"] for row in found.rows] == ["b", None]
    assert "its bytes are not those published" in str(found.errors[SESSION])
    file.write_bytes(content)
    assert [row["model_name"] for row in listed(two).rows] == ["b", "a"]


def test_a_session_without_facts_is_not_asked_again(lake: TraceLake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.publish(SESSION, "capture", {"sessions": empty_table("sessions")})
    before = listed(lake).rows
    monkeypatch.setattr(listing, "select_rows", refuse)
    assert listed(lake).rows == before
    assert before[0]["model_name"] is None
