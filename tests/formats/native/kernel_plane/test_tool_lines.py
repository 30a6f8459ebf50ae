"""Lines of perf and bpftrace as events: whose they are, what a thread waits for, and what is none of theirs."""

import pytest

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.native.kernel_plane.tool_lines import events_of, names_in, own_threads

PERF = (
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
    events, losses = events_of("perf", PERF, "file")
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
    events, losses = events_of("perf", (*PERF, *lost), "file")
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
    events, _ = events_of("bpftrace", [BPFTRACE[0].replace(", 2, 0]", f", {bits}, 0]"), *BPFTRACE[1:]], "file")
    assert events.get_column("state").to_list() == [state, None, "idle"]
    assert own_threads(events, {"latency": 123}) == {124: 0}
    assert names_in(events) == {}


@pytest.mark.parametrize("tool", ["perf", "bpftrace"])
@pytest.mark.parametrize(
    "line", ["rubbish", "@s[1, 2]: 1", "1/1 [0] 1.000000001: sched:sched_switch: prev_comm=x", f"@w[{'9' * 30}, 1, 1]"]
)
def test_a_line_that_is_none_of_theirs_is_refused(tool: str, line: str) -> None:
    with pytest.raises(CaptureError, match="file: a line is not one of"):
        events_of(tool, [line], "file")
