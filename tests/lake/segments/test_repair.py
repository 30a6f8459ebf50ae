"""Torn, orphaned and half-written segments are reported and repaired, and intact rows stay readable."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest

from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.health import Fault, faults, leftovers, mend
from aaco_pipeline.lake.repair import rebuild_manifest
from aaco_pipeline.lake.segments import writing
from aaco_pipeline.lake.segments.compaction import compact
from aaco_pipeline.lake.segments.format import Segment, readable_lists
from aaco_pipeline.lake.store import TraceLake
from tests.lake.published import LATER, SESSION, Metrics, dead_process, file_of, flip
from tests.lake.segments.compacted import values

NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)
LATER_ON: Final = NOW + timedelta(days=1)
ROWS: Final = {SESSION: [0.0, 1.0], LATER: [10.0, 11.0]}


@pytest.fixture
def published(lake: TraceLake, metrics: Metrics, monkeypatch: pytest.MonkeyPatch) -> TraceLake:
    """Two sessions with their captures, each in a row group of its own once they are compacted."""
    monkeypatch.setattr(writing, "ROW_GROUP_ROWS", 2)
    for session, rows in ROWS.items():
        lake.publish(session, "a", {"session_metrics": metrics(*rows)})
        with lake.receive_raw(session) as raw:
            (raw / "capture").write_text(session)
    return lake


@pytest.fixture
def compacted(published: TraceLake) -> TraceLake:
    compact(published, NOW)
    compact(published, LATER_ON)
    assert not list(published.path.glob("session_metrics/*"))
    return published


def segment_of(lake: TraceLake) -> Segment:
    (only,) = readable_lists(lake.path, "session_metrics")
    return only.segment


def tear(lake: TraceLake, row_group: int) -> Path:
    """Damage one row group, or with the number after theirs the footer."""
    segment = segment_of(lake)
    flip(path := lake.path / segment.file, segment.begins[row_group] + 8)
    return path


def kinds(lake: TraceLake) -> list[tuple[str, str | None]]:
    return [(one.kind, one.session) for one in faults(lake)]


def test_a_file_that_is_gone_and_in_a_segment_is_no_fault(published: TraceLake, compacted: TraceLake) -> None:
    assert faults(compacted) == []


def test_files_that_wait_for_their_grace_are_no_fault(published: TraceLake) -> None:
    compact(published, NOW)
    assert faults(published) == []


def test_a_torn_segment_is_not_read_while_there_are_files(published: TraceLake) -> None:
    compact(published, NOW)
    tear(published, 0)
    assert values(published) == [0.0, 1.0, 10.0, 11.0]
    assert published.sql("SELECT sum(value) FROM session_metrics").item() == 22.0
    assert values(published, SESSION) == [0.0, 1.0]
    assert kinds(published) == [("torn segment", None)]


@pytest.mark.parametrize("row_group", [0, 2], ids=["row group", "footer"])
def test_a_torn_segment_without_files_is_an_error_that_names_whose_rows_and_what_to_do(
    compacted: TraceLake, row_group: int
) -> None:
    path = tear(compacted, row_group)
    told = rf"{path}: its bytes are not those published \(table session_metrics of session {SESSION}, stage a\); .*mend"
    with pytest.raises(LakeError, match=told):
        compacted.read("session_metrics", SESSION)
    with pytest.raises(LakeError, match=told):
        compacted.read("session_metrics")
    with pytest.raises(LakeError, match=told):
        compacted.sql("SELECT * FROM session_metrics")


def test_a_session_in_a_whole_row_group_of_a_torn_segment_is_read(compacted: TraceLake) -> None:
    tear(compacted, 0)
    assert values(compacted, LATER) == [10.0, 11.0]


def test_mending_a_torn_segment_writes_anew_what_is_whole_and_runs_the_rest_again(
    compacted: TraceLake, metrics: Metrics
) -> None:
    tear(compacted, 0)
    found = faults(compacted)
    assert [(one.kind, one.session) for one in found] == [("missing file", SESSION), ("torn segment", None)]
    assert mend(compacted, found[0])
    assert [state.stage for state in compacted.progress(SESSION).failed] == ["a"]
    compacted.publish(SESSION, "a", {"session_metrics": metrics(*ROWS[SESSION])})
    assert mend(compacted, found[1])
    assert faults(compacted) == []
    assert values(compacted) == [0.0, 1.0, 10.0, 11.0]
    (only,) = readable_lists(compacted.path, "session_metrics")
    assert [part.id for part in only.parts] == [SESSION, LATER]


def test_a_torn_segment_stays_while_a_session_needs_what_cannot_be_read(compacted: TraceLake) -> None:
    tear(compacted, 0)
    torn = next(one for one in faults(compacted) if one.kind == "torn segment")
    assert not mend(compacted, torn)
    assert ("missing file", SESSION) in kinds(compacted)
    assert values(compacted, LATER) == [10.0, 11.0]


@pytest.mark.parametrize("gone", [False, True], ids=["torn list", "list gone"])
def test_a_list_that_is_torn_or_gone_is_mended_once_the_sessions_are_published_again(
    gone: bool, compacted: TraceLake, metrics: Metrics
) -> None:
    path = compacted.path / segment_of(compacted).list_file
    path.unlink() if gone else path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(LakeError, match=r"published but missing .*mend"):
        values(compacted, SESSION)
    found = faults(compacted)
    kind = "unfinished segment" if gone else "torn segment"
    assert [one.kind for one in found] == ["missing file", "missing file", kind]
    assert gone or not mend(compacted, found[-1])
    for session, rows in ROWS.items():
        compacted.publish(session, "a", {"session_metrics": metrics(*rows)})
    assert mend(compacted, found[-1])
    assert faults(compacted) == []
    assert not list(path.parent.iterdir())


def test_a_list_without_its_segment_is_a_torn_segment(compacted: TraceLake) -> None:
    (compacted.path / segment_of(compacted).file).unlink()
    with pytest.raises(LakeError, match=r"\.parquet: published but missing \(table session_metrics of session"):
        values(compacted, SESSION)
    assert [kind for kind, _ in kinds(compacted)] == ["missing file", "missing file", "torn segment"]


def test_a_list_of_a_later_version_is_not_touched(compacted: TraceLake) -> None:
    from aaco_pipeline.lake.manifest import seal

    path = compacted.path / segment_of(compacted).list_file
    path.write_bytes(seal({"segment_version": 2}))
    with pytest.raises(LakeError, match=r"segment version 2 is newer than 1, .*upgrade"):
        values(compacted, SESSION)
    told = [one for one in faults(compacted) if one.kind == "newer segment"]
    assert [(one.path, one.mendable) for one in told] == [(path, False)]
    (done,) = compact(compacted, LATER_ON)
    assert "upgrade aaco_pipeline" in done.left[0]


def test_a_file_that_is_torn_while_it_waits_is_read_from_the_segment_and_removed(published: TraceLake) -> None:
    compact(published, NOW)
    path = file_of(published, "session_metrics")
    flip(path, 20)
    assert values(published, SESSION) == [0.0, 1.0]
    (told,) = faults(published)
    assert told == Fault("torn copy", path, told.explanation, mendable=True)
    assert mend(published, told)
    assert not path.exists()
    assert faults(published) == []
    assert values(published, SESSION) == [0.0, 1.0]


def test_leftovers_of_a_killed_compaction_are_reported_and_removed_unless_one_is_running(compacted: TraceLake) -> None:
    folder = (compacted.path / segment_of(compacted).file).parent
    (folder / f".tmp-{dead_process()}-2").write_bytes(b"half")
    (folder / "0123456789abcdef.parquet").write_bytes(b"no list names it")
    with compacted.compacting():
        assert faults(compacted) == []
    found = faults(compacted)
    assert [one.kind for one in found] == ["unfinished segment"] * 2
    assert leftovers(compacted) == found
    assert [mend(compacted, one) for one in found] == [True, True]
    assert faults(compacted) == []
    assert values(compacted) == [0.0, 1.0, 10.0, 11.0]


def test_a_torn_manifest_of_a_compacted_session_is_rebuilt_from_the_segments_lists(compacted: TraceLake) -> None:
    before = compacted.manifest(SESSION)
    compacted.manifest_path(SESSION, "session").write_text("{")
    assert rebuild_manifest(compacted, SESSION).entries == before.entries
    assert values(compacted, SESSION) == [0.0, 1.0]


def test_of_a_session_published_after_it_was_compacted_the_file_is_what_a_manifest_is_rebuilt_from(
    compacted: TraceLake, metrics: Metrics
) -> None:
    compacted.publish(SESSION, "a", {"session_metrics": metrics(5.0)})
    before = compacted.manifest(SESSION)
    compacted.manifest_path(SESSION, "session").write_text("{")
    assert rebuild_manifest(compacted, SESSION).entries == before.entries


def test_removing_a_compacted_session_counts_what_leaves_the_disk_at_once(published: TraceLake) -> None:
    whole = published.disk_bytes(SESSION)
    (entry,) = published.manifest(SESSION).entries
    compact(published, NOW)
    compact(published, LATER_ON)
    assert published.disk_bytes(SESSION) == whole
    assert published.segment_bytes(SESSION) == entry.bytes
    assert published.remove(SESSION) == whole - entry.bytes
    assert values(published) == [10.0, 11.0]
    assert faults(published) == []
