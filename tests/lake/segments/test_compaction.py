"""Compaction merges files into segments and removes what they replaced; a kill never loses or repeats a row."""

import os
import sqlite3
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.contracts import contract
from aaco_pipeline.lake.declaration import Table
from aaco_pipeline.lake.segments import compaction, writing
from aaco_pipeline.lake.segments.compaction import TableRound, compact
from aaco_pipeline.lake.segments.format import PART_COLUMN
from aaco_pipeline.lake.storage import LocalStorage
from aaco_pipeline.lake.store import TraceLake
from tests.lake.published import LATER, SESSION, Filled, Metrics, dead_process, every_table, file_of, flip, kernels
from tests.lake.segments.compacted import AFTER_GRACE, CAMPAIGN, NOW, THIRD, compacted, own_files, segments_of, values


@pytest.mark.parametrize("table", every_table())
def test_every_table_is_read_as_before_with_its_columns_types_and_order(
    table: str, lake: TraceLake, filled: Filled
) -> None:
    declared = contract(table)
    owners = (SESSION, LATER) if declared.scope == "session" else (CAMPAIGN, "other")
    first = next(column for column in declared.columns if column.dtype != "list<evidence>")
    for owner in owners:
        rows = filled(table, {first.name: [None if first.nullable else _value(first.dtype)] * 3})
        lake.publish(owner, "a", {table: rows}, declared.scope)
        lake.publish(owner, "b", {table: rows.head(1)}, declared.scope)
    before = [lake.read(table), lake.read(table, owners[1]), lake.sql(f"SELECT * FROM {table} ORDER BY ALL")]
    (done,) = compact(lake, NOW)
    assert (done.table, done.taken.files, done.sessions, done.waiting.files) == (table, 4, 2, 4)
    for gone in (0, 4):
        (done,) = compact(lake, AFTER_GRACE)[:1] if gone else (done,)
        assert done.gone.files == gone
        after = [lake.read(table), lake.read(table, owners[1]), lake.sql(f"SELECT * FROM {table} ORDER BY ALL")]
        for one, other in zip(before, after, strict=True):
            assert one.equals(other)
            assert one.schema == other.schema
    assert own_files(lake) == []
    assert not [one for one in (lake.path / table).iterdir() if one.name not in owners]  # markers of that name stay


def _value(dtype: str) -> object:
    return {"string": "x", "bool": True, "float64": 0.5, "timestamp": NOW, "date": NOW.date()}.get(dtype, 1)


def test_a_table_is_read_some_rows_at_a_time_from_a_segment_as_from_its_file(
    lake: TraceLake, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "ROW_GROUP_ROWS", 4)
    monkeypatch.setattr("aaco_pipeline.lake.reading._BATCH_ROWS", 3)
    for number, session in enumerate((SESSION, LATER)):
        lake.publish(session, "a", {"session_metrics": metrics(*map(float, range(10 * number, 10 * number + 7)))})
    compacted(lake)
    assert own_files(lake) == []
    for number, session in enumerate((SESSION, LATER)):
        batches = list(lake.batches("session_metrics", session, ("value", "metric")))
        assert [batch.height for batch in batches] == [3, 3, 1]
        assert pl.concat(batches).get_column("value").to_list() == [10.0 * number + row for row in range(7)]


def test_one_file_alone_stays_as_it_is(lake: TraceLake, metrics: Metrics) -> None:
    lake.publish(SESSION, "a", {"session_metrics": metrics(1.0)})
    assert compact(lake, NOW) == []
    assert segments_of(lake) == []


def test_a_dry_run_tells_and_changes_nothing(two_sessions: TraceLake, snapshot: Callable[[Path], Any]) -> None:
    before = snapshot(two_sessions.path)
    (told,) = compact(two_sessions, NOW, dry_run=True)
    assert (told.taken.files, told.sessions, told.written) == (2, 2, None)
    assert snapshot(two_sessions.path) == before
    compact(two_sessions, NOW)
    before = snapshot(two_sessions.path)
    (told,) = compact(two_sessions, AFTER_GRACE, dry_run=True)
    assert told.gone.files == 2
    assert snapshot(two_sessions.path) == before


