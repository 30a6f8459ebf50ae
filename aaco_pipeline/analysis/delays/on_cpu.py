"""What took an iteration's time while its thread had a CPU: handlers, faults, and the work around a wait for storage.

A path is what `aaco_pipeline.analysis.delays.decomposition` makes of an iteration: pieces of the states of its threads.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from aaco_pipeline.analysis.delays.intervals import Numbers, ends, meetings, union, within
from aaco_pipeline.analysis.delays.thread_states import FLUSHES

ON_CPU: Final = "on_cpu"
TIMER: Final = "timer"
INTERRUPTS: Final = "interrupts"
MINOR_FAULTS: Final = "minor_faults"
MAJOR_FAULT: Final = "major_fault"
DISK: Final = "disk"
#: Handlers that every running thread has: the timer's tick, and what hangs on it.
_TIMER_HANDLERS: Final = ("local_timer", "softirq TIMER", "softirq SCHED", "softirq RCU", "softirq HRTIMER")


@dataclass(frozen=True)
class Costs:
    """What one event costs on this machine beyond what is recorded of it, in ns; None where it was not calibrated."""

    minor_fault_ns: float | None = None
    interrupt_ns: float | None = None


def on_cpu_parts(
    path: pl.DataFrame, states: pl.DataFrame, events: pl.DataFrame, costs: Costs
) -> Iterator[pl.DataFrame]:
    """Parts of each row's time on the CPU, which may overlap: row, cause, duration_ns, occurrences, grade, by what."""
    yield from _handlers(path, events, costs)
    waits = _faults_that_wait(states, events)
    yield _minor_faults(path, events, waits, costs)
    yield from _around_waits(path, waits, events)


def _handlers(path: pl.DataFrame, events: pl.DataFrame, costs: Costs) -> Iterator[pl.DataFrame]:
    """What the timer's handlers took while the path was on a CPU, and what all others did; each named by its longest.

    Where an interrupt comes during a softirq the time is the interrupt's, and of none twice. With what each interrupt
    costs beyond its handlers, where that is known: a handler is a third of it to a half. How often is the interrupts'
    count, or the softirqs' where they ran without one.
    """
    named = pl.when(pl.col("kind") == "softirq").then("softirq " + pl.col("name")).otherwise("name")
    every = events.filter(pl.col("kind").is_in(["interrupt", "softirq"]) & pl.col("duration_ns").is_not_null()).select(
        "thread_id",
        start_ns="time_ns",
        end_ns=pl.col("time_ns") + pl.col("duration_ns"),
        by_name=named,
        is_hard=pl.col("kind") == "interrupt",
        is_timer=named.is_in(_TIMER_HANDLERS).fill_null(False),
    )
    above = every.filter(~pl.col("is_timer") & pl.col("is_hard"))
    taken = _met(path, every).rename({"duration_ns": "all_ns"})
    for column, some in (("with_ns", every.filter(pl.col("is_timer") | pl.col("is_hard"))), ("above_ns", above)):
        taken = taken.join(_met(path, some).rename({"duration_ns": column}), on="row", how="left").fill_null(0)
    timer = pl.col("with_ns") - pl.col("above_ns")
    begun = _begun(path, every)
    for is_timer, cause, took in ((True, TIMER, timer), (False, INTERRUPTS, pl.col("all_ns") - timer)):
        most = (
            begun.filter(pl.col("is_timer") == is_timer)
            .group_by("row", "by_name")
            .agg((pl.col("end_ns") - pl.col("start_ns")).sum().alias("ns"), pl.len(), pl.col("is_hard").sum())
            .sort("row", "ns", "by_name", descending=[False, True, False])
            .group_by("row", maintain_order=True)
            .agg(pl.col("by_name").first(), hard=pl.col("is_hard").sum().cast(pl.Int64), n=pl.col("len").sum())
        )
        beyond = (pl.col("hard").fill_null(0) * (costs.interrupt_ns or 0.0)).round().cast(pl.Int64)
        each = taken.select("row", duration_ns=took).join(most, on="row", how="left")
        yield each.filter((pl.col("duration_ns") > 0) | (pl.col("n") > 0)).select(
            "row",
            pl.col("duration_ns") + beyond,
            "by_name",
            occurrences=pl.when(pl.col("hard") > 0).then("hard").otherwise(pl.col("n").cast(pl.Int64)),
            cause=pl.lit(cause),
            grade=pl.lit("observed" if costs.interrupt_ns is None else "estimated"),
            by_kind=pl.lit("interrupt"),
        )


