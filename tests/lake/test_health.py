"""What is torn, orphaned or stale in a lake is found, and only what nothing needs is removed."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake import health
from aaco_pipeline.lake.files import exclusive_lock, lock_is_free
from aaco_pipeline.lake.health import Fault, faults, mend
from aaco_pipeline.lake.store import TraceLake
from tests.lake.published import LATER, SESSION, Filled, Metrics, Snapshot, dead_process, file_of, kernels


@pytest.fixture
def populated(lake: TraceLake, metrics: Metrics, filled: Filled) -> TraceLake:
    lake.publish(SESSION, "a", {"session_metrics": metrics(1.0, 2.0), "kernels": kernels(filled, "gemm")})
    lake.publish("nightly", "comparison", {"verdicts": filled("verdicts", {"metric": ["x"]})}, scope="campaign")
    return lake


def test_one_flipped_byte_is_found_and_only_a_stage_can_mend_it(populated: TraceLake, snapshot: Snapshot) -> None:
    file = file_of(populated, "kernels")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    explanation = f"table kernels of session {SESSION}; materialize stage a again"
    fault = Fault("torn file", file, explanation, mendable=False)
    assert faults(populated) == [fault]
    before = snapshot(populated.path)
    assert mend(populated, fault) is False
    assert snapshot(populated.path) == before


def test_a_missing_file_is_found_and_only_a_stage_can_mend_it(populated: TraceLake) -> None:
    file = file_of(populated, "kernels")
    file.unlink()
    explanation = f"table kernels of session {SESSION}; materialize stage a again"
    assert faults(populated) == [Fault("missing file", file, explanation, mendable=False)]
    with pytest.raises(LakeError, match=rf"{file.name}: published but missing; `aaco doctor`"):
        populated.read("kernels", SESSION)
    with pytest.raises(LakeError, match=rf"{file.name}.*`aaco doctor`"):
        populated.sql("SELECT * FROM kernels")


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


def test_mending_never_removes_a_lock_that_someone_took_meanwhile(
    populated: TraceLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = populated.path / ".locks" / "20250103T000000Z-0000000c.lock"
    lock.touch()
    (fault,) = faults(populated)
    with contextlib.ExitStack() as writer:
        taken: list[Path] = []

        def free_and_then_taken(path: Path) -> bool:
            free = lock_is_free(path)
            writer.enter_context(exclusive_lock(path, timeout_seconds=1, purpose="it"))
            taken.append(path)
            return free

        monkeypatch.setattr(health, "lock_is_free", free_and_then_taken)
        mend(populated, fault)
        assert lock.exists() or not taken


def test_with_a_manifest_that_cannot_be_read_no_file_is_called_an_orphan(populated: TraceLake) -> None:
    manifest = populated.path / "manifests" / f"{SESSION}.json"
    manifest.write_bytes(b"{")
    (fault,) = faults(populated)
    assert (fault.kind, fault.path, fault.mendable) == ("unreadable manifest", manifest, False)
    assert str(manifest) in fault.explanation
    assert mend(populated, fault) is False
    with pytest.raises(LakeError, match="not a manifest"):
        populated.sessions()
    with pytest.raises(LakeError, match="not a manifest"):
        mend(populated, Fault("orphan file", file := next((populated.path / "kernels").rglob("*.parquet")), "", True))
    assert file.exists()