def test_a_session_published_anew_is_read_from_its_file_and_its_old_rows_are_dead(
    two_sessions: TraceLake, metrics: Metrics
) -> None:
    compacted(two_sessions)
    two_sessions.publish(SESSION, "a", {"session_metrics": metrics(5.0)})
    assert values(two_sessions) == [5.0, 10.0, 11.0]
    assert two_sessions.sql("SELECT value FROM session_metrics ORDER BY value").rows() == [(5.0,), (10.0,), (11.0,)]
    (done,) = compact(two_sessions, AFTER_GRACE)
    assert (done.taken.files, done.rewritten.files, done.written and done.written.files) == (1, 1, 1)
    assert values(two_sessions) == [5.0, 10.0, 11.0]
    assert values(two_sessions, SESSION) == [5.0]
    compact(two_sessions, AFTER_GRACE + timedelta(days=1))
    (only,) = segments_of(two_sessions)
    assert only.segment.rows == 3


def test_a_session_that_becomes_again_what_it_was_is_read_once(two_sessions: TraceLake, metrics: Metrics) -> None:
    compacted(two_sessions)
    two_sessions.publish(SESSION, "a", {"session_metrics": metrics(0.0, 1.0)})
    assert len(own_files(two_sessions)) == 1
    assert values(two_sessions) == [0.0, 1.0, 10.0, 11.0]
    compact(two_sessions, AFTER_GRACE)
    assert own_files(two_sessions) == []
    assert values(two_sessions) == [0.0, 1.0, 10.0, 11.0]


def test_a_file_that_cannot_be_read_does_not_have_the_others_wait_anew(
    two_sessions: TraceLake, metrics: Metrics
) -> None:
    compact(two_sessions, NOW)
    two_sessions.publish(THIRD, "a", {"session_metrics": metrics(1.0)})
    file_of(two_sessions, "session_metrics", THIRD).write_bytes(b"torn")
    (done,) = compact(two_sessions, AFTER_GRACE)
    assert len(done.left) == 1
    assert done.gone.files == 2
    assert len(segments_of(two_sessions)) == 1


def test_though_the_clock_steps_back_the_later_segment_is_taken(two_sessions: TraceLake, metrics: Metrics) -> None:
    compacted(two_sessions)
    two_sessions.publish(THIRD, "a", {"session_metrics": metrics(20.0)})
    compact(two_sessions, NOW - timedelta(days=30))
    earlier, later = segments_of(two_sessions)
    assert later.segment.made > earlier.segment.made
    assert len(later.parts) == 3
    assert compact(two_sessions, NOW - timedelta(days=30))[0].rewritten.files == 0


def test_row_groups_hold_whole_parts_and_a_large_part_spans_several(
    lake: TraceLake, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "ROW_GROUP_ROWS", 4)
    sizes = {SESSION: 3, LATER: 2, THIRD: 9, "20250104T000000Z-0000000d": 2, "20250105T000000Z-0000000e": 2}
    for session, rows in sizes.items():
        lake.publish(session, "a", {"session_metrics": metrics(*map(float, range(rows)))})
    before = lake.read("session_metrics")
    compacted(lake)
    (only,) = segments_of(lake)
    assert [group.rows for group in only.segment.row_groups] == [3, 2, 4, 4, 1, 4]
    assert only.segment.bytes == (lake.path / only.segment.file).stat().st_size
    assert lake.read("session_metrics").equals(before)
    for session, rows in sizes.items():
        assert lake.read("session_metrics", session).height == rows
    assert lake.read("session_metrics", [THIRD, SESSION]).height == 12
    held = pl.read_parquet(lake.path / only.segment.file)
    assert held.get_column(PART_COLUMN).is_sorted()
    assert held.get_column(PART_COLUMN).dtype == pl.Int32


