"""A recording follows a process and all that it starts, says why it cannot, and leaves nothing behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from aaco_pipeline.analysis.delays.thread_states import thread_states
from aaco_pipeline.formats.native.kernel_plane.reading import read
from aaco_pipeline.resources.kernel_plane import recording
from aaco_pipeline.resources.kernel_plane.instances import NotPossible, find_tracefs, remove_stale
from aaco_pipeline.resources.kernel_plane.recording import KernelPlane, group_of, throttling_of
from aaco_pipeline.resources.telemetry import pid_namespace
from aaco_pipeline.resources.telemetry.pid_namespace import numbered_as_by_the_kernel

INSTANCES = Path("/sys/kernel/tracing/instances")
_WAITS = "import sys, threading, time\nsys.stdin.readline()\n" + (
    "threads = [threading.Thread(target=time.sleep, args=(0.02,)) for _ in range(2)]\n"
    "[one.start() for one in threads]\n[one.join() for one in threads]\n"
)


@pytest.fixture
def possible() -> Iterator[None]:
    """A host whose kernel can be asked; what a test leaves in tracefs is its failure, what others have there is not."""
    try:
        find_tracefs()
    except NotPossible as refusal:
        pytest.skip(f"the kernel's events cannot be recorded here: {refusal}")
    if not numbered_as_by_the_kernel():
        pytest.skip("the kernel's events cannot be recorded here: threads are numbered in a namespace of their own")
    remove_stale()
    yield
    assert [one for one in INSTANCES.iterdir() if one.name.startswith(f"aaco_{os.getpid()}_")] == []


def recorded(folder: Path) -> dict[str, Any]:
    """The document of a recording of a process with two threads that sleep for 20 ms."""
    waits = [sys.executable, "-c", _WAITS]
    with KernelPlane(folder) as plane, subprocess.Popen(waits, stdin=subprocess.PIPE) as process:
        plane.follow(process.pid, "latency")
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.close()
    document: dict[str, Any] = json.loads(json.dumps(plane.document()))
    return document


@pytest.mark.usefixtures("possible")
def test_threads_of_the_followed_process_and_who_had_the_cpus_are_recorded(tmp_path: Path) -> None:
    document = recorded(tmp_path)
    assert (document["state"], document["reason"]) == ("present", None)
    tables = read(document, tmp_path, document["clock"]["before"]["monotonic_ns"]).tables
    own = tables["kernel_threads"].drop_nulls("process_id")
    assert own.height == 3  # the process and its two threads
    sleeps = tables["kernel_events"].filter((pl.col("kind") == "syscall") & pl.col("name").str.contains("nanosleep"))
    assert sleeps.height == 2
    assert (sleeps.get_column("duration_ns") >= 20_000_000).all()
    assert (tables["kernel_events"].get_column("time_ns") >= 0).all()


@pytest.mark.usefixtures("possible")
def test_a_killed_recording_is_removed_by_the_next(tmp_path: Path) -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\n"
        "from aaco_pipeline.resources.kernel_plane.recording import KernelPlane\n"
        "with KernelPlane(Path(sys.argv[1])):\n    print('recording', flush=True)\n    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "recording\n"
        os.kill(process.pid, signal.SIGKILL)
    left = [one for one in INSTANCES.iterdir() if f"aaco_{process.pid}_" in one.name]
    assert len(left) == 2
    (tmp_path / "next").mkdir()
    with KernelPlane(tmp_path / "next") as plane:
        pass
    assert "removed what a killed run had left" in plane.document()["remarks"][0]
    assert not any(one.exists() for one in left)


@pytest.mark.usefixtures("possible")
def test_a_run_that_fails_leaves_neither_instances_nor_a_recording(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="failed"), KernelPlane(tmp_path) as plane:
        raise RuntimeError("the run failed")
    assert plane.document()["state"] == "absent"


@pytest.mark.usefixtures("possible")
def test_a_full_disk_is_one_clear_line_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    with KernelPlane(tmp_path) as plane:
        monkeypatch.setattr(os, "splice", full)
        time.sleep(0.3)
    assert "No space left on device" in plane.document()["reason"]
    assert not (tmp_path / "kernel_plane").exists()


@pytest.mark.usefixtures("possible")
@pytest.mark.parametrize(
    ("bound", "value", "reason"),
    [
        ("_MOST_BYTES", 1, "the recording holds 0 MiB"),
        ("_LEAST_FREE_BYTES", 1 << 62, "MiB are left on the disk"),
    ],
)
def test_a_recording_that_grows_too_large_ends_alone_and_says_since_when(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str, value: int, reason: str
) -> None:
    monkeypatch.setattr(recording, "PERIOD_NS", 20_000_000)
    monkeypatch.setattr(recording, bound, value)
    with KernelPlane(tmp_path) as plane:
        plane.follow(os.getpid(), "latency")
        own = [one for one in INSTANCES.iterdir() if one.name.startswith(f"aaco_{os.getpid()}_")]
        deadline = time.monotonic() + 30
        while any((one / "tracing_on").read_text() != "0\n" for one in own):
            assert time.monotonic() < deadline, "it goes on recording"
            time.sleep(0.01)
    document = plane.document()
    assert document["state"] == "present"
    assert reason in document["remarks"][-1]
    assert "nothing was recorded from" in document["remarks"][-1]


@pytest.mark.usefixtures("possible")
def test_a_recording_that_another_program_turns_off_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "PERIOD_NS", 20_000_000)
    with KernelPlane(tmp_path) as plane:
        plane.follow(os.getpid(), "latency")
        threads, switches = sorted(
            (one for one in INSTANCES.iterdir() if one.name.startswith(f"aaco_{os.getpid()}_")), reverse=True
        )
        (threads / "tracing_on").write_text("0")
        deadline = time.monotonic() + 30
        while (switches / "tracing_on").read_text() != "0\n":
            assert time.monotonic() < deadline, "half of it goes on recording"
            time.sleep(0.01)
    assert "another program has turned the recording off" in plane.document()["remarks"][-1]


@pytest.mark.usefixtures("possible")
def test_in_a_container_with_its_own_process_numbers_other_recordings_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = INSTANCES / f"aaco_{2**22 + 5}_1_threads"
    gone.mkdir()
    try:
        with monkeypatch.context() as inside:
            inside.setattr(pid_namespace, "_FIRST", 1)
            with KernelPlane(tmp_path, tools=()) as plane:
                assert gone.exists()
        assert "container" in plane.document()["reason"]
    finally:
        assert gone.name in remove_stale()


def test_where_it_cannot_be_done_the_run_goes_on_and_the_document_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused() -> Path:
        raise NotPossible("tracefs is not mounted, or not for this user", "run as root")

    monkeypatch.setattr(recording, "find_tracefs", refused)
    monkeypatch.setenv("PATH", str(tmp_path))
    with KernelPlane(tmp_path) as plane:
        plane.follow(os.getpid(), "latency")
    document = plane.document()
    assert (document["state"], document["fix"]) == ("absent", "run as root")
    assert document["reason"] == (
        "tracefs: tracefs is not mounted, or not for this user; perf: not installed; bpftrace: not installed"
    )
    assert list(tmp_path.iterdir()) == []


def test_where_tracefs_cannot_be_read_a_tool_records_who_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> Path:
        raise NotPossible("tracefs is not mounted, or not for this user", "run as root")

    monkeypatch.setattr(recording, "find_tracefs", refused)
    document = recorded(tmp_path)
    if document["state"] == "absent":
        pytest.skip(f"no tool can record here: {document['reason']}")
    assert any("tracefs is not mounted" in remark for remark in document["remarks"])
    found = read(document, tmp_path, 0)
    assert [one.status for one in found.evidence if one.item == "kernel plane"] == ["partial"]
    tables = found.tables
    own = tables["kernel_threads"].drop_nulls("process_id")
    assert own.height == 3  # the process and its two threads
    assert set(tables["kernel_events"].get_column("kind")) == {"switch", "waking"}
    events, threads, losses = (tables[name] for name in ("kernel_events", "kernel_threads", "kernel_losses"))
    away = thread_states(events, threads, losses, found.details["throttling"])
    sleeps = away.filter((pl.col("state") == "blocked") & (pl.col("end_ns") - pl.col("start_ns") >= 19_000_000))
    assert sleeps.get_column("thread_id").n_unique() >= 2
    assert sleeps.get_column("by_name").null_count() == sleeps.height, "who woke them is not recorded"


def test_a_groups_quota_is_counted_in_ns_of_either_version(tmp_path: Path) -> None:
    (tmp_path / "cpu.stat").write_text("nr_periods 5\nnr_throttled 3\nthrottled_time 250\n")
    assert throttling_of(tmp_path) == {"group": str(tmp_path), "throttled": 3, "throttled_ns": 250}
    (tmp_path / "cpu.stat").write_text("usage_usec 1\nnr_throttled 4\nthrottled_usec 7\n")
    assert throttling_of(tmp_path) == {"group": str(tmp_path), "throttled": 4, "throttled_ns": 7_000}
    (tmp_path / "cpu.stat").write_text("usage_usec 1\n")
    assert throttling_of(tmp_path) is None
    assert throttling_of(tmp_path / "gone") is None
    assert group_of(2**22 + 5) is None
