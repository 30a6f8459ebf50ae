"""Draw the Linux kernel's activity: thread states, interrupts, waits, lost events, and scheduling events.

The other tracks of a session are in `session`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import polars as pl
from perfetto.protos.perfetto.trace import perfetto_trace_pb2

from aaco_pipeline.report.perfetto.lanes import Rule
from aaco_pipeline.report.perfetto.tables import Batches, whole

#: Kernel codes of the state in which a thread leaves a CPU (`include/linux/sched.h`).
_STATES: Final = {"runnable": 0, "idle": 0, "sleeping": 1, "disk_sleep": 2, "stopped": 4, "dead": 16}
_PRIORITY: Final = 120
#: Kernel flag of events from an interrupt handler, which its thread did not cause (`include/linux/trace_events.h`).
_HANDLED: Final = 0x08
_EVENTS_A_BUNDLE: Final = 1 << 16


def scheduling_packets(switches: pl.DataFrame, wakings: pl.DataFrame, threads: pl.DataFrame) -> Iterator[bytes]:
    """Encode switches and wake-ups as Perfetto's scheduling events; no packets without switches.

    The viewer derives CPU slices and thread states from them. Columns go into the trace as columns
    (`FtraceEventBundle.compact_sched`), so that no event is built by itself.

    Args:
        switches: cpu, time_ns, thread_id (leaving), other_thread_id (arriving), state. The thread that leaves a CPU is
            the one that arrived before.
        wakings: cpu, time_ns, thread_id, target_cpu, by_handler. The last is also true if nobody is known to have woken
            the thread; otherwise the viewer would name the thread on that CPU.
        threads: thread_id, pid, name.
    """
    if not switches.height:
        return
    yield _tree(threads)
    names = threads.select("thread_id", "name").with_columns(pl.col("name").fill_null("?"))
    switched, woke = (
        frame.sort("cpu", "time_ns", maintain_order=True).partition_by("cpu", as_dict=True, maintain_order=True)
        for frame in (switches, wakings)
    )
    # The trace processor accepts a wake-up on a CPU only once it knows the running thread, so never without switches.
    for cpu, own in switched.items():
        woken = woke.get(cpu, wakings.clear())
        # The first switch of a CPU opens nothing in the trace processor, so an empty one precedes it.
        opening = own.head(1).with_columns(other_thread_id="thread_id", state=pl.lit("runnable"))
        some = pl.concat([opening, own])
        for first in range(0, max(some.height, woken.height), _EVENTS_A_BUNDLE):
            piece, waking = (frame.slice(first, _EVENTS_A_BUNDLE) for frame in (some, woken))
            yield _bundle(int(cpu[0]), piece, waking, names)


def _tree(threads: pl.DataFrame) -> bytes:
    trace = perfetto_trace_pb2.Trace()
    tree = trace.packet.add().process_tree
    known = threads.filter(pl.col("pid").is_not_null()).sort("thread_id")
    for pid in known.get_column("pid").unique(maintain_order=True):
        tree.processes.add(pid=pid)
    for thread, pid, name in known.select("thread_id", "pid", "name").iter_rows():
        tree.threads.add(tid=thread, tgid=pid, name=name or "")
    return bytes(trace.SerializeToString())


def _bundle(cpu: int, switches: pl.DataFrame, wakings: pl.DataFrame, names: pl.DataFrame) -> bytes:
    trace = perfetto_trace_pb2.Trace()
    bundle = trace.packet.add().ftrace_events
    bundle.cpu = cpu
    table = bundle.compact_sched
    used = pl.concat([switches.select(thread_id="other_thread_id"), wakings.select("thread_id")]).unique()
    named = used.join(names, on="thread_id", how="left").with_columns(pl.col("name").fill_null("?")).sort("name")
    texts = named.get_column("name").unique(maintain_order=True)
    table.intern_table.extend(texts.to_list())
    place = named.select("thread_id", index=pl.col("name").rank("dense") - 1)

    def indices(threads: pl.DataFrame) -> list[int]:
        joined = threads.join(place, on="thread_id", how="left", maintain_order="left")
        return joined.get_column("index").cast(pl.Int64).to_list()

    if switches.height:
        table.switch_timestamp.extend(_deltas(switches))
        states = switches.get_column("state").replace_strict(_STATES, default=0, return_dtype=pl.Int64)
        table.switch_prev_state.extend(states.to_list())
        table.switch_next_pid.extend(switches.get_column("other_thread_id").to_list())
        table.switch_next_prio.extend([_PRIORITY] * switches.height)
        table.switch_next_comm_index.extend(indices(switches.select(thread_id="other_thread_id")))
    if wakings.height:
        table.waking_timestamp.extend(_deltas(wakings))
        table.waking_pid.extend(wakings.get_column("thread_id").to_list())
        table.waking_target_cpu.extend(wakings.get_column("target_cpu").fill_null(cpu).to_list())
        table.waking_prio.extend([_PRIORITY] * wakings.height)
        table.waking_comm_index.extend(indices(wakings.select("thread_id")))
        handled = wakings.select(pl.when("by_handler").then(_HANDLED).otherwise(0)).to_series()
        table.waking_common_flags.extend(handled.to_list())
    return bytes(trace.SerializeToString())


def _deltas(frame: pl.DataFrame) -> list[int]:
    """Return each time's difference from the previous one."""
    return list(np.diff(frame.get_column("time_ns").to_numpy(), prepend=0).tolist())


