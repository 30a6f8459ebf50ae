"""Kernel plane recordings: pages become events, threads and losses; calls are named as in the machine's own headers."""

import gzip
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from aaco_pipeline.analysis.delays.thread_states import FLUSHES
from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.native.kernel_plane import TABLES, read
from aaco_pipeline.formats.native.system_calls import names_of
from tests.formats.native.kernel_plane_recording import (
    BEGAN,
    ENDED,
    MISSED,
    Record,
    data_of,
    format_text,
    page,
    recorded,
)

SWITCH, WAKING, FORK = "sched/sched_switch", "sched/sched_waking", "sched/sched_process_fork"
ZERO = 1_000
EMPTY_NAME = format_text(SWITCH).replace("offset:8;\tsize:16", "offset:8;\tsize:0")


def switch(previous: int, following: int, state: int = 0) -> bytes:
    names = {0: b"swapper/0", 100: b"python", 101: b"pool", 900: b"hog"}
    told: dict[str, int | bytes] = {"prev_comm": names[previous], "next_comm": names[following]}
    return data_of(SWITCH, previous, 0, **told, prev_pid=previous, prev_state=state, next_pid=following)


def rows(table: pl.DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    return table.select(columns).rows()


def test_switches_of_all_and_events_of_the_measured_are_kept(tmp_path: Path) -> None:
    document = recorded(
        tmp_path,
        {
            ("switches", 0): [
                (1_500, switch(0, 900)),
                (2_000, switch(900, 100)),
                (3_000, switch(100, 0, 2)),
                (9_000, switch(0, 900)),
            ],
            ("threads", 0): [
                (2_100, data_of(FORK, 100, parent_pid=100, child_pid=101)),
                (2_200, data_of("raw_syscalls/sys_enter", 100, id=74)),
                (2_300, data_of("exceptions/page_fault_user", 900, address=1)),
                (3_500, data_of(WAKING, 0, flags=8, pid=100, target_cpu=0)),
                (3_600, data_of("raw_syscalls/sys_exit", 100, id=74)),
                (3_700, data_of(WAKING, 101, pid=100, target_cpu=0)),
            ],
        },
    )
    events = read(document, tmp_path, ZERO).tables["kernel_events"]
    told = rows(events, "time_ns", "kind", "name", "thread_id", "other_thread_id", "state", "duration_ns")
    assert told == [
        (1_000, "switch", None, 900, 100, "runnable", None),
        (1_100, "fork", None, 100, 101, None, None),
        (1_200, "syscall", "fsync", 100, None, None, 1_400),
        (2_000, "switch", None, 100, 0, "disk_sleep", None),
        (2_500, "waking", "interrupt", 100, None, None, None),
        (2_700, "waking", None, 100, 101, None, None),
    ]
    threads = read(document, tmp_path, ZERO).tables["kernel_threads"]
    assert rows(threads, "thread_id", "process_id", "name") == [
        (0, None, "idle"),
        (100, 0, "python"),
        (101, 0, None),
        (900, None, "hog"),
    ]


def test_a_fault_lasts_until_its_process_has_the_page(tmp_path: Path) -> None:
    def has(by: int, curr: int = 1) -> bytes:
        return data_of("kmem/rss_stat", by, mm_id=1, curr=curr)

    fault = "exceptions/page_fault_user"
    written = [
        (2_000, switch(900, 100)),
        (2_100, data_of(fault, 100, address=1)),
        (2_150, has(100, curr=0)),  # of a process whose memory is taken back
        (2_160, data_of("irq_vectors/local_timer_entry", 100, vector=1)),
        (2_170, data_of("irq_vectors/local_timer_exit", 100, vector=1)),
        (2_190, has(100)),
        (2_195, has(100)),
        (2_200, data_of(fault, 100, address=2)),  # a page that was only to be written
        (2_250, data_of(fault, 100, address=3)),
        (2_260, data_of("raw_syscalls/sys_enter", 100, id=11)),  # munmap
        (2_270, has(100)),
        (2_280, data_of("raw_syscalls/sys_exit", 100, id=11)),
        (3_000, switch(100, 0)),
    ]
    document = recorded(tmp_path, {("switches", 0): written})
    events = read(document, tmp_path, ZERO).tables["kernel_events"]
    assert rows(events.filter(pl.col("kind") == "page_fault"), "time_ns", "value", "duration_ns") == [
        (1_100, 1, 90),
        (1_200, 2, None),
        (1_250, 3, None),
    ]
    assert set(events.get_column("kind")) == {"switch", "page_fault", "interrupt", "syscall"}


def test_a_thread_is_called_what_it_was_when_it_was_last_seen_on_any_cpu(tmp_path: Path) -> None:
    def named(name: bytes, previous: int, following: int) -> bytes:
        told: dict[str, int | bytes] = {"prev_comm": name, "next_comm": name}
        return data_of(SWITCH, previous, 0, **told, prev_pid=previous, next_pid=following)

    document = recorded(
        tmp_path,
        {
            ("switches", 0): [(500, named(b"sh", 0, 100)), (3_000, named(b"python", 100, 0))],
            ("switches", 1): [(1_000, named(b"sh", 0, 100)), (1_500, named(b"sh", 100, 0))],
        },
    )
    threads = read(document, tmp_path, 0).tables["kernel_threads"]
    assert rows(threads, "thread_id", "name") == [(0, "idle"), (100, "python")]


def test_a_thread_ends_when_it_dies_or_the_recording_ends(tmp_path: Path) -> None:
    document = recorded(
        tmp_path,
        {
            ("switches", 0): [(500, switch(900, 100)), (700, switch(100, 900, 0x20)), (800, switch(900, 0, 1))],
            ("switches", 1): [(600, switch(0, 101)), (2_000, switch(101, 0, 1))],
        },
        processes={"latency": 100, "trace": 101},
    )
    threads = read(document, tmp_path, 0).tables["kernel_threads"]
    assert rows(threads, "thread_id", "start_ns", "end_ns") == [
        (0, 600, 2_000),
        (100, 500, 700),
        (101, 600, 2_000),
        (900, 500, 2_000),
    ]


def test_what_has_an_extent_is_paired_by_its_cpu_and_name(tmp_path: Path) -> None:
    entry, leave = "irq_vectors/local_timer_entry", "irq_vectors/local_timer_exit"
    document = recorded(
        tmp_path,
        {
            ("threads", 0): [
                (100, data_of(entry, 100)),
                (120, data_of("irq/irq_handler_entry", 100, irq=42, text=b"virtio3-tx")),
                (140, data_of("irq/irq_handler_exit", 100, irq=42)),
                (160, data_of(leave, 100)),
                (300, data_of(entry, 100)),
            ],
            ("threads", 1): [(130, data_of(entry, 100)), (135, data_of(leave, 100))],
            ("switches", 0): [(90, switch(0, 100)), (400, switch(100, 0, 1))],
        },
    )
    events = read(document, tmp_path, 0).tables["kernel_events"].filter(pl.col("kind") == "interrupt")
    assert rows(events, "time_ns", "cpu", "name", "duration_ns") == [
        (100, 0, "local_timer", 60),
        (120, 0, "irq 42 virtio3-tx", 20),
        (130, 1, "local_timer", 5),
        (300, 0, "local_timer", None),
    ]


@pytest.mark.parametrize(
    ("bits", "state"),
    [
        *((0, "runnable"), (0x100, "runnable"), (1, "sleeping"), (2, "disk_sleep"), (4, "stopped"), (8, "stopped")),
        *((0x10, "dead"), (0x20, "dead"), (0x40, "sleeping"), (0x80, "sleeping")),
    ],
)
def test_a_switch_says_how_the_thread_left_the_cpu(tmp_path: Path, bits: int, state: str) -> None:
    """0x40 is a parked thread of the kernel's, 0x80 one that waits without counting towards the load."""
    document = recorded(tmp_path, {("switches", 0): [(500, switch(900, 100, bits))]})
    assert read(document, tmp_path, 0).tables["kernel_events"].item(0, "state") == state


def test_the_account_of_a_threads_time_says_since_when_it_ran(tmp_path: Path) -> None:
    account = data_of("sched/sched_stat_runtime", 100, pid=100, runtime=350, text=b"python")
    document = recorded(tmp_path, {("threads", 0): [(1_000, account)], ("switches", 0): [(600, switch(0, 100))]})
    events = read(document, tmp_path, 0).tables["kernel_events"].filter(pl.col("kind") == "ran")
    assert rows(events, "time_ns", "duration_ns", "thread_id") == [(650, 350, 100)]


@pytest.mark.parametrize(("number", "name"), [(3, "NET_RX"), (10, "10"), (-1, "-1"), (-100, "-100")])
def test_a_softirq_without_a_name_keeps_its_number(tmp_path: Path, number: int, name: str) -> None:
    document = recorded(tmp_path, {("threads", 0): [(500, data_of("irq/softirq_entry", 100, vec=number))]})
    assert read(document, tmp_path, 0).tables["kernel_events"].item(0, "name") == name


@pytest.mark.parametrize("state", ["absent", None])
def test_without_a_recording_the_tables_are_empty_and_say_why(tmp_path: Path, state: str | None) -> None:
    document = (
        None if state is None else recorded(tmp_path, {}, state=state, reason="tracefs is not mounted", fix="mount it")
    )
    found = read(document, tmp_path, 0)
    assert {name: found.tables[name].height for name in TABLES} == dict.fromkeys(TABLES, 0)
    (said,) = found.evidence
    assert said.status == "absent"
    assert ("--kernel-plane" if state is None else "tracefs is not mounted; mount it") in str(said.reason)


def test_events_that_a_kernel_lacks_are_told_by_the_reason(tmp_path: Path) -> None:
    document = recorded(tmp_path, {("switches", 0): [(600, switch(0, 100))]})
    document["events"]["amdgpu/amdgpu_iv"] = {"format": None, "reason": "this kernel does not have the event"}
    said = [one.reason for one in read(document, tmp_path, 0).evidence if one.item == "events of the kernel plane"]
    assert said == ["amdgpu/amdgpu_iv: this kernel does not have the event"]


@pytest.mark.parametrize(
    ("broken", "what"),
    [
        (
            {"buffers": [{"instance": "threads", "cpu": 0, "file": "../secret", "stats": {}}]},
            "not one of the recording's",
        ),
        ({"buffers": 2 * [{"instance": "threads", "cpu": 0, "file": "switches.cpu0.pages.gz", "stats": {}}]}, "twice"),
        ({"buffers": [{"instance": "others", "cpu": 0, "file": "switches.cpu0.pages.gz", "stats": {}}]}, "damaged"),
        ({"events": {SWITCH: {"format": EMPTY_NAME, "reason": None}}}, "a text without bytes"),
        ({"header_page": "nothing"}, "how the kernel's pages are laid out"),
        ({"events": {SWITCH: {"format": "no format", "reason": None}}}, "no description of an event"),
        ({"format_version": 2}, "upgrade aaco_pipeline"),
        ({"throttling": [{"monotonic_ns": "x"}]}, "damaged"),
    ],
)
def test_a_damaged_document_is_one_clear_line(tmp_path: Path, broken: dict[str, Any], what: str) -> None:
    document = recorded(tmp_path, {("switches", 0): [(600, switch(0, 100))]}, **broken)
    with pytest.raises(CaptureError, match=what) as refused:
        read(document, tmp_path, 0)
    assert "\n" not in str(refused.value)


def test_pages_that_are_not_compressed_are_refused_by_name(tmp_path: Path) -> None:
    document = recorded(tmp_path, {("switches", 0): [(600, switch(0, 100))]})
    (tmp_path / "kernel_plane" / "switches.cpu0.pages.gz").write_bytes(b"\x1f\x8bgarbage")
    with pytest.raises(CaptureError, match=r"switches\.cpu0\.pages\.gz"):
        read(document, tmp_path, 0)


@pytest.mark.parametrize("lost", [0, 3])
def test_what_a_tool_printed_is_read_and_what_it_lost_is_unknown_at_any_time(tmp_path: Path, lost: int) -> None:
    lines = "@s[100, 1, 101, 100, 1, 0]: 1\n@w[150, 1, 101]: 1\n@s[160, 1, 0, 0, 0, 101]: 1\n"
    trace = {"file": "events.txt.gz", "clock": {"to_monotonic_ns": 1_000}, "lost": lost}
    document = recorded(tmp_path, {}, source="bpftrace", trace=trace)
    (tmp_path / "kernel_plane" / "events.txt.gz").write_bytes(gzip.compress(lines.encode()))
    tables = read(document, tmp_path, 0).tables
    found = rows(tables["kernel_events"], "time_ns", "kind", "thread_id", "other_thread_id", "state")
    assert found == [
        (1_100, "switch", 101, 0, "sleeping"),
        (1_150, "waking", 101, None, None),
        (1_160, "switch", 0, 101, "idle"),
    ]
    losses = rows(tables["kernel_losses"], "cpu", "start_ns", "end_ns", "events")
    assert losses == ([(1, BEGAN, ENDED, None)] if lost else [])
    with pytest.raises(CaptureError, match="not where; the capture is incomplete"):
        read({**document, "trace": None}, tmp_path, 0)


PERF = (
    "100/100 [0] 0.000000100: sched:sched_switch: prev_comm=a prev_pid=100 prev_prio=0 prev_state=R ==> "
    "next_comm={} next_pid=7 next_prio=0\n"
    "0/0 [1] 0.000000150: sched:sched_waking: comm=a pid=100 prio=0 target_cpu=000\n"
    "{}"
    "7/7 [0] 0.000000900: sched:sched_switch: prev_comm={} prev_pid=7 prev_prio=0 prev_state=R ==> "
    "next_comm=a next_pid=100 next_prio=0\n"
)
LOST = "7/7 [0] 0.000000900: PERF_RECORD_LOST lost 5\n"


@pytest.mark.parametrize(
    ("other", "line", "lost", "expected"),
    [
        pytest.param("x", LOST, 5, [(0, 1_100, 1_900, 5)], id="said where"),
        pytest.param("x", LOST, 6, [(0, BEGAN, ENDED, None), (1, BEGAN, ENDED, None)], id="not all of them"),
        pytest.param("cpuhp/1", "", 0, [(1, 1_150, ENDED, None)], id="a CPU went offline"),
        pytest.param("cpuhp/4", "", 0, [(4, BEGAN, ENDED, None)], id="a CPU came online"),
        pytest.param("cpuhp/x", "", 0, [], id="nothing"),
    ],
)
def test_of_perf_it_is_known_where_it_lost(
    tmp_path: Path, other: str, line: str, lost: int, expected: list[tuple[int, int, int, int | None]]
) -> None:
    trace = {"file": "events.txt.gz", "clock": {"to_monotonic_ns": 1_000}, "lost": lost}
    document = recorded(tmp_path, {}, source="perf", trace=trace)
    (tmp_path / "kernel_plane" / "events.txt.gz").write_bytes(gzip.compress(PERF.format(other, line, other).encode()))
    found = read(document, tmp_path, 0)
    assert rows(found.tables["kernel_losses"], "cpu", "start_ns", "end_ns", "events") == expected
    reason = next(str(one.reason) for one in found.evidence if one.item == "kernel plane")
    assert ("went offline or came online" in reason) == (other in ("cpuhp/1", "cpuhp/4"))
    assert ("events were lost" in reason) is bool(expected)


def test_what_was_lost_before_a_buffers_first_event_was_lost_since_the_recording_began(tmp_path: Path) -> None:
    document = recorded(tmp_path, {("switches", 0): [], ("threads", 1): []})
    for name, cpu in (("switches", 0), ("threads", 1)):
        content = page(500, [Record(0, switch(0, 100))], flags=MISSED) + page(900, [Record(0, switch(100, 0))])
        (tmp_path / f"kernel_plane/{name}.cpu{cpu}.pages.gz").write_bytes(gzip.compress(content))
    found = read(document, tmp_path, 0)
    losses = rows(found.tables["kernel_losses"], "cpu", "buffer", "start_ns", "end_ns", "events")
    assert losses == [(0, "switches", BEGAN, 500, None), (1, "threads", BEGAN, 500, None)]
    (said,) = (one for one in found.evidence if one.item == "kernel plane")
    assert said.status == "partial"
    assert "events were lost 2 times" in str(said.reason)
    assert "threads that began meanwhile are missing" in str(said.reason)
    with pytest.raises(CaptureError, match="does not say when the recording began"):
        read({name: value for name, value in document.items() if name != "clock"}, tmp_path, 0)


@pytest.mark.parametrize("count", ["commit overrun", "dropped events"])
def test_what_the_kernel_counts_as_lost_and_no_page_tells_was_lost_at_any_time(tmp_path: Path, count: str) -> None:
    document = recorded(tmp_path, {("switches", 0): [(600, switch(0, 100))], ("switches", 1): []})
    document["buffers"][1]["stats"] = {count: 2, "overrun": 0}
    losses = read(document, tmp_path, 0).tables["kernel_losses"]
    assert rows(losses, "cpu", "start_ns", "end_ns", "events") == [(1, BEGAN, ENDED, 2)]


def test_an_event_without_a_field_is_left_out_alone_and_named(tmp_path: Path) -> None:
    written = {
        ("switches", 0): [(500, switch(0, 100)), (900, switch(100, 0, 1))],
        ("threads", 0): [
            (600, data_of("raw_syscalls/sys_enter", 100, id=74)),
            (700, data_of(WAKING, 0, pid=100, target_cpu=0)),
        ],
    }
    document = recorded(tmp_path, written)
    document["events"][WAKING]["format"] = format_text(WAKING).replace("target_cpu", "other_name")
    found = read(document, tmp_path, 0)
    assert found.tables["kernel_events"].get_column("kind").to_list() == ["switch", "syscall", "switch"]
    (said,) = (str(one.reason) for one in found.evidence if one.item == "events of the kernel plane")
    assert said.startswith("sched/sched_waking: left out")
    assert "has no field target_cpu" in said
    document["events"][SWITCH]["format"] = format_text(SWITCH).replace("next_pid", "other_name")
    with pytest.raises(CaptureError, match=r"sched/sched_switch has no field next_pid"):
        read(document, tmp_path, 0)


@pytest.mark.parametrize(
    ("gone", "other"),
    [
        ("raw_syscalls/sys_exit", "raw_syscalls/sys_enter"),
        ("raw_syscalls/sys_enter", "raw_syscalls/sys_exit"),
        ("irq_vectors/local_timer_exit", "irq_vectors/local_timer_entry"),
    ],
)
def test_an_event_whose_other_end_is_refused_is_left_out_with_it(tmp_path: Path, gone: str, other: str) -> None:
    """A call without its return would seem to go on for ever, and whatever the thread waited for to be in it."""
    names = (
        "raw_syscalls/sys_enter",
        "raw_syscalls/sys_exit",
        *(f"irq_vectors/local_timer_{e}" for e in ("entry", "exit")),
    )
    threads = [(600 + place, data_of(name, 100)) for place, name in enumerate(names) if name != gone]
    document = recorded(
        tmp_path, {("switches", 0): [(500, switch(0, 100)), (900, switch(100, 0, 1))], ("threads", 0): threads}
    )
    document["events"][gone] = {"format": None, "reason": "refused: Operation not permitted"}
    found = read(document, tmp_path, 0)
    kept = {"interrupt", "syscall"} - {"interrupt" if "irq" in gone else "syscall"}
    assert set(found.tables["kernel_events"].get_column("kind")) == {"switch", *kept}
    said = [str(one.reason) for one in found.evidence if one.item == "events of the kernel plane"]
    assert said == [f"{other}: left out: without {gone} it has no extent", f"{gone}: refused: Operation not permitted"]


def test_a_step_of_the_wall_clock_moves_nothing(tmp_path: Path) -> None:
    written = {("switches", 0): [(500, switch(0, 100)), (900, switch(100, 0, 1))]}
    tables = []
    for step in (0, -3_600_000_000_000):
        clock = {"before": {"monotonic_ns": BEGAN, "realtime_ns": 10**18}}
        clock["after"] = {"monotonic_ns": ENDED, "realtime_ns": 10**18 + ENDED - BEGAN + step}
        tables.append(read(recorded(tmp_path, written, clock=clock), tmp_path, 0).tables)
    assert all(tables[0][name].equals(tables[1][name]) for name in TABLES)


#: Where distributions put the header of x86-64 that has the numbers.
HEADERS = (Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), Path("/usr/include/asm/unistd_64.h"))


@pytest.mark.parametrize(
    ("machine", "numbers"),
    [
        ("x86_64", {0: "read", 16: "ioctl", 74: "fsync", 202: "futex", 262: "newfstatat", 334: "rseq", 435: "clone3"}),
        ("aarch64", {29: "ioctl", 63: "read", 79: "newfstatat", 82: "fsync", 98: "futex", 260: "wait4", 435: "clone3"}),
        ("riscv64", {}),
    ],
)
def test_numbers_are_calls(machine: str, numbers: dict[int, str]) -> None:
    names = names_of(machine)
    assert {number: names[number] for number in numbers} == numbers
    assert len(set(names.values())) == len(names)
    assert set(FLUSHES) <= set(names.values()) or not names


def test_the_header_of_this_machine_says_the_same() -> None:
    header = next((path for path in HEADERS if path.is_file()), None)
    if header is None:
        pytest.skip("NOT CHECKED against the numbers of a header: no asm/unistd_64.h is installed")
    told = {int(number): name for name, number in re.findall(r"#define __NR_(\w+) (\d+)", header.read_text())}
    assert {number: names_of("x86_64").get(number) for number in told} == told
