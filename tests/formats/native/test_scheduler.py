"""Scheduler traces: lines of perf and bpftrace become events, and these the canonical tables."""

import gzip
from pathlib import Path
from typing import Any, Final

import pytest

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import Limits
from aaco_pipeline.formats.native import scheduler
from aaco_pipeline.formats.native.scheduler import names_in, own_threads
from tests.formats.readings import checked, evidence_of

PROCESS: Final = 100
THREAD: Final = 101
OTHER: Final = 7
RUNNABLE, PUSHED_OFF, SLEEPING, ZOMBIE = 0, 0x100, 1, 0x20


def scheduler_document(**changed: Any) -> dict[str, Any]:
    return {
        "format": "aaco-scheduler-events",
        "format_version": 1,
        "state": "present",
        "tool": "bpftrace",
        "reason": None,
        "fix": None,
        "file": "scheduler_events.txt.gz",
        "clock": {"name": "CLOCK_MONOTONIC", "to_monotonic_ns": 0, "uncertainty_ns": 80},
        "lost": 0,
        "remarks": [],
        **changed,
    }


def switch(time_ns: int, previous: int, state: int, following: int, *, cpu: int = 0) -> str:
    process = PROCESS if previous in (PROCESS, THREAD) else previous
    return f"@s[{time_ns}, {cpu}, {previous}, {process}, {state}, {following}]: 1\n"


def waking(time_ns: int, thread: int, cpu: int = 0) -> str:
    return f"@w[{time_ns}, {cpu}, {thread}]: 1\n"


def events_of(*lines: str, **changed: Any) -> list[tuple[Any, ...]]:
    reading = checked(scheduler.read(scheduler_document(**changed), lines, [PROCESS], 0))
    return reading.tables["scheduler_events"].rows()


def test_a_thread_that_sleeps_is_off_the_cpu_until_woken_and_then_delayed_until_it_runs() -> None:
    assert events_of(
        switch(1_000, THREAD, SLEEPING, 0), waking(1_500, THREAD, cpu=1), switch(1_700, OTHER, SLEEPING, THREAD, cpu=1)
    ) == [(1_000, 0, THREAD, "off_cpu", 500), (1_500, 1, THREAD, "run_delay", 200), (1_700, 1, THREAD, "running", None)]


@pytest.mark.parametrize("state", [RUNNABLE, PUSHED_OFF])
def test_a_thread_that_is_pushed_off_is_delayed_from_that_moment(state: int) -> None:
    assert events_of(switch(1_000, THREAD, state, OTHER), switch(1_300, OTHER, SLEEPING, THREAD)) == [
        (1_000, 0, THREAD, "run_delay", 300),
        (1_300, 0, THREAD, "running", None),
    ]


def test_a_wait_whose_end_was_not_seen_has_no_duration() -> None:
    assert events_of(switch(1_000, THREAD, SLEEPING, 0)) == [(1_000, 0, THREAD, "off_cpu", None)]
    assert events_of(switch(1_000, THREAD, SLEEPING, 0), waking(1_200, THREAD)) == [
        (1_000, 0, THREAD, "off_cpu", 200),
        (1_200, 0, THREAD, "run_delay", None),
    ]


def test_a_wake_up_that_was_not_seen_leaves_the_whole_time_off_the_cpu() -> None:
    events = events_of(switch(1_000, THREAD, SLEEPING, 0), switch(1_900, 0, RUNNABLE, THREAD))
    assert events[0] == (1_000, 0, THREAD, "off_cpu", 900)


def test_a_thread_that_ended_waits_for_nothing() -> None:
    assert events_of(switch(900, 0, RUNNABLE, THREAD), switch(1_000, THREAD, ZOMBIE, 0)) == [
        (900, 0, THREAD, "running", None)
    ]


def test_waking_a_thread_that_runs_is_no_event() -> None:
    assert events_of(switch(900, 0, RUNNABLE, THREAD), waking(950, THREAD), switch(1_000, THREAD, ZOMBIE, 0)) == [
        (900, 0, THREAD, "running", None)
    ]


