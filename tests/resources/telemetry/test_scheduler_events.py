"""The scheduler trace: it records what the kernel did, starts nothing while timing, and never fails a run."""

import json
import os
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest

from aaco_pipeline.formats.native import scheduler
from aaco_pipeline.resources.telemetry import clocks, scheduler_events
from aaco_pipeline.resources.telemetry.clocks import which_clock
from aaco_pipeline.resources.telemetry.scheduler_events import SchedulerTrace

#: Sleeps five times and says which thread it was, when it began and ended, and how long it waited for a CPU meanwhile.
SLEEPING: Final = """
import os, time
waited = lambda: int(open("/proc/self/schedstat").read().split()[1])
begun, before, sleeps = time.monotonic_ns(), waited(), []
for _ in range(5):
    sleeps.append(time.monotonic_ns())
    time.sleep(0.01)
after, ended = waited(), time.monotonic_ns()
print(os.getpid(), begun, ended, after - before, *sleeps)
"""


def fake_tool(folder: Path, name: str, script: str, *, python: bool = False) -> None:
    shell = f'#!/bin/sh\nif [ "$1" = --version ]; then echo {name} v9.9.9; exit 0; fi\n{script}\n'
    (folder / name).write_text(f"#!{sys.executable}\n{script}" if python else shell)
    (folder / name).chmod(0o755)


@pytest.fixture
def bin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder in which tools are found, besides those of the shell."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setattr(shutil, "which", lambda name: str(folder / name) if (folder / name).exists() else None)
    monkeypatch.setattr(scheduler_events, "why_apart", lambda: None)
    return folder


@pytest.mark.parametrize("tool", ["bpftrace", "perf"])
def test_a_real_trace_finds_every_sleep_of_the_measured_process(tool: str, tmp_path: Path) -> None:
    with SchedulerTrace(tmp_path, [tool]) as trace:
        if trace.recording:
            done = subprocess.run([sys.executable, "-c", SLEEPING], capture_output=True, text=True, check=True)
    document = json.loads(json.dumps(trace.document()))
    if document["state"] != "present":
        pytest.skip(f"{document['reason']} ({document['fix']})")
    if document["lost"]:
        pytest.skip(f"{tool} says that it lost {document['lost']} events on this machine: not every sleep can be there")
    pid, begun, ended, waited, *sleeps = map(int, done.stdout.split())
    reading = scheduler.read(document, scheduler.event_lines(tmp_path, document["file"]), [pid], begun)
    events = reading.tables["scheduler_events"]
    slack = int(document["clock"]["uncertainty_ns"]) + 1_000_000  # the tool's clock is known no better than that
    within = events.filter(events["time_ns"].is_between(-slack, ended - begun + slack))
    unknown = within.filter((within["kind"] == "off_cpu") & within["duration_ns"].is_null()).height
    (said,) = (item for item in reading.evidence if item.item == "scheduler events")
    of_all = events.filter((events["kind"] == "off_cpu") & events["duration_ns"].is_null())
    # Switches that the trace lost on a busy machine leave no row to count.
    assert said.status in (("partial",) if of_all.height else ("partial", "present")), said
    # Python sleeps until a moment: what it waits for a CPU before it sleeps is sleep that it has no more.
    for start, until in pairwise([*sleeps, ended]):
        meanwhile = within.filter(within["time_ns"].is_between(start - begun - slack, until - begun + slack))
        away = meanwhile.filter(meanwhile["kind"] == "off_cpu")
        assert away.height, f"{meanwhile.rows()}; {document}"
        late = meanwhile.filter(meanwhile["kind"] == "run_delay")
        if not unknown and not late["duration_ns"].null_count():
            assert sum(away["duration_ns"]) + sum(late["duration_ns"]) > 9_900_000, f"{meanwhile.rows()}; {document}"
    assert set(events["thread_id"]) == {pid}
    delays = within.filter(within["kind"] == "run_delay")["duration_ns"].sum()
    if not unknown:
        assert delays == pytest.approx(waited, rel=0.5, abs=20_000_000)
    assert [path.name for path in tmp_path.iterdir()] == [scheduler_events.EVENTS_FILE]