#: Columns of `kernel_events` for the scheduling view.
SWITCHING: Final = ("time_ns", "cpu", "thread_id", "kind", "name", "other_thread_id", "state", "value")


def whole_switches(switches: pl.DataFrame, states: pl.DataFrame) -> pl.DataFrame:
    """Insert switches into `kernel_events` that the kernel did not record.

    One is missing if the thread that leaves a CPU is not the one that arrived last. It is inserted at the time when
    that thread began to run according to its states, or else directly before it left.

    Returns:
        cpu, time_ns, thread_id, other_thread_id, state.
    """
    columns = ("cpu", "time_ns", "thread_id", "other_thread_id", "state")
    ordered = switches.select(columns).sort("cpu", "time_ns", maintain_order=True).with_row_index("place")
    following = ordered.with_columns(
        next_ns=pl.col("time_ns").shift(-1).over("cpu"), who=pl.col("thread_id").shift(-1).over("cpu")
    )
    missing = following.filter(pl.col("who") != pl.col("other_thread_id")).sort("next_ns")
    began = states.filter(pl.col("state") == "running").select(
        pl.col("cpu"), who=pl.col("thread_id"), began_ns=pl.col("start_ns")
    )
    missing = missing.join_asof(
        began.sort("began_ns"), left_on="next_ns", right_on="began_ns", by=["cpu", "who"], check_sortedness=False
    )
    known = pl.col("began_ns") > pl.col("time_ns")
    put = missing.select(
        "place",
        "cpu",
        time_ns=pl.when(known).then("began_ns").otherwise("next_ns"),
        thread_id="other_thread_id",
        other_thread_id="who",
        state=pl.when(pl.col("other_thread_id") == 0).then(pl.lit("idle")).otherwise(pl.lit("runnable")),
    )
    both = pl.concat([ordered.with_columns(after=pl.lit(False)), put.with_columns(after=pl.lit(True))])
    return both.sort("place", "after").select(columns)


#: Interval over which faults are counted: a minor one takes about 1 µs, and a model's first run has 100,000 of them.
FAULTS_NS: Final = 100_000
#: Faults of at least this duration are drawn as slices.
LONG_FAULT_NS: Final = 20_000
_HANDLERS: Final = ("interrupt", "softirq")
_OF_THREADS: Final = ("syscall", "block_io", "gpu_job", "fence_wait", "signal")
_FREQUENCY: Final = "cpu_frequency"
_DRAWN: Final = ("time_ns", "cpu", "thread_id", "kind", "name", "duration_ns", "value")
_STATE_COLUMNS: Final = ("thread_id", "start_ns", "end_ns", "state", "wait", "cpu")
_LOSSES: Final = ("cpu", "buffer", "start_ns", "end_ns", "events")
_KIND: Final = pl.col("kind")
#: Function that creates a track and returns its number.
Lay = Callable[..., int]


