"""One slot per host: who holds it, who waits, and that a dead holder never keeps it.

Following what a measured process prints: whole lines, nothing of an endless one, and never past the deadline.
"""

import json
import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from aaco_pipeline.errors import UnavailableError
from aaco_pipeline.resources.measure import measurement_slot as slots
from aaco_pipeline.resources.measure.measurement_slot import (
    follow,
    measurement_slot,
    own_container,
    slot_is_free,
    slot_path,
)

HOLD: Final = """
import sys, time
from pathlib import Path
from aaco_pipeline.resources.measure.measurement_slot import measurement_slot
with measurement_slot(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""
#: Holds the slot, lets a child inherit it, and tells the child's number.
HOLD_WITH_CHILD: Final = """
import subprocess, sys, time
from pathlib import Path
from aaco_pipeline.resources.measure.measurement_slot import measurement_slot
with measurement_slot(Path(sys.argv[1])) as descriptor:
    child = subprocess.Popen(["sleep", "60"], pass_fds=(descriptor,))
    print(child.pid, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "slot.lock"


def holder(code: str, path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)


@pytest.fixture
def held(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the slot."""
    with holder(HOLD, path) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def free_within(seconds: float, path: Path) -> bool:
    deadline = time.monotonic() + seconds
    while not slot_is_free(path):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def test_the_slot_is_one_file_for_all_processes_of_the_host_whatever_their_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code = "from aaco_pipeline.resources.measure import measurement_slot as slot; print(*slot.PLACES, slot.slot_path())"
    environment = {**os.environ, "TMPDIR": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    *places, path = said.stdout.split()
    assert places == ["/run/lock", "/dev/shm"]
    assert path in [f"{place}/aaco-measurement.lock" for place in places]


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Stand for /run/lock and /dev/shm; only the second is there."""
    folders = tmp_path / "run_lock", tmp_path / "dev_shm"
    folders[1].mkdir()
    monkeypatch.setattr(slots, "PLACES", folders)
    return folders


def test_a_missing_first_place_leaves_the_lock_to_the_second_also_for_later_processes(
    places: tuple[Path, Path],
) -> None:
    """Whoever may write to more places than the holder must not find the slot free."""
    with measurement_slot():
        assert [*places[1].iterdir()] == [slot_path()]
        assert not slot_is_free()
    with measurement_slot():
        places[0].mkdir()
        assert not slot_is_free()
        assert slot_path().parent == places[1]


def test_looking_whether_the_slot_is_free_leaves_nothing_behind(places: tuple[Path, Path]) -> None:
    assert slot_is_free()
    assert not [*places[1].iterdir()]


def test_where_no_place_takes_a_lock_each_is_named_with_its_reason(places: tuple[Path, Path]) -> None:
    places[1].rmdir()
    with pytest.raises(UnavailableError) as caught, measurement_slot():
        pass
    told = str(caught.value)
    assert all(f"{place}/aaco-measurement.lock: No such file or directory" in told for place in places)
    assert "\n" not in told


def test_a_lock_that_was_removed_keeps_nobody_apart_and_is_made_anew(path: Path, held: subprocess.Popen[str]) -> None:
    def removed(line: str) -> None:
        path.unlink()
        held.kill()

    with measurement_slot(path, on_wait=removed):
        assert path.exists()
        assert not slot_is_free(path)


def test_a_lock_left_unfinished_by_its_maker_is_finished(path: Path) -> None:
    path.touch(0o600)
    assert slot_is_free(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666


#: Takes the slot as nobody.
HOLD_AS_NOBODY: Final = """
import os, sys
from pathlib import Path
from aaco_pipeline.resources.measure.measurement_slot import measurement_slot
os.setgid(65534)
os.setuid(65534)
with measurement_slot(Path(sys.argv[1])):
    print("held")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_takes_the_slot_that_root_made() -> None:
    """In a folder like /run/lock, where the kernel may let nobody open another one's file with O_CREAT."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        Path(name).chmod(0o1777)
        with measurement_slot(Path(name) / "slot.lock"):
            pass
        with holder(HOLD_AS_NOBODY, Path(name) / "slot.lock") as other:
            assert other.communicate(timeout=30)[0] == "held\n"


@pytest.mark.parametrize(
    ("kind", "namespace", "expected"),
    [
        *(("docker", 4026531836, "docker"), ("none", 4026531836, None), (None, 4026531836, None)),
        ("none", 4026532500, "own process numbers"),
    ],
)
def test_a_container_is_known_by_the_hosts_facts_or_its_process_numbers(
    kind: str | None, namespace: int, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "readlink", lambda _: Path(f"pid:[{namespace}]"))
    assert own_container(kind) == expected


def test_the_slot_is_taken_while_it_is_held_and_free_after_an_error(path: Path) -> None:
    assert slot_is_free(path)
    with measurement_slot(path):
        assert not slot_is_free(path)
    assert slot_is_free(path)
    with pytest.raises(ZeroDivisionError), measurement_slot(path):
        raise ZeroDivisionError
    assert slot_is_free(path)


def test_a_second_holder_waits_and_is_informed_once(path: Path, held: subprocess.Popen[str]) -> None:
    waits: list[str] = []
    begun = time.monotonic()
    threading.Timer(0.5, held.kill).start()
    with measurement_slot(path, on_wait=waits.append):
        assert time.monotonic() - begun >= 0.4
    (line,) = waits
    assert re.fullmatch(
        rf"waiting for the measurement slot: process {held.pid} of \S+ \(`-c .*`\) is measuring since .{{19}} UTC", line
    )


def test_waiting_is_reported_again_and_again_by_log_and_by_screen(
    path: Path, held: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "_EVERY_SECONDS", 0.0)
    logged: list[str] = []
    shown: list[str] = []

    def show(line: str) -> None:
        shown.append(line)
        if len(shown) == 3:
            held.kill()

    with slots.slot_patience(None, show), measurement_slot(path, on_wait=logged.append):
        assert logged == shown
    with slots.slot_patience(None, shown.append), measurement_slot(path, on_wait=shown.append):
        assert len(shown) == len(logged)  # and nobody waits now


def test_patience_ends_in_a_line_that_names_the_holder(path: Path, held: subprocess.Popen[str]) -> None:
    shown: list[str] = []
    with (
        pytest.raises(UnavailableError, match=rf"not free within 0\.3 s: process {held.pid} of .*--wait") as caught,
        slots.slot_patience(0.3, shown.append),
        measurement_slot(path, on_wait=shown.append),
    ):
        pytest.fail("the slot is taken")
    assert (caught.value.exit_code, len(shown)) == (4, 1)
    assert not slot_is_free(path)


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"\xff\x00nonsense",
        b"[" * 5_000,
        b'{"pid": 1, "since": 0, "command": "of another process"}',
        b'{"pid": PID, "since": 1e30, "command": "x"}',
        b'{"pid": PID, "since": "\\u001b[2J", "command": 3}',
    ],
)
def test_a_record_that_is_not_the_holders_says_nothing(path: Path, held: subprocess.Popen[str], record: bytes) -> None:
    path.write_bytes(record.replace(b"PID", str(held.pid).encode()))
    with path.open("rb") as file:
        assert re.fullmatch(rf"process {held.pid} of \S+ is measuring", slots.holder_of(file.fileno()))


def test_what_others_write_into_the_lock_is_shown_harmless_and_short(path: Path, held: subprocess.Popen[str]) -> None:
    record = {"pid": held.pid, "since": 0, "command": "\x1b[2J\u202e\n" + 500 * "x"}
    path.write_text(json.dumps(record))
    with path.open("rb") as file:
        words = slots.holder_of(file.fileno())
    assert words.isascii() and words.isprintable() and len(words) < 200


def test_a_holder_that_has_died_is_not_named_as_measuring(path: Path) -> None:
    with holder(HOLD_WITH_CHILD, path) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        process.kill()
        process.wait()
        with path.open("rb") as file:
            words = slots.holder_of(file.fileno())
        os.kill(child, signal.SIGKILL)
    assert words == f"process {process.pid} has ended, and what it started is still measuring"


def test_nobody_waits_for_a_free_slot(path: Path) -> None:
    with measurement_slot(path, on_wait=pytest.fail):
        pass


def test_a_holder_that_is_killed_outright_frees_the_slot_at_once(path: Path, held: subprocess.Popen[str]) -> None:
    assert not slot_is_free(path)
    held.send_signal(signal.SIGKILL)
    held.wait(timeout=10)
    assert slot_is_free(path)


def test_the_measured_child_keeps_the_slot_after_its_parent_was_killed(path: Path) -> None:
    with holder(HOLD_WITH_CHILD, path) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            process.kill()
            process.wait(timeout=10)
            assert not slot_is_free(path)
        finally:
            os.kill(child, signal.SIGKILL)
    assert free_within(5, path)


def test_a_process_that_was_not_given_the_slot_does_not_keep_it(path: Path) -> None:
    with measurement_slot(path):
        other = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        assert slot_is_free(path)
    finally:
        other.kill()
        other.wait(timeout=10)


def test_every_user_of_the_host_can_open_the_lock_whatever_the_mask(path: Path) -> None:
    before = os.umask(0o077)
    try:
        with measurement_slot(path):
            pass
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666


def test_a_lock_that_only_may_be_read_is_a_lock_all_the_same(path: Path) -> None:
    path.touch(0o444)
    with measurement_slot(path):
        assert not slot_is_free(path)


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_at_the_locks_place_is_refused_and_not_followed(exists: bool, path: Path, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    if exists:
        target.touch()
    path.symlink_to(target)
    with pytest.raises(UnavailableError, match=r"slot\.lock: the measurement lock cannot be opened") as caught:
        slot_is_free(path)
    assert "\n" not in str(caught.value)
    with pytest.raises(UnavailableError), measurement_slot(path):
        pass
    assert target.exists() == exists


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"nowhere/slot\.lock"), measurement_slot(tmp_path / "nowhere/slot.lock"):
        pass


def test_a_pipe_at_the_locks_place_does_not_hang_the_measurement(path: Path) -> None:
    """Anybody may put anything into the shared folder; opening a pipe waits for its other end."""
    os.mkfifo(path)
    slot = "aaco_pipeline.resources.measure.measurement_slot"
    code = f"import sys; from pathlib import Path; from {slot} import slot_is_free; slot_is_free(Path(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], timeout=5, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 or "UnavailableError" in done.stderr


def test_the_lock_is_opened_again_when_it_vanishes_between_two_looks(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process makes the file between our finding none and our making it."""
    real_open = os.open
    looks: list[int] = []

    def racing(file: Path, flags: int, mode: int = 0o777) -> int:
        looks.append(flags)
        if len(looks) == 1:
            os.close(real_open(path, os.O_CREAT | os.O_WRONLY, 0o666))
            raise FileNotFoundError
        return real_open(file, flags, mode)

    monkeypatch.setattr(os, "open", racing)
    with measurement_slot(path):
        assert len(looks) == 3


def test_lines_come_whole_however_they_were_written() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"first\nsec")
    os.write(writing, b"ond\nunfinished")
    os.close(writing)
    taken: list[bytes] = []
    with os.fdopen(reading, "rb") as stream:
        assert follow(stream, time.monotonic() + 60, taken.append)
    assert taken == [b"first", b"second"]


def test_a_stream_that_stays_open_is_left_at_the_deadline() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"begun\n")
    taken: list[bytes] = []
    with os.fdopen(reading, "rb") as stream, os.fdopen(writing, "wb"):
        assert not follow(stream, time.monotonic() + 0.05, taken.append)
    assert taken == [b"begun"]


def test_of_a_line_without_end_only_the_end_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"x" * 9000 + b"y\n")
    os.close(writing)
    read = os.read
    monkeypatch.setattr(os, "read", lambda descriptor, size: read(descriptor, 3000))
    taken: list[bytes] = []
    with os.fdopen(reading, "rb") as stream:
        assert follow(stream, time.monotonic() + 60, taken.append)
    assert taken == [b"x" * 4096 + b"y"]