def absent(folder: Path, tool: str) -> dict[str, Any]:
    """The document of a trace that the tool cannot record."""
    with SchedulerTrace(folder, [tool]) as trace:
        assert not trace.recording
    return trace.document()


@pytest.mark.parametrize("tool", ["bpftrace", "perf"])
def test_a_tool_that_is_not_installed_is_absent_with_what_to_install(tool: str, bin: Path, tmp_path: Path) -> None:
    document = absent(tmp_path, tool)
    assert (document["state"], document["tool"], document["file"]) == ("absent", None, None)
    assert document["reason"] == f"{tool}: not installed"
    assert "apt-get install" in document["fix"]


@pytest.mark.parametrize(
    ("words", "reason", "fix"),
    [
        ("ERROR: bpftrace currently only supports running as the root user.", "root user", "CAP_BPF"),
        ("program.bt:1-2: ERROR: tracepoint not found: sched:sched_switch", "tracepoint not found", "mount -t tracefs"),
        ("", "without a reason", "as root"),
    ],
)
def test_a_tool_that_refuses_is_absent_in_its_own_words(
    words: str, reason: str, fix: str, bin: Path, tmp_path: Path
) -> None:
    fake_tool(bin, "bpftrace", f"echo '{words}' >&2; exit 1")
    document = absent(tmp_path, "bpftrace")
    assert reason in document["reason"]
    assert fix in document["fix"]
    assert [path for path in tmp_path.iterdir() if path != bin] == []


NO_ACCESS = """event syntax error: sched:sched_switch,sched:sched_waking
                     can not access trace events

Error:\tNo permissions to read /sys/kernel/tracing/events/sched/sched_switch
Hint:\tTry sudo mount -o remount,mode=755 /sys/kernel/tracing/

    -e, --event <event>   event selector. use perf list to list available events
"""


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("Access to performance monitoring is limited", "Access to performance monitoring is limited"),
        (
            "Error:\nNo permission to enable sched:sched_switch event.\n\n",
            "No permission to enable sched:sched_switch event.",
        ),
        (NO_ACCESS, "No permissions to read /sys/kernel/tracing/events/sched/sched_switch"),
        ("usage\nError:", "Error:"),
    ],
)
def test_perf_that_refuses_is_absent_in_its_own_words(words: str, reason: str, bin: Path, tmp_path: Path) -> None:
    fake_tool(bin, "perf", f"cat >&2 <<'END'\n{words}\nEND\nexit 255")
    document = absent(tmp_path, "perf")
    assert document["reason"] == f"perf: {reason}"


def test_the_second_tool_is_tried_when_the_first_refuses(bin: Path, tmp_path: Path) -> None:
    fake_tool(bin, "perf", "echo 'not for you' >&2; exit 1")
    with SchedulerTrace(tmp_path) as trace:
        pass
    assert trace.document()["reason"] == "bpftrace: not installed; perf: not for you"
    assert "bpftrace" in trace.document()["fix"]


FAKE_BPFTRACE: Final = """
trap 'echo "@n: 3"; echo "@s[5, 0, 1, 1, 0, 2]: 1"; echo "@w[6, 0, 1]: 1"; exit 0' INT
cat /proc/uptime > /dev/null
echo "Attaching 6 probes..."
python="$PYTHON_OF_THE_TEST"
"$python" -c 'import time; print("b", time.monotonic_ns())'
sleep 0.1
echo "ready fork"; echo "ready waking"; echo "ready switch"
while :; do sleep 0.05; done
"""


