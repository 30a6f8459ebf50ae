"""Upper bounds on the time saved by removing the cause of a class: the window minus what must remain of it.

It also measures the time per repetition without a profiler, where the session has it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import polars as pl

from aaco_pipeline.analysis.answer.shares import PARTS, Host, host_in, idle_parts
from aaco_pipeline.analysis.answer.terms import one_of
from aaco_pipeline.analysis.answer.window import Window, allocating, inside
from aaco_pipeline.analysis.steady.parts import CUT_OFF
from aaco_pipeline.analysis.timeline.activities import COMMUNICATION, COMPUTE, Recorded
from aaco_pipeline.analysis.timeline.device_timeline import coverage

#: Kernels of two processes on one GPU differ by a percent or two; only the rest of the device's time is sure to stay.
DIFFERS: Final = 0.02
#: The host's work differs more: the same 15,000 launches took 43.5 to 47.5 ms in three runs, a transformer's 74 to 80.
HOST_DIFFERS: Final = 0.1
#: A kernel's record includes the stamping of its two ends: kernels of 1,042 ns on record follow one another every
#: 962 ns without a tracer (H100, CUPTI, a graph of 200).
STAMPING_NS: Final = 100
#: The first touch of memory that was just allocated refills the page tables' caches: 29 µs for 256 MiB (H100).
PAGE_BYTES: Final = 2 << 20
PAGE_NS: Final = 250


@dataclass(frozen=True)
class Stays:
    """The part that a fix leaves unchanged.

    Attributes:
        idle: Parts of idle time that stay, each under a condition on its wait: always, unless it was for a `copy`,
            unless the host's long `work` followed it, or except calls of `memory`, together with the rest of the wait
            where they fill most of it.
        copies: Which copies stay: all, none, or all but those that read back.
        working: The host still works, and the device may wait for that.
        launching: The host still launches, and the device may wait for that.
    """

    idle: Mapping[str, str]
    copies: str = "all"
    working: bool = True
    launching: bool = True


_ALWAYS, _NO_COPY, _NO_WORK, _NO_MEMORY = "always", "copy", "work", "memory"
#: By class. Any other class disappears alone: collectives, a late rank, a lowered clock, a busy CPU, compilation.
_STAYS: Final[Mapping[str, Stays]] = {
    # A graph is one launch: it is in time where launches were late, and the host's own work runs beside it. A wait
    # still drains the device, and the host's work before it launches again still keeps it idle.
    "launch": Stays({"wait": _ALWAYS, "waited_work": _ALWAYS}, launching=False),
    # Without waits the host runs ahead: its work is hidden, up to its own length. The copies it waited for go.
    "sync": Stays({}, copies="but read-backs"),
    # Work moved off the path removes the wait before it, which exists for its sake, but no other wait.
    "host": Stays({"wait": _NO_WORK, "restart": _NO_WORK}, working=False),
    # Nothing waits for a pinned copy beside kernels, and one of many is one call; any other wait stays.
    "copy": Stays({"wait": _NO_COPY, "restart": _NO_COPY, "waited_work": _NO_COPY}, copies="none", launching=False),
    # Freeing waits for the device; without it the host runs ahead. Other waits stay, but not the long work after them
    # that is long because it allocates.
    "allocation": Stays({"wait": _NO_MEMORY, "restart": _NO_MEMORY, "waited_work": _NO_MEMORY}),
}


@dataclass(frozen=True)
class Held:
    """Contents of a window, from which the time that a fix leaves is computed.

    Attributes:
        whole_ns: Length of the window.
        busy_ns: Busy time by the copies that stay (`all`, `but read-backs`, `none`).
        kernels: Number of kernels.
        idle: Rows of `idle_parts`.
        host: Activity of the launching threads.
        fresh_bytes: Memory allocated on the device in the window.
    """

    whole_ns: int
    busy_ns: Mapping[str, int]
    kernels: int
    idle: pl.DataFrame
    host: Host
    fresh_bytes: int = 0


@dataclass(frozen=True)
class Unprofiled:
    """The time of one of the window's `repetitions` without a profiler, and of the same under it."""

    repetitions: int
    period_ns: float
    traced_ns: float


def held_in(
    window: Window, own: pl.DataFrame, gaps: pl.DataFrame, run: Recorded, tables: Mapping[str, pl.DataFrame]
) -> Held:
    """Collect the contents of the window; `own` are the device's activities, `gaps` its gaps."""
    pieces, calls = window.pieces, tables["api_calls"]
    waiting = pl.concat([run.waits.calls.select("call_id"), allocating(calls).select("call_id")]).unique()
    host = host_in(own, calls, waiting, pieces, tables["memory_copies"])
    fresh = inside(tables["memory_allocations"].filter(pl.col("device_id") == window.device), pieces)
    return Held(
        int(pieces.select((pl.col("end_ns") - pl.col("start_ns")).sum()).item()),
        busy_by_copies(own, tables["memory_copies"], pieces),
        inside(own.filter(pl.col("activity_kind").cast(pl.String) == "dispatch"), pieces).height,
        idle_parts(gaps, calls, coverage(pieces), host.long_ns, tables["memory_copies"]),
        host,
        int(fresh.filter(pl.col("operation").cast(pl.String) == "allocation").get_column("size_bytes").sum()),
    )


