"""Kernel events become tracks of a trace: nothing counts twice, lasts too long, or is left out.

Switches as a viewer takes them: on every CPU who leaves is who came, also where the kernel left one out.
"""

from collections.abc import Iterator
from typing import Any

import polars as pl
from hypothesis import given
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

from aaco_pipeline.report.perfetto.encoding import Track, encode
from aaco_pipeline.report.perfetto.kernel_plane import (
    FAULTS_NS,
    KernelPlane,
    long_faults,
    minor_faults,
    of_cpus,
    of_threads,
    whole_switches,
)
from aaco_pipeline.report.perfetto.lanes import Rule
from tests.analysis.delays.recorded import MAIN, OTHER, POOL, events, states, table


def fault(at: int, thread: int = MAIN) -> dict[str, Any]:
    return {"at": at, "kind": "page_fault", "name": "user", "thread_id": thread}


def call(at: int, long: int | None, name: str, thread: int = MAIN) -> dict[str, Any]:
    return {"at": at, "long": long, "kind": "syscall", "name": name, "thread_id": thread}


def told(slices: pl.DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    """Thread, begin and end in microseconds, name and further columns, in order."""
    times = (pl.col("start_ns", "end_ns") / 1000).cast(pl.Int64)
    return slices.select("thread_id", times, "name", *columns).sort("thread_id", "start_ns", "end_ns").rows()


NOTHING = long_faults(events(), states())


def test_a_call_is_drawn_when_its_thread_was_blocked_in_it_and_says_for_how_long() -> None:
    seen = events(
        call(10, 90, "futex"), call(110, 20, "getpid"), call(20, 30, "read", POOL), call(60, None, "exit", POOL)
    )
    held = states(
        (MAIN, 0, 20, "running"),
        (MAIN, 20, 60, "blocked", {"wait": "lock"}),
        (MAIN, 60, 70, "queued"),
        (MAIN, 70, 80, "running"),
        (MAIN, 80, 95, "blocked", {"wait": "lock"}),
        (MAIN, 95, 130, "running"),
        (POOL, 52, 58, "blocked", {"wait": "other"}),
    )
    assert told(of_threads(seen, held, NOTHING), "wait", "blocked_ns") == [(MAIN, 10, 100, "futex", "lock", 55_000)]


def test_a_call_whose_end_was_not_seen_lasts_as_long_as_the_thread_was_blocked_in_it() -> None:
    seen = events(call(10, None, "futex"), call(70, 5, "read"))
    held = states((MAIN, 20, 60, "blocked", {"wait": "lock"}))
    assert told(of_threads(seen, held, NOTHING)) == [(MAIN, 10, 60, "futex")]


def test_a_fault_that_blocked_is_major_once_and_no_minor_one() -> None:
    faults = events(fault(5), fault(10), fault(40), fault(10, POOL))
    held = states(
        (MAIN, 12, 20, "blocked", {"wait": "page_fault"}),
        (MAIN, 22, 30, "blocked", {"wait": "page_fault"}),
        (MAIN, 60, 70, "blocked", {"wait": "lock"}),
    )
    long = long_faults(faults, held)
    assert told(long, "blocked_ns") == [(MAIN, 10, 30, "major fault", 16_000)]
    minor = minor_faults(faults, long)
    assert minor.filter(pl.col("value") > 0).select("thread_id", "value").rows() == [(MAIN, 2), (POOL, 1)]


def test_a_fault_that_lasted_long_is_drawn_once_and_not_counted_with_the_others() -> None:
    faults = events(fault(5) | {"long": 19}, fault(30) | {"long": 20}, fault(100) | {"long": 300}, fault(500))
    held = states((MAIN, 110, 390, "blocked", {"wait": "page_fault"}))
    long = long_faults(faults, held)
    assert told(long) == [(MAIN, 30, 50, "minor fault"), (MAIN, 100, 390, "major fault")]
    assert minor_faults(faults, long).get_column("value").sum() == 2


TIMES = st.lists(st.tuples(st.integers(0, 2_000), st.sampled_from([MAIN, POOL])), max_size=30)


@given(TIMES)
def test_minor_faults_are_counted_each_once_where_they_were(at: list[tuple[int, int]]) -> None:
    faults = events(*(fault(*one) for one in at))
    found = minor_faults(faults, NOTHING)
    for thread in (MAIN, POOL):
        own = found.filter(pl.col("thread_id") == thread)
        assert own.get_column("value").sum() == sum(one == thread for _, one in at)
        assert own.get_column("time_ns").is_sorted()
        assert own.height == 0 or own.item(-1, "value") == 0
        for time, value in own.select("time_ns", "value").iter_rows():
            assert value == sum(time <= t * 1000 < time + FAULTS_NS for t, one in at if one == thread)


def test_handlers_lie_by_cpu_and_one_without_an_end_has_no_extent() -> None:
    seen = events(
        {"at": 10, "long": 50, "kind": "softirq", "name": "TIMER", "thread_id": MAIN},
        {"at": 20, "long": 5, "kind": "interrupt", "name": "local_timer", "thread_id": MAIN},
        {"at": 90, "kind": "interrupt", "name": "irq 36 nvme", "thread_id": MAIN, "cpu": 1},
        call(0, 5, "read"),
    )
    rows = of_cpus(seen).select("cpu", "start_ns", "end_ns", "name", "category", "thread").rows()
    assert rows == [
        (0, 10_000, 60_000, "TIMER", "softirq", MAIN),
        (0, 20_000, 25_000, "local_timer", "interrupt", MAIN),
        (1, 90_000, 90_000, "irq 36 nvme", "interrupt", MAIN),
    ]


def test_what_a_thread_asked_of_devices_and_its_throttled_times_lie_beside_its_calls() -> None:
    seen = events(
        {"at": 10, "kind": "block_io", "name": "issue", "thread_id": MAIN, "value": 4096},
        {"at": 20, "kind": "gpu_job", "name": "amdgpu_cs_ioctl", "thread_id": MAIN},
        {"at": 30, "long": 5, "kind": "fence_wait", "thread_id": MAIN},
        {"at": 40, "kind": "signal", "thread_id": MAIN, "value": 19},
        {"at": 50, "kind": "block_io", "name": "issue", "thread_id": None, "value": 4096},
    )
    found = of_threads(seen, states((MAIN, 60, 90, "throttled")), NOTHING)
    assert told(found, "size_bytes") == [
        (MAIN, 10, 10, "block_io", 4096),
        (MAIN, 20, 20, "amdgpu_cs_ioctl", None),
        (MAIN, 30, 35, "fence_wait", None),
        (MAIN, 40, 40, "signal 19", None),
        (MAIN, 60, 90, "throttled", None),
    ]


def test_threads_lie_under_their_processes_and_losses_are_drawn() -> None:
    tables = {
        "kernel_events": events(
            call(10, 90, "futex"),
            fault(5),
            {"at": 20, "long": 5, "kind": "interrupt", "name": "local_timer", "thread_id": MAIN},
            {"at": 0, "kind": "cpu_frequency", "value": 3_000_000},
        ),
        "thread_states": states((MAIN, 20, 60, "blocked", {"wait": "lock"})),
        "kernel_losses": table("kernel_losses", [{"cpu": 1, "buffer": "threads", "start_ns": -5, "end_ns": 9}]),
        "kernel_threads": table("kernel_threads", [{"thread_id": MAIN, "process_id": 0, "name": "python"}]),
        "processes": table("processes", [{"process_id": 0, "pid": 7}]),
    }

    def batches(name: str, columns: tuple[str, ...]) -> Iterator[pl.DataFrame]:
        yield tables[name].select(columns)

    laid: list[Track] = [Track(1, "aaco", kind="process", pid=7)]

    def lay(name: str, **settings: Any) -> int:
        laid.append(Track(len(laid) + 1, name, **settings))
        return len(laid)

    plane = KernelPlane(batches)
    assert (plane.starts(), plane.processes()) == ([None, 5_000, 0, -5], {0})
    plane.lay_out(lay, {0: 1})
    assert [(track.name, track.kind, track.parent, track.lanes) for track in laid[1:]] == [
        ("interrupts of measured threads", "slices", None, Rule.REFUSE),
        ("interrupts on CPU 0", "slices", 2, Rule.STACK),
        ("kernel events lost on CPU 1", "slices", None, Rule.FLAT),
        ("clock of CPU 0", "counter", None, Rule.REFUSE),
        ("python", "thread", 1, Rule.STACK),
        (f"minor faults of thread {MAIN} per 100 µs", "counter", 1, Rule.REFUSE),
    ]
    moved = [piece.with_columns(pl.col("start_ns", "end_ns") + 5) for piece in plane.slices()]
    assert [name for piece in moved for name in piece.get_column("name")] == ["local_timer", "events lost", "futex"]
    assert b"futex" in b"".join(encode(laid, moved, pl.concat(plane.counters())))


def test_a_thread_is_woken_by_whom_the_kernel_named_alone() -> None:
    """The viewer takes whoever had the CPU for the waker, unless the event says that a handler did it."""
    woken = {"kind": "waking", "thread_id": MAIN, "value": 0}
    tables = {
        "kernel_events": events(
            {"at": 5, "kind": "switch", "thread_id": 0, "other_thread_id": POOL, "state": "idle"},
            {"at": 10, "other_thread_id": POOL, **woken},
            {"at": 20, "name": "interrupt", **woken},
            {"at": 30, **woken},
            {"at": 40, "kind": "fork", "thread_id": POOL, "other_thread_id": 77},
        ),
        **{name: table(name, []) for name in ("thread_states", "kernel_losses", "kernel_threads", "processes")},
    }

    def batches(name: str, columns: tuple[str, ...]) -> Iterator[pl.DataFrame]:
        yield tables[name].select(columns)

    trace = Trace.FromString(b"".join(KernelPlane(batches).scheduling(5_000)))
    (told,) = [packet.ftrace_events.compact_sched for packet in trace.packet if packet.HasField("ftrace_events")]
    assert list(told.waking_timestamp) == [5_000, 10_000, 10_000, 10_000]  # each since the one before
    assert [flags > 0 for flags in told.waking_common_flags] == [False, True, True, False]
    assert list(told.waking_pid) == [MAIN, MAIN, MAIN, 77], "a thread that begins waits for a CPU"


def switches(*rows: tuple[int, int, int, int, str]) -> pl.DataFrame:
    """Switches as CPU, time, who left, who came, state."""
    made: list[dict[str, Any]] = [
        {"cpu": cpu, "time_ns": at, "kind": "switch", "thread_id": left, "other_thread_id": came, "state": state}
        for cpu, at, left, came, state in rows
    ]
    return table("kernel_events", made)


def test_one_that_is_missing_is_put_where_the_thread_began_to_run() -> None:
    pushed_off = (0, 20_000, MAIN, OTHER, "runnable")
    seen = switches((0, 10_000, 0, MAIN, "idle"), pushed_off, (0, 90_000, MAIN, 0, "sleeping"))
    known = states((MAIN, 10, 20, "running", {"cpu": 0}), (MAIN, 70, 90, "running", {"cpu": 0}))
    found = whole_switches(seen, known)
    put = found.select("time_ns", "thread_id", "other_thread_id", "state").rows()[2]
    assert put == (70_000, OTHER, MAIN, "runnable")
    unknown = whole_switches(seen, known[:1])
    assert unknown.select("time_ns", "other_thread_id").rows()[2:] == [(90_000, MAIN), (90_000, 0)]


ROWS = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 50), st.integers(0, 3), st.integers(0, 3)), max_size=12)


@given(ROWS)
def test_who_leaves_is_who_came_whatever_was_left_out(rows: list[tuple[int, int, int, int]]) -> None:
    found = whole_switches(switches(*((*row, "runnable") for row in rows)), states())
    chained = found.with_columns(before=pl.col("other_thread_id").shift(1).over("cpu")).drop_nulls("before")
    assert (chained.get_column("before") == chained.get_column("thread_id")).all()
    assert found.height >= len(rows)
    assert found.equals(found.sort("cpu", "time_ns", maintain_order=True))
