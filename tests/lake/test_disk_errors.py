"""A full, closed or missing disk leaves the old state, and one line reports it."""

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest

from aaco_pipeline.errors import LakeError, PassingLakeError
from aaco_pipeline.lake import on_disk, storage
from aaco_pipeline.lake.evidence import Evidence, evidence_frame
from aaco_pipeline.lake.files import exclusive_lock, lake_errors
from aaco_pipeline.lake.health import faults, mend
from aaco_pipeline.lake.manifest import Entry
from aaco_pipeline.lake.store import TraceLake
from tests.lake.published import SESSION, Metrics, kinds, values

PUBLISH_LARGE: Final = """
import resource, sys
import polars as pl
from aaco_pipeline.errors import LakeError, PassingLakeError
from aaco_pipeline.lake.evidence import Evidence, evidence_frame
from aaco_pipeline.lake.files import exclusive_lock, lake_errors
from aaco_pipeline.lake.store import TraceLake
limit = int(sys.argv[3])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
items = [Evidence(f"item {i * 7919 % 100003} of {i}", "present", rows=i * 104729) for i in range(int(sys.argv[4]))]
try:
    TraceLake(sys.argv[1]).publish(sys.argv[2], "a", {"evidence": evidence_frame("a", items)})
except LakeError as error:
    print(error, end="")
"""


def assert_refused_in_one_line(message: str) -> None:
    assert "check that the lake's disk is writable and has space" in message
    assert "\n" not in message


@pytest.mark.parametrize("limit", [1, 2000, 20_000])
def test_a_file_that_cannot_be_written_leaves_the_old_state(limit: int, lake: TraceLake, run_python: Any) -> None:
    lake.publish(SESSION, "a", {"evidence": evidence_frame("a", [Evidence("old", "present")])})
    before = lake.manifest(SESSION)
    message = run_python(PUBLISH_LARGE, lake.path, SESSION, limit, 20_000)
    assert_refused_in_one_line(message)
    assert "File too large" in message
    assert lake.manifest(SESSION) == before
    assert lake.read("evidence", SESSION).get_column("item").to_list() == ["old"]
    assert faults(lake) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount, umount = shutil.which("mount"), shutil.which("umount")
    if os.geteuid() != 0 or mount is None or umount is None:
        pytest.skip("mounting a small disk needs root and mount(8)")
    done = subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"mounting a small disk is not permitted here: {done.stderr.strip()}")
    yield folder
    subprocess.run([umount, str(folder)], check=True)


def test_a_full_disk_leaves_the_old_state_and_room_makes_it_work_again(small_disk: Path, run_python: Any) -> None:
    lake = TraceLake(small_disk / "lake")
    lake.publish(SESSION, "a", {"evidence": evidence_frame("a", [Evidence("old", "present")])})
    message = run_python(PUBLISH_LARGE, lake.path, SESSION, 0, 20_000)
    assert_refused_in_one_line(message)
    assert "No space left on device" in message
    assert lake.read("evidence", SESSION).get_column("item").to_list() == ["old"]
    assert faults(lake) == []
    lake.publish(SESSION, "a", {"evidence": evidence_frame("a", [Evidence("new", "present")])})
    assert lake.read("evidence", SESSION).get_column("item").to_list() == ["new"]


@pytest.mark.parametrize("name", ["sync_file", "sync_folder", "write_atomically"])
def test_an_error_of_the_disk_at_any_step_is_one_line_and_leaves_the_old_state(
    name: str, lake: TraceLake, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.publish(SESSION, "a", {"session_metrics": metrics(1.0)})

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(storage, name, fail)
        with pytest.raises(LakeError) as caught:
            lake.publish(SESSION, "a", {"session_metrics": metrics(2.0)})
    assert_refused_in_one_line(str(caught.value))
    assert ".lock" not in str(caught.value)
    assert values(lake) == [1.0]
    assert set(kinds(lake)) <= {"orphan file"}
    assert all(mend(lake, fault) for fault in faults(lake))
    assert faults(lake) == []


def test_an_error_that_polars_tells_as_a_text_is_the_system_s_and_names_the_file(
    lake: TraceLake, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = on_disk.write_parquet

    def write_where_no_folder_is(frame: pl.DataFrame, path: Path, metadata: Mapping[str, str]) -> None:
        path.parent.rmdir()
        real(frame, path, metadata)

    monkeypatch.setattr(on_disk, "write_parquet", write_where_no_folder_is)
    with pytest.raises(LakeError) as caught:
        lake.publish(SESSION, "a", {"session_metrics": metrics(1.0)})
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    assert str(lake.path / f"session_metrics/session_id={SESSION}/.tmp-") in str(caught.value)
    assert_refused_in_one_line(str(caught.value))


def test_a_lake_that_cannot_be_there_is_refused_in_one_line(tmp_path: Path, metrics: Metrics) -> None:
    (tmp_path / "file").write_text("x")
    lake = TraceLake(tmp_path / "file" / "lake")
    assert lake.sessions() == []
    with pytest.raises(LakeError) as caught:
        lake.publish(SESSION, "a", {"session_metrics": metrics(1.0)})
    assert_refused_in_one_line(str(caught.value))
    assert str(tmp_path / "file") in str(caught.value)
    with pytest.raises(LakeError, match="Not a directory"), lake.receive_raw(SESSION):
        raise AssertionError("a capture was received")
    assert (tmp_path / "file").read_text() == "x"


def test_a_manifest_that_is_no_file_is_refused_in_one_line(lake: TraceLake) -> None:
    (lake.path / "manifests" / f"{SESSION}.json").mkdir(parents=True)
    for doing in (
        lambda: list(lake.manifests("session")),
        lambda: lake.manifest(SESSION),
        lambda: lake.read("kernels"),
    ):
        with pytest.raises(LakeError, match="Is a directory"):
            doing()


def test_an_entry_names_the_file_by_stage_and_digest(lake: TraceLake, metrics: Metrics) -> None:
    (entry,) = lake.publish(SESSION, "stage", {"session_metrics": metrics(1.0)})
    assert isinstance(entry, Entry)
    assert entry.file == f"session_metrics/session_id={SESSION}/stage-{entry.sha256[:12]}.parquet"


@pytest.mark.parametrize(
    ("number", "passes"),
    [(errno.EIO, True), (errno.ENOSPC, True), (errno.ESTALE, True), (errno.EACCES, False), (errno.ENOTDIR, False)],
)
def test_an_error_that_may_pass_by_itself_says_so(number: int, passes: bool, tmp_path: Path) -> None:
    with pytest.raises(LakeError) as caught, lake_errors(tmp_path):
        raise OSError(number, os.strerror(number))
    assert isinstance(caught.value, PassingLakeError) is passes


def test_a_lock_that_is_held_for_too_long_may_become_free(tmp_path: Path) -> None:
    lock = tmp_path / "a.lock"
    with (
        exclusive_lock(lock, timeout_seconds=0, purpose="it"),
        pytest.raises(PassingLakeError, match="is locked by process"),
        exclusive_lock(lock, timeout_seconds=0, purpose="it"),
    ):
        pass