def test_segments_are_closed_at_their_target_and_full_ones_stay(
    lake: TraceLake, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "ROW_GROUP_ROWS", 4)
    monkeypatch.setattr(writing, "TARGET_BYTES", 1)
    monkeypatch.setattr(compaction, "UNDERSIZED_BYTES", 1)
    for session in (SESSION, LATER, THIRD):
        lake.publish(session, "a", {"session_metrics": metrics(*map(float, range(3)))})
    (done,) = compact(lake, NOW)
    assert done.written is not None
    assert done.written.files == 3
    assert [one.taken.files for one in compact(lake, NOW)] == [0]
    assert len(segments_of(lake)) == 3


def test_a_large_file_stays_as_it_is(two_sessions: TraceLake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "LARGE_BYTES", 10)
    assert compact(two_sessions, NOW) == []


def test_columns_that_an_older_contract_did_not_have_are_null_as_before(
    two_sessions: TraceLake, metrics: Metrics
) -> None:
    """A file of before and one of now in one segment."""
    manifest = two_sessions.manifest(SESSION)
    (entry,) = manifest.entries
    path = two_sessions.path / entry.file
    pl.read_parquet(path, hive_partitioning=False).drop("ci_low", "ci_high").with_columns(
        pl.lit(SESSION).alias("session_id")
    ).write_parquet(path)
    from hashlib import sha256

    digest = sha256(path.read_bytes()).hexdigest()
    older = entry._replace(bytes=path.stat().st_size, sha256=digest, contract_version=1)
    two_sessions.manifest_path(SESSION, "session").write_bytes(manifest.with_stage("a", [older]).to_bytes())
    before = two_sessions.read("session_metrics")
    assert before.get_column("ci_low").null_count() == 4
    compacted(two_sessions)
    assert own_files(two_sessions) == []
    assert two_sessions.read("session_metrics").equals(before)
    assert two_sessions.read("session_metrics", SESSION).equals(before.head(2))