def test_only_threads_of_the_measured_processes_are_kept() -> None:
    events = events_of(
        switch(1_000, OTHER, SLEEPING, THREAD), waking(1_050, OTHER), switch(1_100, THREAD, SLEEPING, OTHER)
    )
    assert {event[2] for event in events} == {THREAD}


def test_events_come_in_order_of_time_though_the_lines_do_not() -> None:
    lines = [
        switch(1_700, OTHER, SLEEPING, THREAD, cpu=1),
        switch(1_000, THREAD, SLEEPING, 0),
        waking(1_500, THREAD, cpu=1),
    ]
    assert events_of(*lines) == events_of(*sorted(lines, key=lambda line: int(line.split("[")[1].split(",")[0])))


def test_another_clock_and_the_axis_shift_every_event() -> None:
    clock = {"name": "CLOCK_BOOTTIME", "to_monotonic_ns": -5_000, "uncertainty_ns": 80}
    reading = scheduler.read(scheduler_document(clock=clock), [switch(9_000, THREAD, SLEEPING, 0)], [PROCESS], 1_000)
    assert reading.tables["scheduler_events"]["time_ns"].to_list() == [3_000]
    assert "CLOCK_BOOTTIME" in (evidence_of(reading)["clock of the scheduler events"].reason or "")


PERF: Final = """\
# captured on a host
  100/101   [001]     1.000001000: sched:sched_switch: prev_comm=a b prev_pid=101 prev_prio=120 prev_state=S ==> \
next_comm=swapper/1 next_pid=0 next_prio=120
    7/7     [000]     1.000001500: sched:sched_waking: comm=a b pid=101 prio=120 target_cpu=001

    0/0     [001]     1.000001700: sched:sched_switch: prev_comm=swapper/1 prev_pid=0 prev_prio=120 prev_state=R ==> \
next_comm=a b next_pid=101 next_prio=120
  100/101   [001]     1.000002000: sched:sched_switch: prev_comm=a b prev_pid=101 prev_prio=120 prev_state=R+ ==> \
next_comm=c next_pid=9 next_prio=120
    9/9     [001]     1.000002300: sched:sched_switch: prev_comm=c prev_pid=9 prev_prio=120 prev_state=X ==> \
next_comm=a b next_pid=101 next_prio=120
  100/101   [001]     1.000002400: sched:sched_switch: prev_comm=a b prev_pid=101 prev_prio=120 prev_state=Z ==> \
next_comm=c next_pid=9 next_prio=120
"""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tool": ["perf"]}, "tool"),
        ({"clock": {"name": "CLOCK_MONOTONIC"}}, "clock.to_monotonic_ns"),
        ({"clock": {"name": "x", "to_monotonic_ns": float("inf"), "uncertainty_ns": 0}}, "clock.to_monotonic_ns"),
        ({"remarks": [7]}, "remarks"),
    ],
)
def test_a_damaged_scheduler_document_is_refused_with_the_reason(change: dict[str, Any], words: str) -> None:
    with pytest.raises(CaptureError, match=rf"scheduler\.json.*{words}"):
        scheduler.read(scheduler_document(**change), [], [PROCESS], 0)


@pytest.mark.parametrize("line", [switch(1 << 70, THREAD, SLEEPING, 0), switch(1, THREAD, SLEEPING, 0, cpu=1 << 40)])
def test_events_that_fit_no_column_are_refused(line: str) -> None:
    with pytest.raises(CaptureError, match="do not fit their table"):
        scheduler.read(scheduler_document(), [line], [PROCESS], 0)


def test_a_number_of_perf_with_more_digits_than_any_is_a_bad_line() -> None:
    line = PERF.splitlines()[1].replace("1.000001000", f"{'1' * 5000}.000001000")
    with pytest.raises(CaptureError, match="not in the expected form"):
        scheduler.read(scheduler_document(tool="perf"), [line], [PROCESS], 0)