def busy_by_copies(activities: pl.DataFrame, copies: pl.DataFrame, pieces: pl.DataFrame) -> dict[str, int]:
    """Time of the pieces in which something runs, by the copies that stay; `copies` has copy_id and direction."""
    category = pl.col("category").cast(pl.String)
    back = copies.filter(pl.col("direction").cast(pl.String) == "device_to_host").get_column("copy_id")
    is_copy = pl.col("activity_kind").cast(pl.String) == "memory_copy"
    reads_back = is_copy & pl.col("activity_id").is_in(back.implode())
    staying = {
        "all": activities,
        "but read-backs": activities.filter(~reads_back),
        "none": activities.filter(category.is_in([COMPUTE, COMMUNICATION])),
    }
    return {which: coverage(own).within(pieces) for which, own in staying.items()}


def saved(name: str, own_ns: int, held: Held) -> int:
    """The most that removing the class's cause saves, in ns of the window: its own share `own_ns`, or more."""
    stays = _STAYS.get(name)
    if stays is None:
        return own_ns
    remains = max(
        _busy(name, stays, held) + sum(_idle(stays, held).values()),
        (1 - HOST_DIFFERS) * held.host.working_ns if stays.working else 0,
        (1 - HOST_DIFFERS) * held.host.pace_ns if stays.launching else 0,
    )
    return max(own_ns, round(held.whole_ns - remains))


def saved_unprofiled(name: str, own_ns: int, held: Held, without: Unprofiled) -> int | None:
    """The most saved in one repetition without a profiler, in ns; None where its marks do not show its length.

    The tracer slows the host's calls but not the device. The remaining time therefore comes from the trace, and the
    saved time from the run without it: idle time except the host's own long work shrinks proportionally, and all time
    added by the tracer comes off launching and the cause's own share. An asynchronous program's marks close before the
    device is done: a period shorter than its kernels need says nothing.
    """
    each = 1 / without.repetitions
    stays = _STAYS.get(name)
    if without.period_ns < _busy(name, Stays({}, copies="none"), held) * each:
        return None
    if stays is None:
        return round(min(without.period_ns, own_ns * each))
    slower = max(0.0, without.traced_ns - without.period_ns)
    fixed = (held.busy_ns["all"] + _long_work(held)) * each
    traced = held.whole_ns * each - fixed
    shrunk = min(1.0, max(0.0, without.period_ns - fixed) / traced) if traced > 0 else 1.0
    idle = sum(time * (1 if part == "waited_work" else shrunk) for part, time in _idle(stays, held).items())
    remains = max(
        (_busy(name, stays, held) + idle) * each,
        (1 - HOST_DIFFERS) * held.host.working_ns * each if stays.working else 0.0,
        (1 - HOST_DIFFERS) * (held.host.pace_ns * each - slower) if stays.launching else 0.0,
    )
    return round(min(without.period_ns, max(0.0, own_ns * each - slower, without.period_ns - remains)))


def _busy(name: str, stays: Stays, held: Held) -> float:
    """The least time that the device still works."""
    fresh = -(-held.fresh_bytes // PAGE_BYTES) * PAGE_NS if name == "allocation" else 0
    return max(0.0, (1 - DIFFERS) * held.busy_ns[stays.copies] - STAMPING_NS * held.kernels - fresh)


def _long_work(held: Held) -> int:
    """The host's long work while the device is idle, except calls that allocate, which are as slow as all calls."""
    work = pl.col("work") + pl.col("waited_work")
    return int(held.idle.select((work - pl.min_horizontal("allocating", work)).sum()).item() or 0)


def _idle(stays: Stays, held: Held) -> dict[str, int]:
    """Idle time that stays, by part."""
    gap = pl.sum_horizontal(*PARTS)
    unless = {
        _ALWAYS: pl.lit(True),
        _NO_COPY: ~pl.col("after_copy"),
        _NO_WORK: ~pl.col("after_work"),
        _NO_MEMORY: 2 * pl.col("allocating") <= gap,
    }
    found = {}
    for part, condition in stays.idle.items():
        time = pl.col(part)
        if condition == _NO_MEMORY:
            time = (time - pl.col("allocating")).clip(lower_bound=0)
        found[part] = int(held.idle.select(pl.when(unless[condition]).then(time).otherwise(0).sum()).item() or 0)
    return found


def unprofiled(iterations: pl.DataFrame, window: Window) -> Unprofiled | None:
    """The time from one measured iteration's beginning to the next one's: the mean of each run, the median of runs.

    None unless the window's repetitions are exactly the traced run's marked iterations, and the other runs mark as
    many: whole runs are not iterations, and a program that marks something else without a tracer is not comparable.
    Iterations of a model come from one loop, however many a pass has.
    """
    if one_of(window.rule) != "iteration" or CUT_OFF in window.rule or not window.repetitions:
        return None
    measured = iterations.filter(pl.col("phase").cast(pl.String) == "measure").drop_nulls("start_ns")
    started = pl.col("start_ns")
    periods = measured.group_by("pass", "run").agg(
        period_ns=(started.max() - started.min()) / (pl.len() - 1), number=pl.len()
    )
    periods = periods.filter(pl.col("number") > 1)
    of = pl.col("pass").cast(pl.String)
    traced = periods.filter(of == "trace")
    if traced.height != 1:
        return None
    alike = pl.col("run").is_null() | (pl.col("number") == traced.item(0, "number"))
    period = periods.filter((of == "latency") & alike).get_column("period_ns").median()
    if not isinstance(period, float):
        return None
    return Unprofiled(window.repetitions, period, float(traced.item(0, "period_ns")))
