"""Files are replaced completely or not at all, locks last as long as their holder, and temporaries name their writer.

The lake's use of them is tested in `test_store`.
"""

import errno
import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake import files
from aaco_pipeline.lake.files import (
    STALE_DAYS,
    TEMPORARY_PREFIX,
    exclusive_lock,
    lake_errors,
    lock_is_free,
    make_folder,
    temporary_beside,
    write_atomically,
    writer_is_gone,
)
from tests.lake.published import dead_process

HOLD_A_LOCK = """
import sys
from pathlib import Path
from typing import Any
from aaco_pipeline.lake.files import exclusive_lock
with exclusive_lock(Path(sys.argv[1]), timeout_seconds=5, purpose="it"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_write_makes_the_folder_and_replaces_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    for content in (b"old", b"new, and longer", b""):
        write_atomically(path, content)
        assert path.read_bytes() == content
    assert [p.name for p in path.parent.iterdir()] == ["b"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_bytes_and_no_temporary_file(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "b"
    write_atomically(path, b"old")

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os if step == "fsync" else Path, step, fail)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["b"]


def test_a_write_is_synced_before_it_takes_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []

    def recorded(step: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def note_and_do(*arguments: Any) -> Any:
            steps.append(step)
            return real(*arguments)

        return note_and_do

    monkeypatch.setattr(os, "fsync", recorded("fsync", os.fsync))
    monkeypatch.setattr(Path, "replace", recorded("replace", Path.replace))
    write_atomically(tmp_path / "b", b"new")
    assert steps == ["fsync", "replace", "fsync"]


def test_every_new_folder_is_synced_into_the_one_above_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(files, "sync_folder", synced.append)
    make_folder(tmp_path / "lake" / "manifests")
    assert synced == [tmp_path, tmp_path / "lake"]
    make_folder(tmp_path / "lake" / "manifests")
    assert len(synced) == 2
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match="file"):
        make_folder(tmp_path / "file" / "lake")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "asked: No space left on device; check"),
        (OSError(errno.EACCES, "Permission denied", "named"), "named: Permission denied; check"),
        (OSError("only words"), "asked: only words; check"),
    ],
)
def test_an_error_of_the_operating_system_becomes_one_line_that_names_the_file(error: OSError, message: str) -> None:
    with pytest.raises(LakeError) as caught, lake_errors(Path("asked")):
        raise error
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is error


def test_a_lock_excludes_another_process_until_it_ends(
    tmp_path: Path, start_python: Callable[..., "subprocess.Popen[str]"]
) -> None:
    path = tmp_path / "locks" / "x.lock"
    with start_python(HOLD_A_LOCK, path) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert not lock_is_free(path)
        with (
            pytest.raises(
                LakeError, match=rf"x\.lock: session 7 is locked by process {holder.pid} for more than 0\.1 s"
            ),
            exclusive_lock(path, timeout_seconds=0.1, purpose="session 7"),
        ):
            raise AssertionError("the lock was taken twice")
        holder.kill()
        holder.wait()
        with exclusive_lock(path, timeout_seconds=1, purpose="session 7"):
            assert path.read_text() == f"{os.getpid()}\n"
            assert not lock_is_free(path)
    assert lock_is_free(path)


def test_a_lock_whose_holder_wrote_no_name_is_refused_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    with exclusive_lock(path, timeout_seconds=1, purpose="it"):
        path.write_text("")
        with (
            pytest.raises(LakeError, match="locked by process unknown"),
            exclusive_lock(path, timeout_seconds=0, purpose="it"),
        ):
            raise AssertionError("the lock was taken twice")


def test_a_lock_is_free_again_after_an_error_inside(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    with pytest.raises(ZeroDivisionError), exclusive_lock(path, timeout_seconds=1, purpose="it"):
        _ = 1 / 0
    assert lock_is_free(path)


def test_an_error_of_the_disk_at_closing_a_lock_is_none_of_what_was_done_under_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, close = tmp_path / "a.lock", os.close

    def fail(descriptor: int) -> None:
        close(descriptor)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, "close", fail)
        with exclusive_lock(lock, timeout_seconds=0, purpose="it"):
            done = True
        assert lock_is_free(lock)
    assert done


@pytest.mark.parametrize("write", [files.sync_file, lambda path: write_atomically(path, b"new")])
def test_an_error_of_an_open_file_names_the_file(
    write: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path := tmp_path / "b").write_bytes(b"old")

    def fail(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match=f"No space left on device: '{path}'"):
        write(path)


def test_who_waits_for_a_lock_file_that_is_removed_does_not_hold_the_removed_one(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    entered = threading.Event()
    leave = threading.Event()

    def wait_for_the_lock() -> None:
        with exclusive_lock(path, timeout_seconds=10, purpose="it"):
            entered.set()
            leave.wait(10)

    waiter = threading.Thread(target=wait_for_the_lock)
    with exclusive_lock(path, timeout_seconds=1, purpose="it"):
        waiter.start()
        time.sleep(0.1)
        assert not entered.is_set()
        path.unlink()
    assert entered.wait(10)
    assert path.exists()
    assert not lock_is_free(path)
    leave.set()
    waiter.join()


def test_a_lock_file_removed_between_opening_and_locking_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.lock"
    opened = os.open
    removed: list[Path] = []

    def open_and_lose(*arguments: Any) -> int:
        descriptor = opened(*arguments)
        if not removed:
            removed.append(path)
            path.unlink()
        return descriptor

    monkeypatch.setattr(os, "open", open_and_lose)
    with exclusive_lock(path, timeout_seconds=1, purpose="it"):
        assert path.exists()
        assert not lock_is_free(path)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_working_locks_is_said_to_be_one_and_no_descriptor_leaks(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", refuse)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with (
        pytest.raises(LakeError, match=r"x: this file system has no working locks \(.*\).*; put the lake on"),
        exclusive_lock(tmp_path / "x", timeout_seconds=1, purpose="it"),
    ):
        raise AssertionError("the lock was taken")
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def of_process(tmp_path: Path, process: int) -> Path:
    """A temporary as that process of this host would name it."""
    host, boot, _, chance = temporary_beside(tmp_path / "x").name.removeprefix(TEMPORARY_PREFIX).split("-")
    made = tmp_path / f"{TEMPORARY_PREFIX}{host}-{boot}-{process}-{chance}"
    made.touch()
    return made


def unchanged_for(path: Path, days: float) -> None:
    then = time.time() - days * 86_400
    os.utime(path, (then, then))


def test_a_temporary_name_says_who_writes_it_and_never_repeats(tmp_path: Path) -> None:
    names = {temporary_beside(tmp_path / "x") for _ in range(100)}
    assert len(names) == 100
    assert all(name.parent == tmp_path and f"-{os.getpid()}-" in name.name for name in names)
    assert all(name.name.startswith(TEMPORARY_PREFIX) for name in names)


def test_a_writer_of_this_host_is_gone_when_its_process_is(tmp_path: Path) -> None:
    assert not writer_is_gone(of_process(tmp_path, os.getpid()))
    assert writer_is_gone(of_process(tmp_path, dead_process()))
    for earlier in (tmp_path / f".tmp-{os.getpid()}-0a", tmp_path / f".tmp-{dead_process()}-0a"):
        assert writer_is_gone(earlier) == (str(os.getpid()) not in earlier.name)


def test_a_writer_of_an_earlier_boot_is_gone_whatever_runs_under_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = of_process(tmp_path, os.getpid())
    monkeypatch.setattr(files, "_boot", lambda: "0" * 8)
    assert writer_is_gone(made)


def test_a_writer_of_another_host_is_never_looked_for_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [of_process(tmp_path, process) for process in (os.getpid(), dead_process())]
    folder = tmp_path / f"{made[1].name}0"
    folder.mkdir()
    (folder / "file").touch()
    unchanged_for(folder, STALE_DAYS + 1)  # what is in it has changed
    monkeypatch.setattr(files, "_host", lambda: "0" * 8)
    assert not any(map(writer_is_gone, [*made, folder]))
    for path in (*made, folder / "file"):
        unchanged_for(path, STALE_DAYS + 0.1)
    assert all(map(writer_is_gone, [*made, folder]))


def test_what_no_writer_names_so_has_no_writer(tmp_path: Path) -> None:
    assert writer_is_gone(tmp_path / ".tmp-without-a-number")
