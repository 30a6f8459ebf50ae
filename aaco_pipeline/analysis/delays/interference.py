"""Time that the machine takes from a thread: interrupt handlers, faults, storage waits and CPU contention.

CPU probes measure the same without a workload. `decomposition` attributes it to iterations.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from aaco_pipeline.analysis.delays.thread_states import FLUSHES, PREEMPTED, RUNNING, Numbers, meetings, union, within
from aaco_pipeline.analysis.timeline.device_timeline import bounds
from aaco_pipeline.lake.contracts import polars_types

ON_CPU: Final = "on_cpu"
TIMER: Final = "timer"
INTERRUPTS: Final = "interrupts"
MINOR_FAULTS: Final = "minor_faults"
MAJOR_FAULT: Final = "major_fault"
DISK: Final = "disk"
#: Handlers that interrupt every running thread: the timer tick and its consequences.
_TIMER_HANDLERS: Final = ("local_timer", "softirq TIMER", "softirq SCHED", "softirq RCU", "softirq HRTIMER")


@dataclass(frozen=True)
class Costs:
    """Cost of one event on this machine beyond its recorded time, in ns; None if not calibrated."""

    minor_fault_ns: float | None = None
    interrupt_ns: float | None = None


def on_cpu_parts(
    path: pl.DataFrame, states: pl.DataFrame, events: pl.DataFrame, costs: Costs
) -> Iterator[pl.DataFrame]:
    """Parts of each row's CPU time, which may overlap: row, cause, duration_ns, occurrences, grade, by_*."""
    yield from _handlers(path, events, costs)
    waits = _faults_that_wait(states, events)
    yield _minor_faults(path, events, waits, costs)
    yield from _around_waits(path, waits, events)