class KernelPlane:
    """Kernel plane of one session: its frames, and their tracks once `lay_out` was called."""

    def __init__(self, batches: Batches) -> None:
        self._switching = whole(batches, "kernel_events", SWITCHING, _KIND.is_in(["switch", "waking", "fork"]))
        columns = ("time_ns", "thread_id", "kind", "duration_ns")
        self._faults = whole(batches, "kernel_events", columns, _KIND == "page_fault").drop("kind")
        kinds = [*_HANDLERS, *_OF_THREADS, _FREQUENCY]
        self._events = whole(batches, "kernel_events", _DRAWN, _KIND.is_in(kinds))
        self._states = whole(batches, "thread_states", _STATE_COLUMNS)
        self._losses = whole(batches, "kernel_losses", _LOSSES)
        pids = whole(batches, "processes", ("process_id", "pid"))
        threads = whole(batches, "kernel_threads", ("thread_id", "process_id", "name"))
        self._threads = threads.join(pids, on="process_id", how="left", maintain_order="left")
        self._long_faults = long_faults(self._faults, self._states)
        self._slices: list[pl.DataFrame] = []
        self._counters: list[pl.DataFrame] = []

    def starts(self) -> Sequence[object]:
        """Return the start of each frame, None for an empty one."""
        frames = (self._switching, self._faults, self._events)
        return [frame.get_column("time_ns").min() for frame in frames] + [self._losses.get_column("start_ns").min()]

    def processes(self) -> set[int]:
        """Return the measured processes."""
        return set(self._threads.get_column("process_id").drop_nulls().to_list())

    def lay_out(self, lay: Lay, roots: Mapping[int, int | None]) -> None:
        """Create all tracks: those of CPUs, then those of threads under the track of their process in `roots`."""
        handlers = of_cpus(self._events)
        if handlers.height:
            group = lay("interrupts of measured threads")
            for cpu, own in _by(handlers, "cpu"):
                self._put(lay(f"interrupts on CPU {cpu}", parent=group, lanes=Rule.STACK), own)
        for cpu, own in _by(self._losses, "cpu"):
            lost = own.select("start_ns", "end_ns", name=pl.lit("events lost"), category="buffer", events="events")
            self._put(lay(f"kernel events lost on CPU {cpu}", lanes=Rule.FLAT), lost)
        for cpu, own in _by(self._events.filter(_KIND == _FREQUENCY), "cpu"):
            self._count(lay(f"clock of CPU {cpu}", kind="counter", unit="kHz"), own.select("time_ns", "value"))
        held_up = dict(_by(of_threads(self._events, self._states, self._long_faults), "thread_id"))
        counted = dict(_by(minor_faults(self._faults, self._long_faults), "thread_id"))
        measured = self._threads.drop_nulls("process_id").sort("process_id", "thread_id")
        for thread, process, named, pid in measured.rows():
            root, name = roots.get(process), named or f"thread {thread}"
            known = {"kind": "thread", "pid": pid, "tid": thread} if root is not None else {}
            if thread in held_up:
                self._put(lay(name, parent=root, lanes=Rule.STACK, **known), held_up[thread])
            if thread in counted:
                per = f"minor faults of thread {thread} per {FAULTS_NS // 1000} µs"
                self._count(lay(per, parent=root, kind="counter", unit="faults"), counted[thread])

    def _put(self, track: int, rows: pl.DataFrame) -> None:
        self._slices.append(rows.with_columns(track=pl.lit(track, pl.UInt64)))

    def _count(self, track: int, rows: pl.DataFrame) -> None:
        own = rows.select("time_ns", pl.col("value").cast(pl.Float64))
        self._counters.append(own.select(pl.lit(track, pl.UInt64).alias("track"), "time_ns", "value"))

    def slices(self) -> Iterator[pl.DataFrame]:
        """Yield all slices, on the session's axis."""
        yield from self._slices

    def counters(self) -> Iterator[pl.DataFrame]:
        """Yield all counters: track, time_ns, value, on the session's axis."""
        yield from self._counters

    def scheduling(self, zero: int) -> Iterator[bytes]:
        """Return switches and wake-ups as the viewer's own scheduling events, on an axis that begins at `zero`."""
        moved = self._switching.drop_nulls("cpu").with_columns(pl.col("time_ns") - zero)
        states = self._states.with_columns(pl.col("start_ns") - zero)
        switches = whole_switches(moved.filter(_KIND == "switch"), states)
        # A new thread waits for a CPU as if it had been woken.
        wakings = moved.filter(_KIND.is_in(["waking", "fork"])).select(
            *("cpu", "time_ns"),
            thread_id=pl.when(_KIND == "fork").then("other_thread_id").otherwise("thread_id"),
            target_cpu="value",
            by_handler=pl.col("other_thread_id").is_null(),
        )
        return scheduling_packets(switches, wakings, self._threads.select("thread_id", "pid", "name"))