def test_what_was_written_under_a_newer_contract_is_left_alone_and_told(
    two_sessions: TraceLake, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_sessions.publish(THIRD, "a", {"session_metrics": metrics(1.0)})
    manifest = two_sessions.manifest(THIRD)
    newer = [entry._replace(contract_version=99) for entry in manifest.entries]
    two_sessions.manifest_path(THIRD, "session").write_bytes(manifest.with_stage("a", newer).to_bytes())
    (done,) = compact(two_sessions, NOW)
    assert done.taken.files == 2
    assert done.left == ("1 files are of a newer contract; upgrade aaco_pipeline to compact them",)
    assert values(two_sessions, SESSION) == [0.0, 1.0]


def test_a_torn_file_stays_and_is_reported_and_the_others_are_merged(two_sessions: TraceLake, metrics: Metrics) -> None:
    two_sessions.publish(THIRD, "a", {"session_metrics": metrics(1.0)})
    torn = file_of(two_sessions, "session_metrics")
    torn.write_bytes(torn.read_bytes()[:-1])
    (done,) = compact(two_sessions, NOW)
    assert len(done.left) == 1
    assert str(torn) in done.left[0]
    assert [part.id for part in segments_of(two_sessions)[0].parts] == [LATER, THIRD]


def test_a_torn_manifest_keeps_everything_of_its_session(two_sessions: TraceLake, metrics: Metrics) -> None:
    compacted(two_sessions)
    whole = two_sessions.manifest_path(SESSION, "session").read_bytes()
    two_sessions.manifest_path(SESSION, "session").write_bytes(whole[:-9])
    two_sessions.publish(THIRD, "a", {"session_metrics": metrics(1.0)})
    compact(two_sessions, AFTER_GRACE)
    compact(two_sessions, AFTER_GRACE + timedelta(days=2))
    two_sessions.manifest_path(SESSION, "session").write_bytes(whole)
    assert values(two_sessions) == [0.0, 1.0, 10.0, 11.0, 1.0]


def test_a_second_compaction_names_the_running_one(two_sessions: TraceLake) -> None:
    with two_sessions.compacting(), pytest.raises(LakeError, match=r"compaction is locked by process [0-9]+") as raised:
        compact(two_sessions, NOW)
    assert raised.value.exit_code == 8
    assert not (two_sessions.path / ".locks" / "compaction.lock").exists()


def test_what_a_killed_compaction_left_is_removed_by_the_next(two_sessions: TraceLake) -> None:
    folder = two_sessions.path / "segments" / "session_metrics"
    folder.mkdir(parents=True)
    (folder / f".tmp-{dead_process()}-2").write_bytes(b"half")
    (folder / "0123456789abcdef.parquet").write_bytes(b"no list names it")
    compact(two_sessions, NOW)
    (only,) = segments_of(two_sessions)
    assert {path.name for path in folder.iterdir()} == {f"{only.segment.name}.json", f"{only.segment.name}.parquet"}


def test_a_full_disk_leaves_nothing_half_written_and_is_one_line(
    two_sessions: TraceLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(storage: LocalStorage, path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(LocalStorage, "write", full)
    with pytest.raises(LakeError, match="No space left on device; check that the lake's disk"):
        compact(two_sessions, NOW)
    monkeypatch.undo()
    assert values(two_sessions) == [0.0, 1.0, 10.0, 11.0]
    compacted(two_sessions)
    assert own_files(two_sessions) == []
    assert values(two_sessions) == [0.0, 1.0, 10.0, 11.0]


def test_what_this_host_keeps_of_lists_decides_no_error(
    two_sessions: TraceLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AACO_CACHE", str(tmp_path / "cache"))
    compacted(two_sessions)
    assert own_files(two_sessions) == []
    assert values(two_sessions, SESSION) == [0.0, 1.0]
    (file,) = (tmp_path / "cache").rglob("*.sqlite")
    with sqlite3.connect(file) as made:
        made.execute("DELETE FROM parts")
    made.close()
    assert values(two_sessions, SESSION) == [0.0, 1.0]
    assert values(two_sessions) == [0.0, 1.0, 10.0, 11.0]


def test_a_round_with_nothing_to_do_is_remembered_until_something_changes(
    two_sessions: TraceLake, metrics: Metrics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AACO_CACHE", str(tmp_path / "cache"))
    looked_at: list[str] = []
    compact_table = compaction._compact_table

    def watched(lake: TraceLake, table: Table, *rest: Any, **options: Any) -> TableRound:
        looked_at.append(table.name)
        return compact_table(lake, table, *rest, **options)

    monkeypatch.setattr(compaction, "_compact_table", watched)

    def is_looked_at() -> bool:
        looked_at.clear()
        compact(two_sessions, AFTER_GRACE)
        return bool(looked_at)

    (file,) = two_sessions.path.glob(f"session_metrics/session_id={LATER}/*.parquet")
    content = file.read_bytes()
    assert compact(two_sessions, NOW)
    assert [is_looked_at() for _ in range(3)] == [True, True, False]
    file.parent.mkdir()
    file.write_bytes(content)
    assert [is_looked_at() for _ in range(2)] == [True, False]  # after which the lake is as it was
    assert not file.exists()
    (one,) = segments_of(two_sessions)
    os.utime(two_sessions.path / one.segment.list_file)
    assert [is_looked_at() for _ in range(2)] == [True, False]
    two_sessions.publish(THIRD, "a", {"session_metrics": metrics(5.0)})
    assert is_looked_at()
    assert values(two_sessions) == [0.0, 1.0, 10.0, 11.0, 5.0]


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