def _handlers(path: pl.DataFrame, events: pl.DataFrame, costs: Costs) -> Iterator[pl.DataFrame]:
    """Time of the timer's handlers, and of all others, while the path was on a CPU; each named by its longest.

    If an interrupt occurs during a softirq, the time counts once, as the interrupt's. The calibrated cost of each
    interrupt beyond its handlers is added if known: a handler is a third to a half of it. Occurrences count interrupts,
    or softirqs that ran without one.
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
    """Return the handlers that began while the path was on a CPU, with the row of the iteration."""
    found = [handlers.clear().with_columns(row=pl.lit(0, pl.UInt32))]
    for (thread,), some in path.filter(pl.col("cause") == ON_CPU).group_by("thread_id", maintain_order=True):
        ordered, own = some.sort("start_ns"), handlers.filter(pl.col("thread_id") == thread)
        which, inside = within(own.get_column("start_ns").to_numpy(), *bounds(ordered))
        row = ordered.get_column("row").gather(which)
        found.append(own.filter(pl.Series(inside)).with_columns(row=row))
    return pl.concat(found)


def fault_costs(
    faults: pl.DataFrame, start: Numbers, end: Numbers, costs: Costs
) -> tuple[Numbers, npt.NDArray[np.float64]]:
    """Cost of one thread's faults that begin in these on-CPU intervals: interval index and cost in ns.

    A fault costs the calibrated time, or longer if its end was recorded later: the page had to be created first.
    """
    faults = faults.sort("time_ns")
    at, lasted = faults.get_column("time_ns").to_numpy(), faults.get_column("duration_ns").fill_null(0).to_numpy()
    which, inside = within(at, start, end)
    seen = np.minimum(lasted[inside], end[which] - at[inside]).astype(np.float64)
    return which, np.maximum(seen, costs.minor_fault_ns or 0.0)


def _faults_that_wait(states: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
    """Find the fault in which each wait for a page began: thread_id, fault_ns, wait_ns, and its own end if recorded."""
    faults = events.filter(pl.col("kind") == "page_fault").select(
        "thread_id", fault_ns="time_ns", over_ns=pl.col("time_ns") + pl.col("duration_ns")
    )
    waits = states.filter(pl.col("wait") == "page_fault").select("thread_id", wait_ns="start_ns").sort("wait_ns")
    return waits.join_asof(
        faults.sort("fault_ns"), left_on="wait_ns", right_on="fault_ns", by="thread_id", check_sortedness=False
    ).drop_nulls("fault_ns")


def _minor_faults(path: pl.DataFrame, events: pl.DataFrame, waits: pl.DataFrame, costs: Costs) -> pl.DataFrame:
    """Find faults that needed no device while the path was on a CPU; empty if their cost is unknown."""
    faults = events.filter(pl.col("kind") == "page_fault").join(
        waits, left_on=["thread_id", "time_ns"], right_on=["thread_id", "fault_ns"], how="anti"
    )
    found = [pl.DataFrame(schema={"row": pl.UInt32, "cost": pl.Float64})]
    if costs.minor_fault_ns is not None or faults.get_column("duration_ns").count():
        for (thread,), some in path.filter(pl.col("cause") == ON_CPU).group_by("thread_id", maintain_order=True):
            ordered = some.sort("start_ns")
            which, cost = fault_costs(faults.filter(pl.col("thread_id") == thread), *bounds(ordered), costs)
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
    """Return the work around a storage wait: in a call that flushes a file, and in a fault from its start to its end.

    Without it, half of the cost of such a wait would count as the program's. A fault ends where the thread blocks in
    it, unless a later end was recorded.
    """
    calls = events.filter((pl.col("kind") == "syscall") & pl.col("name").is_in(FLUSHES)).select(
        "thread_id", start_ns="time_ns", end_ns=pl.col("time_ns") + pl.col("duration_ns")
    )
    fault = waits.select("thread_id", start_ns="fault_ns", end_ns=pl.max_horizontal("wait_ns", "over_ns"))
    for cause, spans in ((DISK, calls), (MAJOR_FAULT, fault)):
        each = _met(path, spans.drop_nulls(["start_ns", "end_ns"]))
        yield each.with_columns(cause=pl.lit(cause), grade=pl.lit("observed"), occurrences=pl.lit(0, pl.Int64))


def _met(path: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """Time of the path on a CPU within these intervals of its threads: row, duration_ns."""
    found = []
    for (thread,), some in path.filter(pl.col("cause") == ON_CPU).group_by("thread_id", maintain_order=True):
        piece, _, since, until = meetings(*bounds(some), *union(*bounds(spans.filter(pl.col("thread_id") == thread))))
        found.append(pl.DataFrame({"row": some.get_column("row").gather(piece), "ns": until - since}))
    nothing = pl.DataFrame(schema={"row": pl.UInt32, "ns": pl.Int64})
    return pl.concat([nothing, *found]).group_by("row").agg(duration_ns=pl.col("ns").sum())


_SCHEMA = {
    **{"cpu": pl.Int32, "kind": pl.String, "name": pl.String, "occurrences": pl.Int64, "taken_ns": pl.Int64},
    **{"typical_gap_ns": pl.Int64, "of_ns": pl.Int64},
}


def machine_takes(
    probes: dict[int, dict[str, Any]], states: pl.DataFrame, events: pl.DataFrame, threads: pl.DataFrame
) -> pl.DataFrame:
    """Attribute the time taken from each CPU's probe: cpu, kind, name, occurrences, taken_ns, of_ns (the total time).

    Kinds: `thread` that had the CPU; `state` in which the probe was off the CPU otherwise; `interrupt` and `softirq`,
    by their handlers' time, an interrupt in a softirq counted separately; `beside`, the rest of the gaps with any of
    these (handler entry and exit, and anything indistinguishable from that); `unseen`, gaps in which nothing was
    recorded. Without states, all gaps have the kind `gap`. typical_gap_ns of an interrupt is the median of the gaps
    that contain only that interrupt, or null.

    Args:
        probes: start_ns, end_ns and gaps (as pairs) by CPU, on the time axis of the others. The probe of the nth CPU is
            the nth process of `threads`.
        states: `thread_states`.
        events: `kernel_events`.
        threads: `kernel_threads`.
    """
    rows: list[dict[str, Any]] = []
    for number, (cpu, probe) in enumerate(sorted(probes.items())):
        of = {"cpu": cpu, "of_ns": probe["end_ns"] - probe["start_ns"]}
        gaps = np.array(probe["gaps"], np.int64).reshape(-1, 2)
        start, end = gaps[:, 0].copy(), gaps[:, 1].copy()
        own = threads.filter(pl.col("process_id") == number).get_column("thread_id")
        if not len(own):
            rows.append(
                {**of, "kind": "gap", "name": None, "occurrences": len(gaps), "taken_ns": int((end - start).sum())}
            )
            continue
        during = (pl.col("thread_id").is_in(own.implode())) & (pl.col("start_ns") < probe["end_ns"])
        off = states.filter(during & (pl.col("state") != RUNNING) & (pl.col("end_ns") > probe["start_ns"]))
        off = off.with_columns(
            pl.col("start_ns").clip(lower_bound=probe["start_ns"]), pl.col("end_ns").clip(upper_bound=probe["end_ns"])
        )
        length = pl.col("end_ns") - pl.col("start_ns")
        was_taken = pl.col("state") == PREEMPTED
        kind = pl.when(was_taken).then(pl.lit("thread")).otherwise(pl.lit("state"))
        by = pl.when(was_taken).then(pl.col("by_name").fill_null("?")).otherwise("state")
        taken = off.group_by(kind.alias("kind"), by.alias("name")).agg(
            pl.len().cast(pl.Int64).alias("occurrences"), length.sum().alias("taken_ns")
        )
        rows += [{**of, **row} for row in taken.sort("kind", "name", descending=[True, False]).iter_rows(named=True)]
        handlers = events.filter(
            pl.col("thread_id").is_in(own.implode())
            & pl.col("kind").is_in(["interrupt", "softirq"])
            & pl.col("time_ns").is_between(probe["start_ns"], probe["end_ns"])
        )
        rows += [{**of, **row} for row in _of_gaps((start, end), off, handlers)]
    return pl.DataFrame(rows, schema=_SCHEMA)


def _of_gaps(gaps: tuple[Numbers, Numbers], off: pl.DataFrame, handlers: pl.DataFrame) -> Iterator[dict[str, Any]]:
    """Attribute gaps other than off-CPU time: each handler's own time, the rest beside it, and unseen."""
    start, end = gaps
    begins, took = (handlers.get_column(name).fill_null(0).to_numpy() for name in ("time_ns", "duration_ns"))
    is_hard = (handlers.get_column("kind") == "interrupt").to_numpy()
    hard = union(begins[is_hard], (begins + took)[is_hard])
    within = np.where(is_hard, 0, _covered((begins, begins + took), hard))
    gap = np.searchsorted(start, begins, side="right") - 1
    inside = (gap >= 0) & (begins <= end[np.maximum(gap, 0)]) if len(start) else np.zeros(len(begins), np.bool_)
    away = _covered(gaps, union(*bounds(off)))
    interrupts = np.bincount(gap[inside & is_hard], minlength=len(start))
    alone = (interrupts == 1) & (away == 0)
    lone = np.zeros(len(begins), np.bool_)
    lone[inside & is_hard] = alone[gap[inside & is_hard]]
    lengths = np.where(lone, (end - start)[np.where(inside, gap, 0)] if len(start) else 0, -1)
    each = handlers.select("kind", "name").with_columns(
        taken_ns=pl.Series(took - within, dtype=pl.Int64), gap_ns=pl.Series(lengths, dtype=pl.Int64)
    )
    yield from (
        each.group_by("kind", "name")
        .agg(
            pl.len().cast(pl.Int64).alias("occurrences"),
            pl.col("taken_ns").sum(),
            typical_gap_ns=pl.col("gap_ns").filter(pl.col("gap_ns") >= 0).median().round().cast(pl.Int64),
        )
        .sort("kind", "name")
        .iter_rows(named=True)
    )
    known = np.bincount(gap[inside], minlength=len(start)) + away > 0
    left = (end - start) - away - _covered(gaps, union(begins, begins + took))
    for kind, some in (("beside", known), ("unseen", ~known)):
        yield {"kind": kind, "name": None, "occurrences": int(some.sum()), "taken_ns": int(left[some].clip(0).sum())}


