"""A recording follows a process and all that it starts, says why it cannot, and leaves nothing behind."""

import json
import os
import resource
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
from aaco_pipeline.formats.native.kernel_plane import read
from aaco_pipeline.resources.kernel_plane import page_reader, recording, tracefs
from aaco_pipeline.resources.kernel_plane.recording import KernelPlane
from aaco_pipeline.resources.kernel_plane.tracefs import Instance, find_tracefs, misleading, remove_stale
from aaco_pipeline.resources.telemetry.clocks import NotPossible, why_apart

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
    if (apart := why_apart()) is not None:
        pytest.skip(f"the kernel's events cannot be recorded here: {apart[0]}")
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
    # Python sleeps until a moment: who was kept from a CPU before the call has less of it left.
    assert (sleeps.get_column("duration_ns").fill_null(0) > 0).all()
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
    [("_MOST_PAGE_BYTES", 0, "the recording holds 0 MiB"), ("_LEAST_FREE_BYTES", 1 << 62, "MiB are left on the disk")],
)
def test_a_recording_that_grows_too_large_ends_alone_and_says_since_when(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str, value: int, reason: str
) -> None:
    monkeypatch.setattr(page_reader, "PERIOD_NS", 20_000_000)
    with KernelPlane(tmp_path) as plane:
        monkeypatch.setattr(page_reader, bound, value)
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


def no_tracefs() -> Path:
    raise NotPossible("tracefs is not mounted, or not for this user", "run as root")


def test_where_it_cannot_be_done_the_run_goes_on_and_the_document_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "find_tracefs", no_tracefs)
    monkeypatch.setenv("PATH", str(tmp_path))
    with KernelPlane(tmp_path) as plane:
        plane.follow(os.getpid(), "latency")
    document = plane.document()
    assert (document["state"], document["fix"]) == ("absent", "run as root")
    assert document["reason"] == (
        "tracefs is not mounted, or not for this user; perf: not installed; bpftrace: not installed"
    )
    assert list(tmp_path.iterdir()) == []


def test_where_tracefs_cannot_be_read_a_tool_records_who_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "find_tracefs", no_tracefs)
    document = recorded(tmp_path)
    if document["state"] == "absent":
        pytest.skip(f"no tool can record here: {document['reason']}")
    assert "tracefs is not mounted, or not for this user (run as root)" in document["remarks"]
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


@pytest.mark.parametrize(("cpus", "size"), [(2, 16_384), (32, 16_384), (128, 4_096), (384, 1_365), (4_096, 1_024)])
def test_buffers_of_all_cpus_are_a_gibibyte_at_most_but_no_smaller_than_one_that_is_of_use(
    cpus: int, size: int
) -> None:
    assert recording.buffer_kb(cpus) == size


@pytest.mark.usefixtures("possible")
def test_buffers_are_emptied_when_they_fill_however_seldom_anybody_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_reader, "PERIOD_NS", 3_600_000_000_000)
    monkeypatch.setattr(recording, "buffer_kb", lambda _: 512)
    storm = "import time\nfor _ in range(10):\n    [time.sleep(0.0001) for _ in range(1000)]\n    time.sleep(0.1)\n"
    overruns: list[int] = []
    # A loaded machine may keep the reader away from a CPU until a buffer is full; hardly three times in a row.
    while not overruns or (len(overruns) < 3 and overruns[-1]):
        (folder := tmp_path / str(len(overruns))).mkdir()
        with KernelPlane(folder) as plane, subprocess.Popen([sys.executable, "-S", "-c", storm]) as process:
            plane.follow(process.pid, "latency")
            process.wait()
        buffers = plane.document()["buffers"]
        assert max(one["bytes"] for one in buffers) > 512 << 10
        overruns.append(sum(one["stats"]["overrun"] for one in buffers))
    assert overruns[-1] == 0


def own_instances() -> list[Path]:
    return sorted(one for one in INSTANCES.iterdir() if one.name.startswith(f"aaco_{os.getpid()}_"))


@pytest.mark.usefixtures("possible")
def test_where_another_program_has_it_open_an_instance_stays_and_the_next_recording_is_whole(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "next").mkdir()
    with KernelPlane(tmp_path / "first") as plane:
        held = [(one / "trace").open() for one in own_instances()]
    remarks = plane.document()["remarks"]
    left = own_instances()
    try:
        assert [str(one) for one in left if any(str(one) in remark for remark in remarks)] == [str(one) for one in left]
        assert [(one / "tracing_on").read_text().strip() for one in left] == ["0", "0"]
        assert recorded(tmp_path / "next")["source"] == "tracefs"
    finally:
        for one in held:
            one.close()
        for path in left:
            path.rmdir()


@pytest.mark.usefixtures("possible")
def test_a_recording_that_another_program_turns_off_says_since_when(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_reader, "PERIOD_NS", 20_000_000)
    with KernelPlane(tmp_path) as plane:
        threads, switches = own_instances()
        (threads / "tracing_on").write_text("0")
        deadline = time.monotonic() + 30
        while (switches / "tracing_on").read_text() != "0\n":
            assert time.monotonic() < deadline, "the other instance goes on"
            time.sleep(0.01)
    (remark,) = plane.document()["remarks"]
    assert "another program turned the recording off: nothing was recorded from" in remark


