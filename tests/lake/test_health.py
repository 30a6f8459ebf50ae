"""Damage and leftovers are found, and repaired or reported without touching anything that is needed."""

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake import health
from aaco_pipeline.lake.files import exclusive_lock
from aaco_pipeline.lake.health import Fault, faults, mend
from aaco_pipeline.lake.manifest import Manifest
from aaco_pipeline.lake.repair import rebuild_manifest
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.verified import raw_list
from tests.lake.published import LATER, SESSION, Filled, Metrics, Snapshot, dead_process, file_of, kernels


@pytest.fixture
def populated(lake: TraceLake, metrics: Metrics, filled: Filled) -> TraceLake:
    lake.publish(SESSION, "a", {"session_metrics": metrics(1.0, 2.0), "kernels": kernels(filled, "gemm")})
    lake.publish("nightly", "comparison", {"verdicts": filled("verdicts", {"metric": ["x"]})}, scope="campaign")
    return lake


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def receive(lake: TraceLake, session: str = SESSION) -> Path:
    with lake.receive_raw(session) as folder:
        (folder / "deep").mkdir()
        (folder / "deep" / "trace.json").write_text("{}")
    return lake.raw(session)


@pytest.mark.parametrize("kind", ["torn file", "missing file"])
def test_a_damaged_file_is_mended_by_its_stage_running_again(
    kind: str, populated: TraceLake, metrics: Metrics, filled: Filled
) -> None:
    receive(populated)
    file, before = file_of(populated, "kernels"), populated.manifest(SESSION)
    flip(file) if kind == "torn file" else file.unlink()
    explanation = f"table kernels of session {SESSION}, stage a; its stage has to run again"
    fault = Fault(kind, file, explanation, mendable=True, session=SESSION)
    assert faults(populated) == [fault]
    assert mend(populated, fault)
    (failed,) = populated.progress(SESSION).failed
    assert (failed.stage, failed.failure) == (
        "a",
        f"torn or missing: table kernels of session {SESSION}, stage a; run it again",
    )
    assert populated.manifest(SESSION).entries == tuple(one for one in before.entries if one.table != "kernels")
    assert populated.read("session_metrics", SESSION).height == 2
    populated.publish(SESSION, "a", {"session_metrics": metrics(1.0, 2.0), "kernels": kernels(filled, "gemm")})
    assert populated.manifest(SESSION) == before
    assert faults(populated) == []


def test_a_damaged_file_without_a_raw_capture_is_not_mendable(populated: TraceLake, snapshot: Snapshot) -> None:
    file = file_of(populated, "kernels")
    flip(file)
    (fault,) = faults(populated)
    assert (fault.kind, fault.mendable, fault.session) == ("torn file", False, None)
    assert "there is no raw capture to rebuild it from" in fault.explanation
    before = snapshot(populated.path)
    assert mend(populated, fault) is False
    assert snapshot(populated.path) == before


def test_a_view_that_is_torn_or_missing_is_no_fault(populated: TraceLake) -> None:
    receive(populated)
    trace = populated.trace(SESSION)
    with populated.new_view(SESSION, "perfetto_trace", trace, "it") as path:
        path.write_bytes(b"a trace")
    for damage in (flip, Path.unlink):
        damage(trace)
        assert faults(populated) == []
        assert populated.record_torn(SESSION) == ()


@pytest.mark.parametrize("damage", ["flip", "lose", "add", "list"])
def test_a_raw_capture_that_is_not_as_it_was_received_is_found(damage: str, populated: TraceLake) -> None:
    raw = receive(populated)
    assert faults(populated) == []
    file = raw / "deep" / "trace.json"
    told = {"lose": "deep/trace.json was received", "add": "more.json was not"}
    if damage == "flip":
        flip(file)
    elif damage == "lose":
        file.unlink()
    elif damage == "add":
        (raw / "more.json").touch()
    else:
        (raw / "digests.json").write_bytes(raw_list({"deep/trace.json": "0" * 64}))
    (fault,) = faults(populated)
    assert (fault.kind, fault.path, fault.mendable) == ("torn capture", raw, False)
    assert told.get(damage, "the bytes of deep/trace.json are not those that digests.json states") in fault.explanation


def test_a_raw_capture_without_digests_is_unverified_until_they_are_taken(populated: TraceLake) -> None:
    raw = receive(populated)
    (raw / "digests.json").unlink()
    (fault,) = faults(populated)
    assert (fault.kind, fault.path, fault.mendable) == ("unverified capture", raw, True)
    assert mend(populated, fault)
    assert faults(populated) == []
    flip(raw / "deep" / "trace.json")
    assert [one.kind for one in faults(populated)] == ["torn capture"]