def _begun(path: pl.DataFrame, handlers: pl.DataFrame) -> pl.DataFrame:
    """The handlers that began while the path was on a CPU, with the row of the iteration."""
    found = [handlers.clear().with_columns(row=pl.lit(0, pl.UInt32))]
    for (thread,), some in path.filter(pl.col("cause") == ON_CPU).group_by("thread_id", maintain_order=True):
        ordered, own = some.sort("start_ns"), handlers.filter(pl.col("thread_id") == thread)
        which, inside = within(own.get_column("start_ns").to_numpy(), *ends(ordered))
        row = ordered.get_column("row").gather(which)
        found.append(own.filter(pl.Series(inside)).with_columns(row=row))
    return pl.concat(found)


def fault_costs(
    faults: pl.DataFrame, start: Numbers, end: Numbers, costs: Costs
) -> tuple[Numbers, npt.NDArray[np.float64]]:
    """What faults of one thread cost that begin within these times on a CPU: which time each lies in, and its cost, ns.

    A fault costs what was calibrated, or longer where its end was seen and is later: the page had to be made first.
    """
    faults = faults.sort("time_ns")
    at, lasted = faults.get_column("time_ns").to_numpy(), faults.get_column("duration_ns").fill_null(0).to_numpy()
    which, inside = within(at, start, end)
    seen = np.minimum(lasted[inside], end[which] - at[inside]).astype(np.float64)
    return which, np.maximum(seen, costs.minor_fault_ns or 0.0)


def _faults_that_wait(states: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
    """The fault that each wait for a page began in: thread_id, fault_ns, from it to the wait; its own end, if seen."""
    faults = events.filter(pl.col("kind") == "page_fault").select(
        "thread_id", fault_ns="time_ns", over_ns=pl.col("time_ns") + pl.col("duration_ns")
    )
    waits = states.filter(pl.col("wait") == "page_fault").select("thread_id", wait_ns="start_ns").sort("wait_ns")
    return waits.join_asof(
        faults.sort("fault_ns"), left_on="wait_ns", right_on="fault_ns", by="thread_id", check_sortedness=False
    ).drop_nulls("fault_ns")


def _minor_faults(path: pl.DataFrame, events: pl.DataFrame, waits: pl.DataFrame, costs: Costs) -> pl.DataFrame:
    """Faults that needed no device, while the path was on a CPU; none where nothing says what they cost."""
    faults = events.filter(pl.col("kind") == "page_fault").join(
        waits, left_on=["thread_id", "time_ns"], right_on=["thread_id", "fault_ns"], how="anti"
    )
    found = [pl.DataFrame(schema={"row": pl.UInt32, "cost": pl.Float64})]
    if costs.minor_fault_ns is not None or faults.get_column("duration_ns").count():
        for (thread,), some in path.filter(pl.col("cause") == ON_CPU).group_by("thread_id", maintain_order=True):
            ordered = some.sort("start_ns")
            which, cost = fault_costs(faults.filter(pl.col("thread_id") == thread), *ends(ordered), costs)
            found.append(pl.DataFrame({"row": ordered.get_column("row").gather(which), "cost": cost}))
    return (
        pl.concat(found)
        .group_by("row")
        .agg(duration_ns=pl.col("cost").sum().round().cast(pl.Int64), occurrences=pl.len().cast(pl.Int64))
        .with_columns(
            cause=pl.lit(MINOR_FAULTS), grade=pl.lit("observed" if costs.minor_fault_ns is None else "estimated")
        )
    )


def _around_waits(path: pl.DataFrame, waits: pl.DataFrame, events: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """The work of a wait for storage: in a call that flushes a file, and in a fault from its beginning to its end.

    Without it half of what such a wait costs would seem to be the program's. The end of a fault is where the thread
    blocks in it, when no later one was seen.
    """
    calls = events.filter((pl.col("kind") == "syscall") & pl.col("name").is_in(FLUSHES)).select(
        "thread_id", start_ns="time_ns", end_ns=pl.col("time_ns") + pl.col("duration_ns")
    )
    fault = waits.select("thread_id", start_ns="fault_ns", end_ns=pl.max_horizontal("wait_ns", "over_ns"))
    for cause, spans in ((DISK, calls), (MAJOR_FAULT, fault)):
        each = _met(path, spans.drop_nulls(["start_ns", "end_ns"]))
        yield each.with_columns(cause=pl.lit(cause), grade=pl.lit("observed"), occurrences=pl.lit(0, pl.Int64))


def _met(path: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """For how long the path was on a CPU within these times of its threads: row, duration_ns."""
    found = []
    for (thread,), some in path.filter(pl.col("cause") == ON_CPU).group_by("thread_id", maintain_order=True):
        piece, _, since, until = meetings(*ends(some), *union(*ends(spans.filter(pl.col("thread_id") == thread))))
        found.append(pl.DataFrame({"row": some.get_column("row").gather(piece), "ns": until - since}))
    nothing = pl.DataFrame(schema={"row": pl.UInt32, "ns": pl.Int64})
    return pl.concat([nothing, *found]).group_by("row").agg(duration_ns=pl.col("ns").sum())
