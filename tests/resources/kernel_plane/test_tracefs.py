"""Instances of tracefs of our own: whose they are is in their name, and one whose process is gone is removed."""

import errno
import os
from pathlib import Path

import pytest

from aaco_pipeline.resources.kernel_plane import tracefs as instances
from aaco_pipeline.resources.kernel_plane.tracefs import Instance, find_tracefs, refused_by, remove_stale, stale_of
from aaco_pipeline.resources.telemetry.clocks import NotPossible


@pytest.fixture
def tracefs(tmp_path: Path) -> Path:
    """A folder like a tracefs, in which instances are ordinary folders."""
    (tmp_path / "instances").mkdir()
    return tmp_path


def test_an_instance_of_a_living_process_is_not_stale(tracefs: Path) -> None:
    own = Instance(tracefs, "threads")
    assert str(os.getpid()) in own.path.name
    assert stale_of([own.path]) == []


def test_what_is_gone_or_began_at_another_time_is_stale_and_others_instances_are_not() -> None:
    gone = Path(f"aaco_{2**22 + 5}_1_threads")
    number_again = Path(f"aaco_{os.getpid()}_1_switches")
    others = (Path("aaco_of_somebody"), Path("somebody_1_1_threads"))
    assert stale_of([gone, *others, number_again]) == [gone, number_again]


def test_what_is_stale_is_removed_but_not_by_who_does_not_see_all_processes(
    tracefs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tracefs / f"instances/aaco_{2**22 + 5}_1_threads"
    gone.mkdir()
    monkeypatch.setattr(instances, "_MOUNTS", (tracefs,))
    monkeypatch.setattr(instances, "why_apart", lambda: ("a namespace of its own", "another"))
    assert (remove_stale(), gone.exists()) == ([], True)
    monkeypatch.setattr(instances, "why_apart", lambda: None)
    assert (remove_stale(), gone.exists()) == ([gone.name], False)


def test_an_event_that_the_kernel_lacks_or_refuses_says_so(tracefs: Path) -> None:
    own = Instance(tracefs, "threads")
    assert own.enable("sched/none") == {"format": None, "reason": "this kernel does not have the event"}
    folder = own.path / "events/sched/some"
    folder.mkdir(parents=True)
    (folder / "format").write_text("ID: 1")
    (folder / "enable").mkdir()  # cannot be written to
    assert own.enable("sched/some") == {"format": None, "reason": "refused: Is a directory"}


def test_what_the_kernel_counted_is_read_as_numbers(tracefs: Path) -> None:
    own = Instance(tracefs, "threads")
    (own.path / "per_cpu/cpu3").mkdir(parents=True)
    (own.path / "per_cpu/cpu3/stats").write_text("entries: 5\noverrun: 7\noldest event ts: 12.5\n")
    assert (own.cpus(), own.stats(3)) == ([3], {"entries": 5, "overrun": 7})


def test_a_tracefs_that_is_closed_or_cannot_be_written_to_says_which(
    monkeypatch: pytest.MonkeyPatch, tracefs: Path
) -> None:
    monkeypatch.setattr(instances, "_MOUNTS", (tracefs,))
    monkeypatch.setattr(os, "access", lambda *_: False)
    told = {}
    for user in (0, 1000):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        with pytest.raises(NotPossible) as refused:
            find_tracefs()
        told[user] = (str(refused.value), refused.value.fix)
    assert told == {
        0: (f"{tracefs} is mounted read-only", f"mount -o remount,rw {tracefs}"),
        1000: (f"{tracefs} is not writable for this user", "run as root"),
    }

    def closed(_: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_dir", closed)
    with pytest.raises(NotPossible, match="is not open to this user") as refused:
        find_tracefs()
    assert refused.value.fix == "run as root"


@pytest.mark.parametrize(
    ("number", "user", "fix"),
    [
        (errno.EPERM, 0, "boot the kernel without lockdown"),
        (errno.EPERM, 1000, "run as root"),
        (errno.ENOMEM, 0, "free memory, and record again"),
        (errno.EIO, 0, "record again"),
    ],
)
def test_what_the_kernel_refuses_has_a_line_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, number: int, user: int, fix: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    refusal = refused_by(OSError(number, os.strerror(number), "trace_clock"))
    assert (str(refusal), refusal.fix) == (f"trace_clock: {os.strerror(number)}", fix)


def test_a_setting_that_is_refused_is_named(tracefs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = Instance(tracefs, "threads")
    (own.path / "trace_clock").touch()

    def refused(*_: object) -> int:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "write", refused)
    with pytest.raises(OSError, match="trace_clock"):
        own.set("trace_clock", "mono")


def test_without_a_tracefs_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(instances, "_MOUNTS", (tmp_path / "none",))
    with pytest.raises(NotPossible) as refused:
        find_tracefs()
    assert refused.value.fix in ("run as root", "mount -t tracefs nodev /sys/kernel/tracing")