def of_cpus(events: pl.DataFrame) -> pl.DataFrame:
    """Return interrupts and softirqs by CPU, as slices that nest if one interrupts another.

    Returns:
        start_ns, end_ns, name, category, thread and cpu. A handler without a recorded exit has no duration.
    """
    return events.filter(_KIND.is_in(_HANDLERS)).select(
        "cpu", *_EXTENT, pl.col("name").fill_null("interrupt"), category="kind", thread="thread_id"
    )


def of_threads(events: pl.DataFrame, states: pl.DataFrame, faults: pl.DataFrame) -> pl.DataFrame:
    """Return each thread's delays, and its requests to storage and devices, as slices that nest.

    Only system calls that blocked the thread are included; without a recorded exit, a call ends with its last block.

    Returns:
        thread_id, start_ns, end_ns, name, category, and if known wait, blocked_ns and size_bytes.
    """
    blocked = states.filter(pl.col("state") == "blocked").sort("start_ns")
    calls = events.filter(_KIND == "syscall").select(
        "thread_id", "name", called_ns="time_ns", over_ns=pl.col("time_ns") + pl.col("duration_ns")
    )
    inside = blocked.join_asof(
        calls.sort("called_ns"), left_on="start_ns", right_on="called_ns", by="thread_id", check_sortedness=False
    ).filter(pl.col("called_ns").is_not_null() & (pl.col("over_ns").fill_null(pl.col("end_ns")) > pl.col("start_ns")))
    waited = inside.group_by("thread_id", "called_ns", maintain_order=True).agg(
        pl.col("name", "over_ns", "wait").first(),
        blocked_ns=(pl.col("end_ns") - pl.col("start_ns")).sum(),
        until_ns=pl.col("end_ns").max(),
    )
    held = waited.select(
        "thread_id",
        start_ns="called_ns",
        end_ns=pl.coalesce("over_ns", "until_ns"),
        name="name",
        category=pl.lit("syscall"),
        wait="wait",
        blocked_ns="blocked_ns",
    )
    throttled = states.filter(pl.col("state") == "throttled").select(
        "thread_id", "start_ns", "end_ns", name=pl.lit("throttled"), category=pl.lit("quota")
    )
    others = events.filter(_KIND.is_in(_OF_THREADS) & (_KIND != "syscall")).select(
        "thread_id", *_EXTENT, name=_OTHERS, category="kind", size_bytes=pl.when(_KIND == "block_io").then("value")
    )
    return pl.concat([held, faults, throttled, others], how="diagonal").drop_nulls("thread_id")