@pytest.fixture
def second_tracer(possible: None) -> Iterator[Path]:
    """Another program's instance, which records this process's switches."""
    other = INSTANCES / f"beside_{os.getpid()}"
    other.mkdir()
    try:
        (other / "set_event_pid").write_text(str(os.getpid()))
        (other / "events/sched/sched_switch/enable").write_text("1")
        yield other
    finally:
        other.rmdir()


def test_a_second_tracer_is_not_disturbed_nor_disturbs(second_tracer: Path, tmp_path: Path) -> None:
    def told() -> dict[str, str]:
        asked = ("tracing_on", "trace_clock", "set_event_pid", "buffer_size_kb", "options/event-fork")
        events = ("events/sched/sched_switch/enable", "events/sched/sched_waking/enable")
        return {file: (second_tracer / file).read_text() for file in (*asked, *events)}

    def count() -> int:
        return sum(
            int(line.partition(":")[2])
            for cpu in (second_tracer / "per_cpu").iterdir()
            for line in (cpu / "stats").read_text().splitlines()
            if line.startswith("entries:")
        )

    settings, before = told(), count()
    document = recorded(tmp_path)
    assert told() == settings
    assert count() > before
    assert (document["state"], document["remarks"]) == ("present", [])
    found = read(document, tmp_path, 0)
    assert found.tables["kernel_threads"].drop_nulls("process_id").height == 3
    assert found.tables["kernel_losses"].height == 0


@pytest.mark.usefixtures("possible")
def test_one_who_does_not_see_whose_a_recording_is_leaves_it_alone(tmp_path: Path) -> None:
    """A container with a tracefs of the host sees no process of the host, and other starts in a time namespace."""
    code = "from aaco_pipeline.resources.kernel_plane import tracefs\nprint(tracefs.remove_stale())\n"
    with KernelPlane(tmp_path) as plane:
        for apart in (("--pid", "--fork", "--mount-proc"), ("--time", "--boottime", "1000")):
            asked = ["unshare", *apart, sys.executable, "-c", code]
            done = subprocess.run(asked, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                pytest.skip(f"no namespace can be made here: {done.stderr.strip()}")
            assert done.stdout == "[]\n"
        assert [(one / "tracing_on").read_text().strip() for one in own_instances()] == ["1", "1"]
    assert plane.document()["remarks"] == []


@pytest.mark.usefixtures("possible")
def test_an_instance_in_use_is_not_removed_whoever_is_taken_for_its_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with KernelPlane(tmp_path) as plane:
        monkeypatch.setattr(tracefs, "stale_of", lambda found: [one for one in found if one in own_instances()])
        assert remove_stale() == []
        assert [(one / "tracing_on").read_text().strip() for one in own_instances()] == ["1", "1"]
    assert plane.document()["remarks"] == []


@pytest.mark.usefixtures("possible")
def test_more_open_files_than_are_allowed_are_one_line_and_nothing_stays(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    spare = os.dup(0)
    os.close(spare)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (spare + 3, limits[1]))  # a pipe, and one buffer of the four or more
        with KernelPlane(tmp_path, tools=()) as plane:
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert plane.document()["state"] == "absent"
    assert "Too many open files" in plane.document()["reason"]
    assert "ulimit -n" in plane.document()["fix"]


@pytest.mark.parametrize(
    ("apart", "full", "reason"),
    [
        (("other clocks", "another way"), None, "other clocks"),
        (None, "less than 1,024 MiB are left on the disk", "MiB are left"),
    ],
)
def test_what_every_source_would_suffer_from_ends_it_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, apart: tuple[str, str] | None, full: str | None, reason: str
) -> None:
    monkeypatch.setattr(recording, "why_apart", lambda: apart)
    monkeypatch.setattr(recording, "why_full", lambda _: full)
    monkeypatch.setattr(recording, "SchedulerTrace", None)
    monkeypatch.setattr(recording, "find_tracefs", None)
    with KernelPlane(tmp_path) as plane:
        plane.follow(os.getpid(), "latency")
    document = plane.document()
    assert (document["state"], reason in document["reason"], bool(document["fix"])) == ("absent", True, True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("missing", "fix"), [("options/event-fork", "use Linux 4.7 or later"), ("trace_clock", "use Linux 4.7 or later")]
)
def test_a_kernel_without_what_is_needed_is_named_with_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str, fix: str
) -> None:
    (tmp_path / "tracefs/instances").mkdir(parents=True)
    monkeypatch.setattr(recording, "find_tracefs", lambda: tmp_path / "tracefs")

    def old(self: Instance, file: str, value: str) -> None:
        if file == missing:
            raise FileNotFoundError(2, "No such file or directory", str(self.path / file))

    monkeypatch.setattr(Instance, "set", old)
    with KernelPlane(tmp_path, tools=()) as plane:
        pass
    assert plane.document()["state"] == "absent"
    assert plane.document()["reason"].endswith(f"{missing}: No such file or directory")
    assert plane.document()["fix"] == fix
    assert list((tmp_path / "tracefs/instances").iterdir()) == []


@pytest.mark.parametrize(
    ("release", "is_asked_for"),
    [("6.2.0", True), ("6.18.44-fc", True), ("7.0.1", True), ("6.1.99-generic", False), ("5.14.0-503.el9", False)],
)
def test_the_end_of_faults_is_asked_for_where_the_kernel_tells_it(release: str, is_asked_for: bool) -> None:
    assert list(misleading(release)) == ([] if is_asked_for else ["kmem/rss_stat"])