def _covered(spans: tuple[Numbers, Numbers], pieces: tuple[Numbers, Numbers]) -> Numbers:
    """Return the time for which each span overlaps disjoint pieces."""
    span, _, since, until = meetings(*spans, *pieces)
    return np.bincount(span, until - since, len(spans[0])).astype(np.int64)


#: With fewer ticks, the cost of an interrupt is unknown.
_LEAST_TICKS: Final = 5


def fixed_work_probes(
    probes: pl.DataFrame, states: pl.DataFrame, threads: pl.DataFrame, events: pl.DataFrame, passes: dict[str, int]
) -> pl.DataFrame:
    """Compute `fixed_work_probes` from the probes' gaps (`kernel_probes`) and the states of the process's main thread.

    `passes` gives the measured process of each pass. Unseen is the part of the gaps that no off-CPU state, handler or
    call covers, minus the known cost of each interrupt in them beyond its handlers (`interrupt_cost`). It is null if
    the thread's states are unknown or no interrupt was recorded for any thread.
    """
    rows = []
    with_interrupts = (events.get_column("kind") == "interrupt").any()
    for (name,), some in probes.group_by("pass", maintain_order=True):
        own = threads.filter(pl.col("process_id") == passes.get(str(name), -1)).sort("start_ns", "thread_id")
        # No event has this number: a process without a recorded thread has no known events.
        main = int(own.item(0, "thread_id")) if own.height else -1
        off = states.filter((pl.col("thread_id") == main) & (pl.col("state") != RUNNING))
        extents = events.filter((pl.col("thread_id") == main) & (pl.col("duration_ns") > 0))
        begins = pl.concat([off.get_column("start_ns"), extents.get_column("time_ns")]).to_numpy()
        over = extents.get_column("time_ns") + extents.get_column("duration_ns")
        known = union(begins, pl.concat([off.get_column("end_ns"), over]).to_numpy())
        hard = _interrupts(events, main)
        cost = interrupt_cost(probes, states, events, own, str(name)) or 0.0
        for probe in some.iter_rows(named=True):
            gaps = (np.array(probe["gap_start_ns"], np.int64), np.array(probe["gap_end_ns"], np.int64))
            _, _, since, until = meetings(*gaps, *known)
            gap_ns = int((gaps[1] - gaps[0]).sum())
            ticks = int((np.searchsorted(hard, gaps[1]) - np.searchsorted(hard, gaps[0])).sum())
            left = gap_ns - int((until - since).sum()) - round(ticks * cost)
            rows.append(
                {
                    **{key: probe[key] for key in ("pass", "before_iteration", "cpu", "start_ns", "end_ns")},
                    "gaps": len(gaps[0]),
                    "gap_ns": gap_ns,
                    "unseen_ns": None if main < 0 or not with_interrupts else max(left, 0),
                }
            )
    return pl.DataFrame(rows, schema=polars_types("fixed_work_probes"))