@pytest.mark.parametrize("content", [b"", b"PAR1", b"x" * 5000], ids=["empty", "short", "foreign"])
def test_a_torn_file_is_a_fault_of_the_lake_and_not_of_who_asks(content: bytes, populated: TraceLake) -> None:
    file = file_of(populated, "kernels")
    file.write_bytes(content)
    asking: list[Callable[[], object]] = [
        lambda: populated.read("kernels"),
        lambda: populated.sql("SELECT * FROM kernels"),
    ]
    for reading in asking:
        with pytest.raises(LakeError, match=file.name) as caught:
            reading()
        assert "\n" not in str(caught.value)
        assert "aaco doctor" in str(caught.value)


def test_a_file_that_vanishes_while_it_is_opened_is_missing_not_torn(
    populated: TraceLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def vanish(source: Path, **_: object) -> pl.DataFrame:
        file_of(populated, "kernels").unlink()
        raise OSError("gone")

    monkeypatch.setattr(pl, "read_parquet", vanish)
    with pytest.raises(LakeError, match="published but missing"):
        populated.read("kernels", SESSION)


def test_a_file_that_no_manifest_publishes_is_found_and_removed(populated: TraceLake, snapshot: Snapshot) -> None:
    before = snapshot(populated.path)
    orphans = [
        populated.path / "kernels" / f"session_id={SESSION}" / "a-0.parquet",
        populated.path / "markers" / f"session_id={LATER}" / "a-0.parquet",
        populated.path / "verdicts" / "campaign_id=nightly" / "a-0.parquet",
    ]
    for orphan in orphans:
        orphan.parent.mkdir(parents=True, exist_ok=True)
        orphan.write_bytes(b"x")
    found = faults(populated)
    assert {fault.path for fault in found} == set(orphans)
    assert {(fault.kind, fault.mendable) for fault in found} == {("orphan file", True)}
    assert all(mend(populated, fault) for fault in found)
    for fault in faults(populated):  # the lock of the session that is not in the lake
        mend(populated, fault)
    assert faults(populated) == []
    assert {n: c for n, c in snapshot(populated.path).items() if c is not None} == {
        n: c for n, c in before.items() if c is not None
    }


def test_what_killed_writers_were_at_is_cleared_away_and_all_else_stays(
    populated: TraceLake, snapshot: Snapshot
) -> None:
    torn = populated.manifest_path(SESSION, "session")
    torn.write_bytes(torn.read_bytes()[:9])
    perhaps_published = populated.path / "kernels" / f"session_id={SESSION}" / "a-0.parquet"
    perhaps_published.write_bytes(b"x")
    living = populated.path / "kernels" / f"session_id={SESSION}" / f".tmp-{os.getpid()}-0"
    living.write_bytes(b"x")
    with populated.measuring("weekly"):
        before = snapshot(populated.path)
        for left in (
            populated.path / "verdicts" / "campaign_id=gone" / "a-0.parquet",
            populated.path / "verdicts" / "campaign_id=nightly" / f".tmp-{dead_process()}-0",
            populated.path / ".locks" / "gone.lock",
            populated.path / ".locks" / "runs" / "gone.measuring",
        ):
            left.parent.mkdir(parents=True, exist_ok=True)
            left.write_bytes(b"x")
        health.clear_away(populated)
        assert populated.is_measuring("weekly")
        kept = {name for name, content in snapshot(populated.path).items() if content is not None}
    assert kept == {name for name, content in before.items() if content is not None}
    assert perhaps_published.is_file() and living.is_file()


def test_whatever_lies_in_a_tables_folder_is_mended_or_not_called_mendable(populated: TraceLake) -> None:
    misnamed = populated.path / "kernels" / "session_id=misnamed"
    misnamed.mkdir()
    (misnamed / "a-0.parquet").write_bytes(b"x")
    (populated.path / "kernels" / f"session_id={SESSION}" / "folder").mkdir()
    for fault in faults(populated):
        assert mend(populated, fault) == fault.mendable
    assert not any(fault.mendable for fault in faults(populated))


def test_a_file_published_since_it_was_found_is_not_removed(
    populated: TraceLake, metrics: Metrics, snapshot: Snapshot
) -> None:
    file = file_of(populated, "session_metrics")
    fault = Fault("orphan file", file, "no manifest publishes it", mendable=True)
    before = snapshot(populated.path)
    assert mend(populated, fault) is False
    assert snapshot(populated.path) == before


def test_an_unfinished_write_is_removed_when_its_writer_is_dead_and_left_when_it_lives(populated: TraceLake) -> None:
    dead, living = f".tmp-{dead_process()}-0", f".tmp-{os.getpid()}-0"
    folders = [
        populated.path / "kernels" / f"session_id={SESSION}",
        populated.path / "verdicts" / "campaign_id=nightly",
        populated.path / "manifests",
    ]
    for folder in folders:
        for name in (dead, living, ".tmp-without-a-number"):
            (folder / name).write_bytes(b"x")
    for name in (dead, living):
        (populated.path / "raw" / name).mkdir(parents=True)
        (populated.path / "raw" / name / "a").write_bytes(b"x")
    found = faults(populated)
    expected = {folder / name for folder in folders for name in (dead, ".tmp-without-a-number")}
    assert {fault.path for fault in found} == expected | {populated.path / "raw" / dead}
    assert {(fault.kind, fault.mendable) for fault in found} == {("unfinished write", True)}
    assert all(mend(populated, fault) for fault in found)
    assert faults(populated) == []
    assert all((folder / living).exists() for folder in [*folders, populated.path / "raw"])


def test_an_empty_folder_of_a_table_is_removed_unless_a_writer_is_at_work(populated: TraceLake) -> None:
    empty = populated.path / "evidence" / f"session_id={SESSION}"
    empty.mkdir(parents=True)
    (populated.path / "evidence" / "session_id=of a user").mkdir()
    (fault,) = faults(populated)
    assert fault == Fault("empty folder", empty, "left by a writer that died", mendable=True)
    with populated.locked(SESSION, "session"):
        assert faults(populated) == []
    (empty / "begun meanwhile").touch()
    assert not mend(populated, fault)
    (empty / "begun meanwhile").unlink()
    assert mend(populated, fault)
    assert faults(populated) == []


def test_a_lock_of_a_session_that_is_not_there_is_stale_unless_someone_holds_it(populated: TraceLake) -> None:
    with populated.receive_raw(LATER):
        pass  # its capture is there, so its lock is not stale
    lock = populated.path / ".locks" / "20250103T000000Z-0000000c.lock"
    with exclusive_lock(lock, timeout_seconds=1, purpose="it"):
        assert faults(populated) == []
    (fault,) = faults(populated)
    assert (fault.kind, fault.path, fault.mendable) == ("stale lock", lock, True)
    with exclusive_lock(lock, timeout_seconds=1, purpose="it"):
        assert mend(populated, fault) is False
    assert mend(populated, fault) is True
    assert faults(populated) == []


def test_mending_never_removes_a_lock_that_someone_took_meanwhile(populated: TraceLake) -> None:
    lock = populated.path / ".locks" / "20250103T000000Z-0000000c.lock"
    lock.touch()
    (fault,) = faults(populated)
    with contextlib.ExitStack() as writer:
        writer.enter_context(exclusive_lock(lock, timeout_seconds=1, purpose="it"))
        assert mend(populated, fault) is False
        assert lock.exists()


def test_with_a_manifest_that_cannot_be_read_none_of_its_files_is_called_an_orphan(populated: TraceLake) -> None:
    manifest = populated.manifest_path(SESSION, "session")
    manifest.write_bytes(b"{")
    (fault,) = faults(populated)
    assert (fault.kind, fault.path, fault.mendable, fault.session) == ("unreadable manifest", manifest, True, SESSION)
    assert str(manifest) in fault.explanation
    assert populated.sessions() == [SESSION]
    reading: list[Callable[[], object]] = [
        lambda: list(populated.manifests("session")),
        lambda: populated.read("kernels"),
        lambda: populated.read("kernels", SESSION),
        lambda: populated.sql("SELECT * FROM kernels"),
        lambda: populated.progress(SESSION),
    ]
    for each in reading:
        with pytest.raises(LakeError, match=rf"{manifest.name}: not a manifest .*`aaco doctor --mend`"):
            each()
    with pytest.raises(LakeError, match="not a manifest"):
        mend(populated, Fault("orphan file", file := next((populated.path / "kernels").rglob("*.parquet")), "", True))
    assert file.exists()
    orphan = populated.path / "kernels" / f"session_id={LATER}" / "a-0.parquet"
    orphan.parent.mkdir()
    orphan.touch()
    assert {one.path for one in faults(populated)} == {manifest, orphan}


def publish(lake: TraceLake, metrics: Metrics, filled: Filled) -> None:
    lake.publish(SESSION, "a", {"session_metrics": metrics(1.0), "kernels": kernels(filled, "gemm")}, code_version="1")
    lake.publish(SESSION, "b_c", {"kernels": kernels(filled, "softmax"), "markers": filled("markers", {"name": []})})


@pytest.fixture
def rebuildable(lake: TraceLake, metrics: Metrics, filled: Filled) -> TraceLake:
    lake.expect(SESSION, ["a", "b_c", "d"])
    publish(lake, metrics, filled)
    return lake


def tear(lake: TraceLake) -> Path:
    path = lake.manifest_path(SESSION, "session")
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)
    return path


