"""Derive the state of each measured thread at every instant from the kernel's switches and wake-ups.

It also intersects sorted intervals for the other modules of `delays`.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from aaco_pipeline.analysis.timeline.device_timeline import bounds

Numbers = npt.NDArray[np.int64]


def meetings(
    start: Numbers, end: Numbers, piece_start: Numbers, piece_end: Numbers
) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Intersect spans, which may overlap, with sorted, disjoint pieces.

    Returns:
        For every pair that shares time, by span, then by piece: the span's index, the piece's, and the shared start and
        end.
    """
    first = np.searchsorted(piece_end, start, side="right")
    counts = np.maximum(np.searchsorted(piece_start, end, side="left") - first, 0)
    span = np.repeat(np.arange(len(start)), counts)
    piece = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(first, counts)
    return span, piece, np.maximum(start[span], piece_start[piece]), np.minimum(end[span], piece_end[piece])


def within(at: Numbers, start: Numbers, end: Numbers) -> tuple[Numbers, npt.NDArray[np.bool_]]:
    """Locate each instant in sorted, disjoint intervals: the interval index of each hit, and a mask of hits."""
    which = np.searchsorted(end, at, side="right")
    inside = which < len(end)
    inside[inside] = start[which[inside]] <= at[inside]
    return which[inside], inside


def union(start: Numbers, end: Numbers) -> tuple[Numbers, Numbers]:
    """Merge intervals into sorted ones that neither overlap nor touch; empty intervals are dropped."""
    long = end > start
    order = np.argsort(start[long], kind="stable")
    start, reached = start[long][order], np.maximum.accumulate(end[long][order])
    if not len(start):
        return start, reached
    opens = np.append(True, start[1:] > reached[:-1])
    return start[opens], reached[np.append(opens[1:], True)]


RUNNING: Final = "running"
PREEMPTED: Final = "preempted"
THROTTLED: Final = "throttled"
QUEUED: Final = "queued"
BLOCKED: Final = "blocked"
STOPPED: Final = "stopped"
UNKNOWN: Final = "unknown"
#: Calls that return once storage has a file.
FLUSHES: Final = ("fsync", "fdatasync", "sync", "syncfs", "sync_file_range", "msync")
#: Awaited object of a thread that blocks in a system call, by call.
_WAITS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("futex", "futex_waitv"), "lock"),
    **dict.fromkeys(FLUSHES, "disk"),
    **dict.fromkeys(("nanosleep", "clock_nanosleep"), "sleep"),
    **dict.fromkeys(("poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait", "recvfrom", "recvmsg"), "io"),
    **dict.fromkeys(("sendto", "sendmsg", "io_uring_enter"), "io"),
}
#: If the CPU was idle for this fraction of a runnable time, no other thread took it.
_IDLE_SHARE: Final = 0.5
#: If the group's remaining throttling covers at least this fraction of a wait behind another thread, the quota caused
#: it. A wait lasts somewhat longer than the throttling, until the other thread is preempted.
_QUOTA_SHARE: Final = 0.8
#: An idle CPU takes up to this long to start a woken thread; it idles longer only if it may not run it.
_WAKES: Final = 1_000_000
RAN: Final = "ran"
#: Name of a wake-up by an interrupt handler, whichever thread it interrupted.
INTERRUPT: Final = "interrupt"
_SEEN_RUNNING: Final = ("syscall", "page_fault", "interrupt", "softirq", "block_io")
_OFF: Final = ("thread_id", "start_ns", "end_ns", "state", "cpu", "wait", "by_thread_id", "by_name")