def interrupt_cost(
    probes: pl.DataFrame, states: pl.DataFrame, events: pl.DataFrame, threads: pl.DataFrame, name: str
) -> float | None:
    """Estimate an interrupt's cost to a running thread beyond its handlers, in ns: entry, exit, a hypervisor's exits.

    The cost is the gap minus its handlers, per interrupt: the median over the gaps of a pass's probes that contain
    interrupts and during which the main one of its `threads` stayed on its CPU. None with fewer than five such gaps.
    """
    probes = probes.filter(pl.col("pass") == name)
    if not threads.height or not probes.height:
        return None
    main = threads.sort("start_ns", "thread_id").item(0, "thread_id")
    off = states.filter((pl.col("thread_id") == main) & (pl.col("state") != RUNNING))
    away = union(*bounds(off))
    own = events.filter((pl.col("thread_id") == main) & pl.col("kind").is_in(["interrupt", "softirq"]))
    begins = own.get_column("time_ns").to_numpy()
    handlers = union(begins, begins + own.get_column("duration_ns").fill_null(0).to_numpy())
    hard = _interrupts(events, main)
    start, end = (probes.get_column(f"gap_{side}_ns").explode().drop_nulls().to_numpy() for side in ("start", "end"))
    count = np.searchsorted(hard, end) - np.searchsorted(hard, start)
    spent = end - start
    for intervals, every in ((handlers, False), (away, True)):
        gap, _, since, until = meetings(start, end, *intervals)
        taken = np.bincount(gap, until - since, len(start)).astype(np.int64)
        count = np.where(taken > 0, 0, count) if every else count
        spent = spent if every else spent - taken
    known = (count > 0) & (spent >= 0)
    return float(np.median(spent[known] / count[known])) if int(known.sum()) >= _LEAST_TICKS else None


def _interrupts(events: pl.DataFrame, thread: int) -> Numbers:
    """Return the times of a thread's interrupts, in order."""
    own = events.filter((pl.col("thread_id") == thread) & (pl.col("kind") == "interrupt"))
    return np.sort(own.get_column("time_ns").to_numpy())