@pytest.fixture
def fake_bpftrace(bin: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTHON_OF_THE_TEST", sys.executable)
    fake_tool(bin, "bpftrace", FAKE_BPFTRACE)
    return bin


def children() -> set[int]:
    text = Path(f"/proc/self/task/{os.getpid()}/children")
    return {int(pid) for pid in text.read_text().split()} if text.exists() else set()


def test_recording_has_begun_when_the_block_begins_and_the_tool_ends_with_it(
    fake_bpftrace: Path, tmp_path: Path
) -> None:
    before = children()
    with SchedulerTrace(tmp_path, ["bpftrace"]) as trace:
        assert trace.recording
        assert "ready switch" in (tmp_path / ".bpftrace/output").read_text()
    assert children() == before
    document = trace.document()
    assert document["state"] == "present"
    assert document["version"] == "v9.9.9"
    assert document["clock"]["name"] == "CLOCK_MONOTONIC"
    lines = list(scheduler.event_lines(tmp_path, document["file"]))
    assert lines == ["@s[5, 0, 1, 1, 0, 2]: 1\n", "@w[6, 0, 1]: 1\n"]


DEAF_AT_FIRST: Final = """
import signal, sys, time
if sys.argv[1] == "--version":
    sys.exit(print("bpftrace v9.9.9"))
interrupts = []
def interrupted(*_):
    interrupts.append(0)
    if len(interrupts) == 2:
        print("@n: 1", "@s[5, 0, 1, 1, 0, 2]: 1", sep=chr(10), flush=True)
        sys.exit()
signal.signal(signal.SIGINT, interrupted)
print(f"b {time.monotonic_ns()}", "ready fork", "ready waking", "ready switch", sep=chr(10), flush=True)
while True:
    signal.pause()
"""


def test_an_interrupt_that_the_tool_missed_is_repeated(
    bin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler_events, "_IDLE_SECONDS", 0.3)
    fake_tool(bin, "bpftrace", DEAF_AT_FIRST, python=True)
    with SchedulerTrace(tmp_path, ["bpftrace"]) as trace:
        assert trace.recording
    assert trace.document()["remarks"] == []
    assert len(list(scheduler.event_lines(tmp_path, scheduler_events.EVENTS_FILE))) == 1


def test_events_that_found_no_room_are_counted_as_lost(fake_bpftrace: Path, tmp_path: Path) -> None:
    with SchedulerTrace(tmp_path, ["bpftrace"]) as trace:
        pass
    assert trace.document()["lost"] == 1


FAKE_PERF: Final = """
import os, signal, sys, time
if sys.argv[1] == "--version":
    sys.exit(print("perf version 9.9.9"))
if sys.argv[1] == "script":
    assert "--show-lost-events" in sys.argv
    seconds, rest = divmod(int(open(sys.argv[sys.argv.index("-i") + 1]).read()), 10**9)
    for what in ("sched:sched_switch: a:5 [120] S ==> b:6 [120]", *(f"PERF_RECORD_LOST lost {n}" for n in (40, 2))):
        print(f"5/5 [000] {seconds}.{rest:09d}: {what}")
    sys.exit()
signal.signal(signal.SIGINT, lambda *_: sys.exit())
open(sys.argv[sys.argv.index("-o") + 1], "w").write(str(time.monotonic_ns()))
orders, answers = map(int, sys.argv[sys.argv.index("--control") + 1].removeprefix("fd:").split(","))
os.read(orders, 16)
os.write(answers, b"ack")
while True:
    signal.pause()
"""


def test_events_that_perf_lost_are_counted_and_where_it_lost_them_is_kept(bin: Path, tmp_path: Path) -> None:
    fake_tool(bin, "perf", FAKE_PERF, python=True)
    with SchedulerTrace(tmp_path, ["perf"]) as trace:
        assert trace.recording
    document = trace.document()
    assert (document["state"], document["lost"]) == ("present", 42)
    lines = list(scheduler.event_lines(tmp_path, document["file"]))
    assert [line.split(": ")[1].strip() for line in lines] == [
        *("sched:sched_switch", "PERF_RECORD_LOST lost 40", "PERF_RECORD_LOST lost 2")
    ]


@pytest.mark.parametrize(("version", "bounded"), [("9.9.9", True), ("5.4.0", False)])
def test_perfs_file_is_bounded_where_perf_can_do_that(version: str, bounded: bool, bin: Path, tmp_path: Path) -> None:
    fake_tool(bin, "perf", FAKE_PERF.replace("9.9.9", version), python=True)
    with SchedulerTrace(tmp_path, ["perf"]) as trace:
        assert trace._recorder is not None
        assert trace._recorder._process is not None
        assert ("--max-size" in trace._recorder._process.args) is bounded  # type: ignore[operator]
    assert trace.document()["state"] == "present"


def test_a_tool_that_cannot_even_say_that_the_disk_is_full_is_reported_so(
    bin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_tool(bin, "perf", "exit 255")
    none_left = type("Disk", (), {"f_bavail": 0})
    monkeypatch.setattr(os, "statvfs", lambda _: none_left)
    document = absent(tmp_path, "perf")
    assert (document["reason"], document["fix"]) == ("perf: the disk is full", "free disk space, and record again")


def test_a_tool_that_ends_before_the_run_is_remarked(fake_bpftrace: Path, tmp_path: Path) -> None:
    with SchedulerTrace(tmp_path, ["bpftrace"]) as trace:
        assert trace._recorder is not None
        process = trace._recorder._process
        assert process is not None
        process.kill()
        process.wait()
    assert trace.document()["remarks"] == ["the tool ended before the run did"]


def test_a_run_that_fails_leaves_no_tool_and_no_file_behind(fake_bpftrace: Path, tmp_path: Path) -> None:
    before = children()

    def run() -> None:
        with trace:
            raise RuntimeError("the run failed")

    trace = SchedulerTrace(tmp_path, ["bpftrace"])
    with pytest.raises(RuntimeError, match="the run failed"):
        run()
    assert children() == before
    assert [path for path in tmp_path.iterdir() if path != fake_bpftrace] == []
    assert trace.document()["state"] == "absent"


def test_a_tool_that_never_begins_is_given_up(bin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_events, "_START_SECONDS", 0.5)
    fake_tool(bin, "bpftrace", "while :; do sleep 0.05; done")
    before = children()
    document = absent(tmp_path, "bpftrace")
    assert "did not start" in document["reason"]
    assert children() == before


def test_a_tool_that_cannot_be_started_does_not_fail_the_run(bin: Path, tmp_path: Path) -> None:
    (bin / "bpftrace").write_text("this is no program")
    document = absent(tmp_path, "bpftrace")
    assert "cannot be started" in document["reason"]


def test_events_that_cannot_be_kept_do_not_fail_the_run(fake_bpftrace: Path, tmp_path: Path) -> None:
    with SchedulerTrace(tmp_path, ["bpftrace"]) as trace:
        (tmp_path / scheduler_events.EVENTS_FILE).mkdir()
    assert trace.document()["state"] == "absent"
    assert "could not be kept" in trace.document()["reason"]


def test_a_container_with_process_numbers_of_its_own_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clocks, "_FIRST", {"pid": 1, "time": 1})
    with SchedulerTrace(tmp_path) as trace:
        assert not trace.recording
    assert "container" in trace.document()["reason"]
    assert "--pid=host" in trace.document()["fix"]


@pytest.mark.parametrize(("version", "arrow"), [("v0.17.0", True), ("v0.18.0", False), ("v1.2.3", False)])
def test_the_program_is_written_in_the_tools_dialect(version: str, arrow: bool) -> None:
    program = scheduler_events._program_for(version)
    assert ("args->" in program) is arrow
    assert ("args." in program) is not arrow


def readings(monotonic: int, suspended: int) -> dict[str, int]:
    return {"monotonic_ns": monotonic, "boottime_ns": monotonic + suspended, "uncertainty_ns": 100}


@pytest.mark.parametrize(
    ("event", "suspended", "expected"),
    [
        (1_500_000, 0, ("CLOCK_MONOTONIC", 0)),
        (1_500_000, 9_000_000, ("CLOCK_MONOTONIC", 0)),
        (10_500_000, 9_000_000, ("CLOCK_BOOTTIME", -9_000_000)),
    ],
)
def test_the_clock_is_recognized_by_an_events_time(event: int, suspended: int, expected: tuple[str, int]) -> None:
    clock = which_clock(event, readings(1_000_000, suspended), readings(2_000_000, suspended))
    assert (clock["name"], clock["to_monotonic_ns"]) == expected
    assert clock["uncertainty_ns"] <= 100


def test_an_ambiguous_clock_is_uncertain_by_the_difference_and_an_unknown_one_is_not_used() -> None:
    clock: dict[str, Any] = which_clock(1_500_000, readings(1_000_000, 5_000), readings(2_000_000, 5_000))
    assert clock["uncertainty_ns"] == 5_000
    with pytest.raises(ValueError, match="neither"):
        which_clock(99, readings(1_000_000, 0), readings(2_000_000, 0))