def long_faults(faults: pl.DataFrame, states: pl.DataFrame) -> pl.DataFrame:
    """Return page faults that get their own slice.

    These are faults that blocked a thread, up to the last wake-up, and long ones without a wait, for example for a 2
    MiB page, or for a page that a virtual machine's host first had to provide.

    Returns:
        thread_id, start_ns, end_ns, name, category, wait and blocked_ns.
    """
    major = _major_faults(faults, states)
    long = faults.filter(pl.col("duration_ns") >= LONG_FAULT_NS).select(
        "thread_id",
        start_ns="time_ns",
        end_ns=pl.col("time_ns") + pl.col("duration_ns"),
        name=pl.lit("minor fault"),
        category=pl.lit("page_fault"),
    )
    others = long.join(major, on=["thread_id", "start_ns"], how="anti")
    return pl.concat([major, others], how="diagonal").sort("thread_id", "start_ns")


def _major_faults(faults: pl.DataFrame, states: pl.DataFrame) -> pl.DataFrame:
    blocked = states.filter(pl.col("wait") == "page_fault").sort("start_ns")
    at = faults.select("thread_id", fault_ns="time_ns").sort("fault_ns")
    found = blocked.join_asof(at, left_on="start_ns", right_on="fault_ns", by="thread_id", check_sortedness=False)
    begin = pl.coalesce("fault_ns", "start_ns").alias("since_ns")
    each = found.group_by("thread_id", begin, maintain_order=True).agg(
        pl.col("end_ns").max(), pl.col("wait").first(), blocked_ns=(pl.col("end_ns") - pl.col("start_ns")).sum()
    )
    return each.select(
        "thread_id",
        "end_ns",
        "wait",
        "blocked_ns",
        start_ns="since_ns",
        name=pl.lit("major fault"),
        category=pl.lit("page_fault"),
    )


def minor_faults(faults: pl.DataFrame, long: pl.DataFrame) -> pl.DataFrame:
    """Count each thread's faults, except those in `long`, per interval of `FAULTS_NS`.

    Returns:
        thread_id, time_ns, value. A period without faults starts with a value of 0; values sum to the number of faults.
    """
    first = faults.get_column("time_ns").min()
    minor = faults.join(long, left_on=["thread_id", "time_ns"], right_on=["thread_id", "start_ns"], how="anti")
    slot = (pl.col("time_ns") - first) // FAULTS_NS
    counts = minor.group_by("thread_id", slot.alias("slot")).agg(value=pl.len().cast(pl.Int64))
    nothing = counts.select("thread_id", pl.col("slot") + 1, value=pl.lit(0, pl.Int64))
    both = pl.concat([counts, nothing.join(counts, on=["thread_id", "slot"], how="anti")])
    return both.sort("thread_id", "slot").select("thread_id", "value", time_ns=first + pl.col("slot") * FAULTS_NS)


_EXTENT: Final = (
    pl.col("time_ns").alias("start_ns"),
    (pl.col("time_ns") + pl.col("duration_ns").fill_null(0)).alias("end_ns"),
)
#: Details of events beyond their kind: a driver's job, or the number of a signal.
_OTHERS: Final = (
    pl.when(_KIND == "gpu_job")
    .then(pl.col("name").fill_null(_KIND))
    .when(_KIND == "signal")
    .then(pl.concat_str(_KIND, pl.lit(" "), pl.col("value").cast(pl.String), ignore_nulls=True))
    .otherwise(_KIND)
)


def _by(frame: pl.DataFrame, column: str) -> Iterator[tuple[int, pl.DataFrame]]:
    """Group rows by a column of numbers in ascending order and drop the column; null rows are left out."""
    parts = (
        frame.drop_nulls(column)
        .sort(column, maintain_order=True)
        .partition_by(column, as_dict=True, include_key=False, maintain_order=True)
    )
    for (value,), rows in parts.items():
        yield int(value), rows