def test_what_is_published_is_found_again_and_every_stage_has_to_run_again(
    rebuildable: TraceLake, metrics: Metrics, filled: Filled, snapshot: Snapshot
) -> None:
    whole, before = rebuildable.manifest(SESSION), snapshot(rebuildable.path)
    path = tear(rebuildable)
    (fault,) = faults(rebuildable)
    assert (fault.path, fault.session) == (path, SESSION)
    assert mend(rebuildable, fault)
    found = rebuildable.manifest(SESSION)
    assert found.entries == tuple(entry for entry in whole.entries if entry.file)
    progress = rebuildable.progress(SESSION)
    assert [state.stage for state in progress.failed] == ["a", "b_c"]
    assert all("manifest was torn" in (state.failure or "") for state in progress.failed)
    assert (progress.published, progress.is_whole) == ((), False)
    assert faults(rebuildable) == []
    rebuildable.expect(SESSION, ["a", "b_c", "d"])
    publish(rebuildable, metrics, filled)
    assert snapshot(rebuildable.path) == before


def test_a_file_that_is_torn_or_anothers_is_not_taken(rebuildable: TraceLake) -> None:
    kept = [rebuildable.path / entry.file for entry in rebuildable.manifest(SESSION).of_table("kernels")]
    torn = file_of(rebuildable, "session_metrics")
    tear(rebuildable)
    torn.write_bytes(torn.read_bytes()[:-1] + b"?")
    for stranger in (f"iterations/session_id={SESSION}/{kept[0].name}", f"kernels/session_id={SESSION}/{torn.name}"):
        path = rebuildable.path / stranger
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(kept[0].read_bytes())
    assert {entry.file for entry in rebuild_manifest(rebuildable, SESSION).entries} == {
        path.relative_to(rebuildable.path).as_posix() for path in kept
    }