def test_perf_tells_the_same_story() -> None:
    second = 1_000_000_000
    assert events_of(*PERF.splitlines(keepends=True), tool="perf") == [
        (second + 1_000, 1, THREAD, "off_cpu", 500),
        (second + 1_500, 1, THREAD, "run_delay", 200),
        (second + 1_700, 1, THREAD, "running", None),
        (second + 2_000, 1, THREAD, "run_delay", 300),
        (second + 2_300, 1, THREAD, "running", None),
    ]


def test_where_perf_lost_events_is_no_event() -> None:
    lost = "    7/7     [000]     1.000001450: PERF_RECORD_LOST lost 17\n"
    told = PERF.splitlines(keepends=True)
    assert events_of(lost, *told, lost, tool="perf") == events_of(*told, tool="perf")


@pytest.mark.parametrize("tool", ["bpftrace", "perf"])
@pytest.mark.parametrize("line", ["nonsense", "@s[1, 2]: 1", "@w[1, 2, 3, 4]: 1", "@s[1, 2, 3, 4, x, 6]: 1"])
def test_a_line_in_another_form_is_refused_and_shown(tool: str, line: str) -> None:
    with pytest.raises(CaptureError, match="not in the expected form"):
        events_of(line, tool=tool)


def test_an_unknown_tool_is_refused() -> None:
    with pytest.raises(CaptureError, match="recorded by ftrace"):
        events_of("", tool="ftrace")


def test_more_events_than_the_limit_are_refused() -> None:
    with pytest.raises(CaptureError, match="more than 2 events"):
        scheduler.read(scheduler_document(), ["\n"] * 3, [PROCESS], 0, Limits(events=2))


def test_lost_events_make_the_evidence_partial() -> None:
    lines = [switch(1_000, THREAD, SLEEPING, 0)]
    reading = scheduler.read(scheduler_document(lost=3, remarks=["cut short"]), lines, [PROCESS], 0)
    item = evidence_of(reading)["scheduler events"]
    assert (item.status, item.reason, item.rows) == ("partial", "cut short; the tool lost 3 events", 1)


def test_a_way_back_to_the_cpu_that_the_tool_missed_is_said_and_no_sleep_is_dropped_for_it() -> None:
    """perf misses events that come while a CPU is idle, and does not count them: two sleeps, and one end."""
    lines = [
        switch(1_000, THREAD, SLEEPING, 0),
        switch(3_000, THREAD, SLEEPING, 0),
        waking(4_000, THREAD),
        switch(4_100, 0, RUNNABLE, THREAD),
    ]
    reading = scheduler.read(scheduler_document(), lines, [PROCESS], 0)
    assert reading.tables["scheduler_events"].rows() == [
        (1_000, 0, THREAD, "off_cpu", None),
        (3_000, 0, THREAD, "off_cpu", 1_000),
        (4_000, 0, THREAD, "run_delay", 100),
        (4_100, 0, THREAD, "running", None),
    ]
    item = evidence_of(reading)["scheduler events"]
    assert item.status == "partial"
    assert str(item.reason).startswith("1 times a thread left a CPU that the trace does not say it had got")


def test_a_trace_without_events_of_the_process_is_absent() -> None:
    reading = scheduler.read(scheduler_document(), [switch(1_000, OTHER, SLEEPING, 0)], [PROCESS], 0)
    assert reading.tables["scheduler_events"].height == 0
    assert evidence_of(reading)["scheduler events"].status == "absent"


def test_what_was_not_recorded_is_absent_with_the_reason_and_the_fix() -> None:
    absent = scheduler_document(state="absent", reason="bpftrace: not installed", fix="apt-get install bpftrace")
    for document, words in ((absent, "not installed; apt-get install bpftrace"), (None, "--kernel-plane")):
        reading = scheduler.read(document, [], [PROCESS], 0)
        checked(reading)
        item = evidence_of(reading)["scheduler events"]
        assert item.status == "absent"
        assert words in (item.reason or "")


