"""What a segment replaced goes once nobody may look for it any more, and never before the segment was read back."""

from datetime import timedelta

from aaco_pipeline.lake.segments.compaction import compact
from aaco_pipeline.lake.store import TraceLake
from tests.lake.published import LATER, SESSION, Filled, Metrics, kernels
from tests.lake.segments.compacted import AFTER_GRACE, NOW, THIRD, compacted, flip, own_files, segments_of, values


def test_files_stay_for_their_grace_and_go_then_with_their_folders(two_sessions: TraceLake) -> None:
    (done,) = compact(two_sessions, NOW)
    assert (done.waiting.files, done.waiting_until) == (2, AFTER_GRACE)
    (early,) = compact(two_sessions, AFTER_GRACE - timedelta(seconds=1))
    assert (early.gone.files, early.waiting.files) == (0, 2)
    assert len(own_files(two_sessions)) == 2
    (late,) = compact(two_sessions, AFTER_GRACE)
    assert (late.gone.files, late.waiting.files) == (2, 0)
    assert not list((two_sessions.path / "session_metrics").iterdir())
    assert compact(two_sessions, AFTER_GRACE) == []


def test_rows_of_a_removed_session_leave_the_disk_with_the_next_compaction_whatever_the_grace(
    two_sessions: TraceLake, filled: Filled
) -> None:
    for session in (SESSION, LATER, THIRD):
        names = [f"{session}-{number}" for number in range(1 if session == SESSION else 50)]
        two_sessions.publish(session, "b", {"kernels": kernels(filled, *names)})
    compacted(two_sessions)
    two_sessions.remove(SESSION)
    assert two_sessions.read("kernels").height == 100
    assert two_sessions.sql("SELECT count(*) FROM kernels").item() == 100
    rounds = {one.table: one for one in compact(two_sessions, AFTER_GRACE)}
    assert rounds["kernels"].dropped.files == 1
    (only,) = segments_of(two_sessions, "kernels")
    assert [part.id for part in only.parts] == [LATER, THIRD]
    held = b"".join(path.read_bytes() for path in (two_sessions.path / "segments").rglob("*.parquet"))
    assert SESSION.encode() not in held
    assert two_sessions.read("kernels").height == 100


def test_a_segment_of_which_everything_is_dead_goes_at_once(two_sessions: TraceLake, metrics: Metrics) -> None:
    compacted(two_sessions)
    for session in (SESSION, LATER):
        two_sessions.publish(session, "a", {"session_metrics": metrics(7.0)})
    (done,) = compact(two_sessions, AFTER_GRACE)
    assert done.dropped.files == 1
    assert values(two_sessions) == [7.0, 7.0]


def test_a_small_segment_is_put_together_with_what_has_come_since_and_goes_after_its_grace(
    two_sessions: TraceLake, metrics: Metrics
) -> None:
    compacted(two_sessions)
    two_sessions.publish(THIRD, "a", {"session_metrics": metrics(20.0)})
    (done,) = compact(two_sessions, AFTER_GRACE)
    assert (done.taken.files, done.rewritten.files, done.waiting.files) == (1, 1, 2)
    assert len(segments_of(two_sessions)) == 2
    assert values(two_sessions) == [0.0, 1.0, 10.0, 11.0, 20.0]
    assert two_sessions.sql("SELECT count(*) FROM session_metrics").item() == 5
    (done,) = compact(two_sessions, AFTER_GRACE + timedelta(days=1))
    assert (done.dropped.files, done.gone.files) == (1, 1)
    (only,) = segments_of(two_sessions)
    assert [part.id for part in only.parts] == [SESSION, LATER, THIRD]


def test_nights_that_each_bring_a_session_do_not_keep_what_was_replaced_for_ever(
    lake: TraceLake, metrics: Metrics
) -> None:
    """Each night the segment is written anew, a second earlier in the day than the night before."""
    for night in range(6):
        lake.publish(f"2025020{night + 1}T000000Z-0000000{night}", "a", {"session_metrics": metrics(float(night))})
        compact(lake, NOW + night * timedelta(days=1, seconds=-1))
    assert len(own_files(lake)) == 2
    assert len(segments_of(lake)) == 3
    assert values(lake) == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_files_stay_when_the_segment_in_their_place_is_torn(two_sessions: TraceLake) -> None:
    compact(two_sessions, NOW)
    (only,) = segments_of(two_sessions)
    flip(two_sessions.path / only.segment.file, 20)
    (done,) = compact(two_sessions, AFTER_GRACE)
    assert done.gone.files == 0
    assert "torn" in done.left[0]
    assert len(own_files(two_sessions)) == 2
    assert values(two_sessions) == [0.0, 1.0, 10.0, 11.0]