def test_of_two_files_of_a_table_none_is_taken(rebuildable: TraceLake, metrics: Metrics, filled: Filled) -> None:
    """The published one is unknown; the stage runs again."""
    first = file_of(rebuildable, "session_metrics")
    content = first.read_bytes()
    rebuildable.publish(SESSION, "a", {"session_metrics": metrics(2.0), "kernels": kernels(filled, "gemm")})
    first.write_bytes(content)
    tear(rebuildable)
    assert {(e.table, e.stage) for e in rebuild_manifest(rebuildable, SESSION).entries} == {
        ("kernels", "a"),
        ("kernels", "b_c"),
    }
    assert {fault.kind for fault in faults(rebuildable)} == {"orphan file"}


def test_a_manifest_that_is_whole_or_newer_is_left_alone(rebuildable: TraceLake) -> None:
    before = rebuildable.manifest(SESSION)
    assert rebuild_manifest(rebuildable, SESSION) == before
    path = rebuildable.manifest_path(SESSION, "session")
    document = {key: value for key, value in json.loads(path.read_bytes()).items() if key != "digest"}
    path.write_text(json.dumps({**document, "manifest_version": 99}))
    content = path.read_bytes()
    with pytest.raises(LakeError, match="newer"):
        rebuild_manifest(rebuildable, SESSION)
    (fault,) = faults(rebuildable)
    assert (fault.mendable, fault.session) == (False, None)
    assert path.read_bytes() == content


def test_a_campaign_is_rebuilt_too(lake: TraceLake, filled: Filled) -> None:
    lake.publish("nightly", "comparison", {"verdicts": filled("verdicts", {"metric": ["x"]})}, scope="campaign")
    entries = lake.manifest("nightly", "campaign").entries
    lake.manifest_path("nightly", "campaign").write_text("{")
    (fault,) = faults(lake)
    assert (fault.mendable, fault.session) == (True, None)
    assert mend(lake, fault)
    found = lake.manifest("nightly", "campaign")
    assert isinstance(found, Manifest)
    assert found.entries == entries
    assert lake.read("verdicts").height == 1
