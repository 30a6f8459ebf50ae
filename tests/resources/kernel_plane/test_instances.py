"""Instances of tracefs of our own: whose they are is in their name, and one whose process is gone is removed."""

import os
from pathlib import Path

import pytest

from aaco_pipeline.resources.kernel_plane import instances
from aaco_pipeline.resources.kernel_plane.instances import Instance, NotPossible, find_tracefs, stale_of


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


def test_without_a_tracefs_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(instances, "_MOUNTS", (tmp_path / "none",))
    with pytest.raises(NotPossible) as refused:
        find_tracefs()
    assert refused.value.fix in ("run as root", "mount -t tracefs nodev /sys/kernel/tracing")
