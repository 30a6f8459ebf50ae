"""Upper bounds on the time saved by removing the cause of a class: the window minus the time that must remain.

It also measures the time per repetition without a profiler, if the session has such a pass.
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

#: Kernel times of two processes on one GPU differ by one or two percent; only the rest of device time is sure to stay.
DIFFERS: Final = 0.02
#: Host work varies more: 15,000 identical launches took 43.5 to 47.5 ms in three runs, a transformer's 74 to 80 ms.
HOST_DIFFERS: Final = 0.1
#: Kernel records include timestamping: 1,042 ns kernels run every 962 ns untraced (H100, CUPTI, a graph of 200).
STAMPING_NS: Final = 100
#: The first access to newly allocated memory refills the TLBs: 29 µs for 256 MiB (H100).
PAGE_BYTES: Final = 2 << 20
PAGE_NS: Final = 250


@dataclass(frozen=True)
class Stays:
    """The time that a fix leaves unchanged.

    Attributes:
        idle: Parts of idle time that stay, each under a condition on its wait: always; unless it was for a `copy`;
            unless long host `work` followed it; or except `memory` calls, together with the rest of the wait if they
            fill most of it.
        copies: Copies that stay: all, none, or all except read-backs.
        working: The host still works, and the device may wait for that.
        launching: The host still launches, and the device may wait for that.
    """

    idle: Mapping[str, str]
    copies: str = "all"
    working: bool = True
    launching: bool = True


_ALWAYS, _NO_COPY, _NO_WORK, _NO_MEMORY = "always", "copy", "work", "memory"
#: By class. The time of any other class disappears on its own: collectives, late rank, lowered clock, busy CPU,
#: compilation.
_STAYS: Final[Mapping[str, Stays]] = {
    # A graph is one launch, issued in time, and host work overlaps it. A wait still drains the device, and later host
    # work idles it.
    "launch": Stays({"wait": _ALWAYS, "waited_work": _ALWAYS}, launching=False),
    # Without waits, the host runs ahead and hides up to its own length of work. Copies that it waited for disappear.
    "sync": Stays({}, copies="but read-backs"),
    # Moving work off the path also removes the wait before it, but no other wait.
    "host": Stays({"wait": _NO_WORK, "restart": _NO_WORK}, working=False),
    # Nothing waits for a pinned copy that overlaps kernels, and batched copies are one call; any other wait stays.
    "copy": Stays({"wait": _NO_COPY, "restart": _NO_COPY, "waited_work": _NO_COPY}, copies="none", launching=False),
    # Freeing memory waits for the device; without it the host runs ahead. Other waits stay, but not the long
    # allocations after them.
    "allocation": Stays({"wait": _NO_MEMORY, "restart": _NO_MEMORY, "waited_work": _NO_MEMORY}),
}


@dataclass(frozen=True)
class Held:
    """Contents of a window, used to compute the time that remains after a fix.

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
    """Time of one of the window's `repetitions`, without and with a profiler."""

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
    """Busy time of the pieces, keyed by the copies that stay; `copies` has copy_id and direction."""
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
    """Return the most that removing the class's cause saves in the window, in ns: its own share `own_ns`, or more."""
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
    """Return the maximum saving in one unprofiled repetition, in ns; None if its marks do not show its length.

    The tracer slows host calls but not the device. The remaining time is therefore taken from the trace, and the total
    from the untraced run: idle time shrinks proportionally, except for the host's own long work, and all tracer
    overhead is deducted from launching and the cause's own share. An asynchronous program's marks close before the
    device is done, so a period shorter than its kernels' time is not usable.
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
    """Return the minimum time that the device still works."""
    fresh = -(-held.fresh_bytes // PAGE_BYTES) * PAGE_NS if name == "allocation" else 0
    return max(0.0, (1 - DIFFERS) * held.busy_ns[stays.copies] - STAMPING_NS * held.kernels - fresh)


def _long_work(held: Held) -> int:
    """Sum long host work while the device is idle, except allocation calls, which are slowed like all calls."""
    work = pl.col("work") + pl.col("waited_work")
    return int(held.idle.select((work - pl.min_horizontal("allocating", work)).sum()).item() or 0)


def _idle(stays: Stays, held: Held) -> dict[str, int]:
    """Return the remaining idle time by part."""
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
    """Return the time from one measured iteration's start to the next: the mean per run, then the median over runs.

    None unless the window's repetitions are exactly the traced run's marked iterations and the other runs mark equally
    many. Runs are not iterations, and a program that marks different units when untraced is not comparable. A model's
    iterations come from one loop, however many a pass has.
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