def test_lines_come_from_the_compressed_file_and_damage_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "scheduler_events.txt.gz"
    file.write_bytes(gzip.compress(b"one\ntwo\n"))
    assert list(scheduler.event_lines(tmp_path, file.name)) == ["one\n", "two\n"]
    for damaged in (b"plain", gzip.compress(b"one\n" * 100)[:-12]):
        file.write_bytes(damaged)
        with pytest.raises(CaptureError, match="compressed"):
            list(scheduler.event_lines(tmp_path, file.name))
    with pytest.raises(CaptureError, match="not a place within the capture"):
        list(scheduler.event_lines(tmp_path / "capture", str(file)))
    with pytest.raises(CaptureError, match="nowhere"):
        list(scheduler.event_lines(tmp_path, "nowhere"))


TOOL_LINES = (
    "  123/124  [001]  1000.000000001: sched:sched_switch: prev_comm=a b prev_pid=124 prev_prio=120 prev_state=D "
    "==> next_comm=swapper/1 next_pid=0 next_prio=120\n",
    "\n",
    "# a comment of perf's\n",
    "    0/0  [001]  1000.000001001: sched:sched_switch: prev_comm=swapper/1 prev_pid=0 prev_prio=120 prev_state=R "
    "==> next_comm=a b next_pid=124 next_prio=120\n",
    "  9/9  [000]  1000.000000501: sched:sched_waking: comm=hog pid=77 prio=120 target_cpu=001\n",
)
BPFTRACE = ("@s[100, 1, 124, 123, 2, 0]: 1\n", "@w[150, 1, 124]: 1\n", "@s[160, 1, 0, 0, 0, 124]: 1\n")


def test_perf_tells_switches_with_names_and_wake_ups() -> None:
    events, losses = scheduler.events_of("perf", TOOL_LINES, "file")
    assert losses.height == 0
    assert events.select("time_ns", "cpu", "kind", "thread_id", "other_thread_id", "state", "value").rows() == [
        (1_000_000_000_001, 1, "switch", 124, 0, "disk_sleep", None),
        (1_000_000_000_501, 0, "waking", 77, None, None, 1),
        (1_000_000_001_001, 1, "switch", 0, 124, "idle", None),
    ]
    assert own_threads(events, {"latency": 123}) == {124: 0}
    assert names_in(events) == {124: "a b", 0: "swapper/1"}


def test_what_perf_lost_lies_between_the_events_of_its_cpu_around_it() -> None:
    lost = (
        " 5/5  [000] 1000.000000400: PERF_RECORD_LOST lost 3\n",  # before any event of that CPU
        " 9/9  [000]  1000.000000600: PERF_RECORD_LOST lost 7\n",
        "0/-1  [001] 1000.000001001: PERF_RECORD_LOST lost 154",
    )
    events, losses = scheduler.events_of("perf", (*TOOL_LINES, *lost), "file")
    assert events.height == 3
    second = 1_000_000_000_000
    assert sorted(losses.rows(), key=lambda row: row[2]) == [
        (0, None, second + 400, 3),
        (0, second + 501, second + 600, 7),
        (1, second + 1, second + 1_001, 154),
    ]


@pytest.mark.parametrize(
    ("bits", "state"), [(0, "runnable"), (1, "sleeping"), (2, "disk_sleep"), (4, "stopped"), (16, "dead")]
)
def test_bpftrace_tells_states_as_the_kernel_numbers_them(bits: int, state: str) -> None:
    events, _ = scheduler.events_of(
        "bpftrace", [BPFTRACE[0].replace(", 2, 0]", f", {bits}, 0]"), *BPFTRACE[1:]], "file"
    )
    assert events.get_column("state").to_list() == [state, None, "idle"]
    assert own_threads(events, {"latency": 123}) == {124: 0}
    assert names_in(events) == {}


@pytest.mark.parametrize("tool", ["perf", "bpftrace"])
@pytest.mark.parametrize(
    "line", ["rubbish", "@s[1, 2]: 1", "1/1 [0] 1.000000001: sched:sched_switch: prev_comm=x", f"@w[{'9' * 30}, 1, 1]"]
)
def test_a_line_that_is_none_of_theirs_is_refused(tool: str, line: str) -> None:
    with pytest.raises(CaptureError, match="file: a line is not one of"):
        scheduler.events_of(tool, [line], "file")