def thread_states(
    events: pl.DataFrame, threads: pl.DataFrame, losses: pl.DataFrame, throttling: pl.DataFrame
) -> pl.DataFrame:
    """Derive `thread_states` of the measured threads from `kernel_events`, `kernel_threads` and `kernel_losses`.

    A thread's states are contiguous from its start or first switch to its end or the end of the recording.

    Args:
        events: The table.
        threads: The table.
        losses: The table.
        throttling: time_ns, throttled and throttled_ns: how often and how long the group's quota had kept it off the
            CPU by then.
    """
    own = threads.filter(pl.col("process_id").is_not_null())
    switches = events.filter(pl.col("kind") == "switch").select(
        "time_ns", "cpu", "thread_id", "other_thread_id", "state"
    )
    measured = own.get_column("thread_id").implode()
    out = switches.filter(pl.col("thread_id").is_in(measured)).select(
        "thread_id", "time_ns", "cpu", "state", is_in=pl.lit(False)
    )
    into = switches.filter(pl.col("other_thread_id").is_in(measured)).select(
        pl.col("other_thread_id").alias("thread_id"),
        "time_ns",
        "cpu",
        pl.lit(RUNNING).alias("state"),
        is_in=pl.lit(True),
    )
    # A thread starts as if it had just been woken: it waits for a CPU.
    forks = events.filter((pl.col("kind") == "fork") & pl.col("other_thread_id").is_in(measured))
    born = forks.select(
        pl.col("other_thread_id").alias("thread_id"),
        "time_ns",
        "cpu",
        pl.lit("sleeping").alias("state"),
        is_in=pl.lit(False),
    )
    seen = pl.concat([out, into, born]).sort("thread_id", "time_ns", "is_in")
    last = int(events.get_column("time_ns").to_numpy().max()) if events.height else 0
    following = seen.with_columns(
        end_ns=pl.col("time_ns").shift(-1).over("thread_id").fill_null(last),
        next_in=pl.col("is_in").shift(-1).over("thread_id"),
        next_cpu=pl.col("cpu").shift(-1).over("thread_id"),
    ).rename({"time_ns": "start_ns"})
    following = following.filter(pl.col("state") != "dead")
    # Two switches of a thread in the same direction: the switch between them was not recorded.
    following = following.with_columns(torn=(pl.col("next_in") == pl.col("is_in")).fill_null(False))
    got_off = pl.when("torn").then(pl.lit(UNKNOWN)).otherwise(pl.lit(RUNNING))
    running = following.filter("is_in").select("thread_id", "start_ns", "end_ns", "cpu", state=got_off)
    away, back = _until_seen(following.filter(~pl.col("is_in")), events)
    unrecorded = back.filter(pl.col("end_ns") > pl.col("start_ns")).select(
        "cpu", time_ns="start_ns", other_thread_id="thread_id"
    )
    slices = _slices(pl.concat([switches.select(unrecorded.columns), unrecorded]), last)
    states = pl.concat([running, back, _runnable(away, slices), _waiting(away, events, slices)], how="diagonal")
    states = _with_throttling(states.filter(pl.col("end_ns") > pl.col("start_ns")), throttling)
    names = threads.select(pl.col("thread_id").alias("by_thread_id"), pl.col("name").alias("thread_name"))
    named = states.join(names, on="by_thread_id", how="left").with_columns(
        by_name=pl.coalesce("by_name", "thread_name")
    )
    return _with_losses(named.select(_OFF), losses).sort("thread_id", "start_ns")


def _until_seen(away: pl.DataFrame, events: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Cut off-CPU times without a recorded end at the thread's first sighting on a CPU; add that running time.

    The kernel's accounting says exactly since when it has had the CPU. Its own event or interrupt only shows it running
    at that moment.
    """
    seen = (
        events.filter(pl.col("kind").is_in([*_SEEN_RUNNING, RAN]))
        .select("thread_id", seen_ns="time_ns", is_exact=pl.col("kind") == RAN)
        .sort("seen_ns", "is_exact", descending=[False, True])
        .unique(["thread_id", "seen_ns"], keep="first", maintain_order=True)
    )
    away = away.sort("start_ns").join_asof(
        seen, left_on="start_ns", right_on="seen_ns", by="thread_id", strategy="forward", check_sortedness=False
    )
    over = pl.when("torn").then(pl.min_horizontal("end_ns", pl.col("seen_ns").fill_null(pl.col("end_ns"))))
    on = pl.coalesce("next_cpu", "cpu")  # it ran on the CPU that it next leaves
    back = away.filter("torn").select("thread_id", start_ns=over, end_ns="end_ns", cpu=on, state=pl.lit(RUNNING))
    torn = pl.col("torn") & ~(pl.col("is_exact") & (pl.col("seen_ns") <= pl.col("end_ns"))).fill_null(False)
    return away.with_columns(end_ns=over.otherwise("end_ns"), torn=torn), back


def _slices(switches: pl.DataFrame, last: int) -> pl.DataFrame:
    """Occupancy of each CPU from switch to switch: cpu, start_ns, end_ns, thread_id; 0 while idle."""
    ordered = switches.sort("cpu", "time_ns")
    return ordered.select(
        "cpu",
        start_ns="time_ns",
        end_ns=pl.col("time_ns").shift(-1).over("cpu").fill_null(last),
        thread_id="other_thread_id",
    )


def _runnable(away: pl.DataFrame, slices: pl.DataFrame) -> pl.DataFrame:
    """Intervals in which a thread was runnable but not running, because its CPU ran another thread or was idle."""
    spans = away.filter(pl.col("state") == "runnable").select("thread_id", "start_ns", "end_ns", "cpu", "torn")
    idled, others = _idled(spans, slices)
    return spans.with_columns(
        state=pl.when("torn")
        .then(pl.lit(UNKNOWN))
        .when(pl.Series(idled))
        .then(pl.lit(QUEUED))
        .otherwise(pl.lit(PREEMPTED)),
        could_start=pl.Series(idled),
    ).with_columns(by_thread_id=pl.when(pl.col("state") == PREEMPTED).then(others))


def _idled(spans: pl.DataFrame, slices: pl.DataFrame) -> tuple[npt.NDArray[np.bool_], pl.Series]:
    """Return whether a span's CPU was mostly idle, and the other thread that had most of the rest."""
    idle, others = _had_the_cpu(spans, slices)
    start, end = bounds(spans)
    return idle >= _IDLE_SHARE * (end - start), others


def _waiting(away: pl.DataFrame, events: pl.DataFrame, slices: pl.DataFrame) -> pl.DataFrame:
    """Intervals in which a thread waited: until it was woken, and from then on for a CPU."""
    spans = away.filter(pl.col("state").is_in(["sleeping", "disk_sleep", "stopped"])).sort("start_ns")
    begins = pl.col("kind") == "fork"
    wakes = (
        events.filter((pl.col("kind") == "waking") | begins)
        .select(
            pl.when(begins).then("other_thread_id").otherwise("thread_id").alias("thread_id"),
            pl.col("time_ns").alias("woken_ns"),
            pl.when(begins).then("thread_id").otherwise("other_thread_id").alias("waker"),
            by_handler=pl.col("name") == INTERRUPT,
        )
        .sort("woken_ns")
    )
    spans = spans.join_asof(
        wakes, left_on="start_ns", right_on="woken_ns", by="thread_id", strategy="forward", check_sortedness=False
    )
    woken = pl.col("woken_ns") <= pl.col("end_ns")
    spans = spans.with_columns(
        waker=pl.when(woken).then("waker"),
        was_woken=woken.fill_null(False),
        until=pl.when(woken).then("woken_ns").otherwise("end_ns"),
    )
    why = _wait_of(spans, events)
    stopped = pl.col("state") == "stopped"
    from_interrupt = pl.col("was_woken") & pl.col("by_handler").fill_null(False)
    blocked = spans.select(
        "thread_id",
        "start_ns",
        end_ns="until",
        state=pl.when(stopped).then(pl.lit(STOPPED)).otherwise(pl.lit(BLOCKED)),
        wait=pl.when(~stopped).then(why),
        by_thread_id="waker",
        by_name=pl.when(from_interrupt).then(pl.lit(INTERRUPT)),
    )
    queued = spans.filter("was_woken").select(
        "thread_id",
        start_ns="until",
        end_ns="end_ns",
        cpu=pl.coalesce("next_cpu", "cpu"),
        state=pl.when("torn").then(pl.lit(UNKNOWN)).otherwise(pl.lit(QUEUED)),
    )
    idled, others = _idled(queued, slices)
    could_start = pl.Series(idled) & (pl.col("end_ns") - pl.col("start_ns") > _WAKES)
    by = pl.when(pl.col("state") == QUEUED).then(others)
    return pl.concat([blocked, queued.with_columns(by_thread_id=by, could_start=could_start)], how="diagonal")


def _wait_of(spans: pl.DataFrame, events: pl.DataFrame) -> pl.Series:
    """Return the reason for each wait, from the last event before the thread left the CPU, or null.

    The thread waits for a fault if no call has followed it, else in its current call. If the call has no known meaning,
    or no calls were recorded (so one may have followed any fault), the thread's state shows whether it waits for a
    device.
    """
    own = events.filter(pl.col("kind").is_in(["syscall", "page_fault"])).select(
        "thread_id",
        pl.col("time_ns").alias("began_ns"),
        pl.col("kind").alias("what"),
        "name",
        over_ns=pl.col("time_ns") + pl.col("duration_ns"),
    )
    faults = own.filter(pl.col("what") == "page_fault").select("thread_id", fault_ns="began_ns").sort("fault_ns")
    calls = own.filter(pl.col("what") == "syscall").select("thread_id", "began_ns", "name", "over_ns").sort("began_ns")
    at = spans.select("thread_id", "start_ns", "state").with_row_index("row").sort("start_ns")
    at = at.join_asof(calls, left_on="start_ns", right_on="began_ns", by="thread_id", check_sortedness=False)
    at = at.join_asof(faults, left_on="start_ns", right_on="fault_ns", by="thread_id", check_sortedness=False)
    inside = pl.col("began_ns").is_not_null() & (
        pl.col("over_ns").is_null() | (pl.col("over_ns") >= pl.col("start_ns"))
    )
    fault_since = (
        pl.when(inside)
        .then(pl.col("fault_ns") >= pl.col("began_ns"))
        .otherwise(pl.col("fault_ns") >= pl.col("over_ns").fill_null(pl.col("fault_ns")))
    )
    on_disk = pl.col("state") == "disk_sleep"
    by_call = pl.col("name").replace_strict(dict(_WAITS), default=None, return_dtype=pl.String)
    why = (
        pl.when(fault_since.fill_null(False) & (on_disk | ~inside) & pl.lit(calls.height > 0))
        .then(pl.lit("page_fault"))
        .when(inside & by_call.is_not_null())
        .then(by_call)
        .when(on_disk)
        .then(pl.lit("disk"))
        .otherwise(pl.lit("other"))
    )
    return at.with_columns(why=why).sort("row").get_column("why")


def _had_the_cpu(spans: pl.DataFrame, slices: pl.DataFrame) -> tuple[Numbers, pl.Series]:
    """Return the idle time of each span's CPU, and the other thread that had most of it (ties: the lowest number)."""
    numbered = spans.select("start_ns", "end_ns", "cpu", own="thread_id").with_row_index("row")
    idle = np.zeros(spans.height, np.int64)
    found: list[pl.DataFrame] = []
    for (cpu,), some in slices.group_by("cpu", maintain_order=True):
        asked = numbered.filter(pl.col("cpu") == cpu)
        which, place, since, until = meetings(*bounds(asked), *bounds(some))
        found.append(
            asked.select("row", "own")[which].with_columns(
                some.get_column("thread_id")[place], shared_ns=pl.Series(until - since)
            )
        )
    nothing = (
        numbered.select("row", "own").clear().with_columns(thread_id=pl.lit(0, pl.Int64), shared_ns=pl.lit(0, pl.Int64))
    )
    each = pl.concat([nothing, *found])
    idled = each.filter(pl.col("thread_id") == 0).group_by("row").agg(pl.col("shared_ns").sum())
    idle[idled.get_column("row").to_numpy()] = idled.get_column("shared_ns").to_numpy()
    most = (
        each.filter((pl.col("thread_id") != 0) & (pl.col("thread_id") != pl.col("own")) & (pl.col("shared_ns") > 0))
        .group_by("row", "thread_id")
        .agg(pl.col("shared_ns").sum())
        .sort("shared_ns", "thread_id", descending=[True, False])
        .unique("row", keep="first", maintain_order=True)
    )
    others = numbered.select("row").join(most.select("row", "thread_id"), on="row", how="left", maintain_order="left")
    return idle, others.get_column("thread_id")


def _with_throttling(states: pl.DataFrame, throttling: pl.DataFrame) -> pl.DataFrame:
    """Mark states as throttled if the group's quota kept a thread from its CPU, according to the group's counters.

    This is certain if the count of exhausted quotas rose between the readings around a wait during which nobody had the
    CPU. If another thread had it, as on any busy machine, the time accounted up to a reading is attributed to each
    thread's longest waits until it is used up: the thread was not throttled more often or for longer.
    """
    if not throttling.height:
        return states
    at, count, length = (throttling.get_column(name).to_numpy() for name in ("time_ns", "throttled", "throttled_ns"))
    start, end = bounds(states)
    before = np.clip(np.searchsorted(at, start, side="right") - 1, 0, len(at) - 1)
    after = np.clip(np.searchsorted(at, end, side="left"), 0, len(at) - 1)
    # A quota counts as exhausted only once it is refilled, that is, by the reading after the wait.
    counted = {"rose": np.diff(count, prepend=count[0])[after], "lasted_ns": np.diff(length, prepend=length[0])[after]}
    waits = pl.col("state").is_in([PREEMPTED, QUEUED]) & pl.Series(count[after] > count[before])
    asked = states.select(
        "thread_id",
        waits.alias("waits"),
        pl.col("could_start").fill_null(False),
        (pl.col("end_ns") - pl.col("start_ns")).alias("took_ns"),
        reading=pl.Series(after),
        **{name: pl.Series(values) for name, values in counted.items()},
    ).with_row_index("row")
    is_long = pl.col("took_ns") > _WAKES
    asked = asked.filter(pl.col("waits") & (pl.col("could_start") | is_long)).sort(
        "could_start", "took_ns", "row", descending=[True, True, False]
    )
    group = ["thread_id", "reading"]
    left_ns = pl.col("lasted_ns") - pl.col("took_ns").filter("could_start").sum().over(group)
    asked = asked.filter(pl.col("could_start") | (left_ns >= _QUOTA_SHARE * pl.col("took_ns")))  # else too long for any
    left_ns = pl.col("lasted_ns") - pl.col("took_ns").cum_sum().over(group) + pl.col("took_ns")
    fits = (is_long.cum_sum().over(group) <= pl.col("rose")) & (left_ns >= _QUOTA_SHARE * pl.col("took_ns"))
    used_up = np.zeros(states.height, np.bool_)
    used_up[asked.filter(pl.col("could_start") | fits).get_column("row").to_numpy()] = True
    throttled = pl.Series(used_up)
    return states.with_columns(
        state=pl.when(throttled).then(pl.lit(THROTTLED)).otherwise("state"),
        by_thread_id=pl.when(~throttled).then("by_thread_id"),
    )


def _with_losses(states: pl.DataFrame, losses: pl.DataFrame) -> pl.DataFrame:
    """Mark states as unknown if lost events could have changed them.

    A running thread is affected by losses on its CPU. A waiting one may have run on, or been woken from, any CPU with
    losses; if so, its state is unknown from its possible return until it is next seen.
    """
    is_off = pl.col("state") != RUNNING
    lost = dict.fromkeys(("cpu", "wait", "by_thread_id", "by_name"))
    for cpu, buffer, start, end in losses.select("cpu", "buffer", "start_ns", "end_ns").iter_rows():
        anywhere = pl.col("cpu").is_null() | (is_off & pl.lit(buffer == "switches"))
        touched = (
            (pl.col("start_ns") < end)
            & (pl.col("end_ns") > start)
            & (anywhere | (pl.col("cpu") == cpu).fill_null(False))
        )
        hit = states.filter(touched)
        over = pl.when(is_off).then("end_ns").otherwise(pl.min_horizontal("end_ns", pl.lit(end, pl.Int64)))
        pieces = [
            hit.with_columns(end_ns=pl.col("end_ns").clip(upper_bound=start)),
            hit.with_columns(
                start_ns=pl.col("start_ns").clip(lower_bound=start),
                end_ns=over,
                state=pl.lit(UNKNOWN),
                **{name: pl.lit(value, states.schema[name]) for name, value in lost.items()},
            ),
            hit.with_columns(start_ns=over),
        ]
        states = pl.concat([states.filter(~touched), *pieces]).filter(pl.col("end_ns") > pl.col("start_ns"))
    return states
