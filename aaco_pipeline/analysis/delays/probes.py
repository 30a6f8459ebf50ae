"""How much of the time that a probe was not given is explained by what the kernel recorded of its thread."""

from typing import Final

import numpy as np
import polars as pl

from aaco_pipeline.analysis.delays.intervals import Numbers, meetings, union
from aaco_pipeline.analysis.delays.thread_states import RUNNING

#: With fewer ticks the cost of an interrupt is not known.
_LEAST_TICKS: Final = 5
_SCHEMA: Final = {
    **{"pass": pl.String, "before_iteration": pl.Int32, "cpu": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64},
    **{"gaps": pl.Int64, "gap_ns": pl.Int64, "unseen_ns": pl.Int64},
}


def fixed_work_probes(
    probes: pl.DataFrame, states: pl.DataFrame, threads: pl.DataFrame, events: pl.DataFrame, passes: dict[str, int]
) -> pl.DataFrame:
    """`fixed_work_probes` from the probes' gaps (`kernel_probes`) and what is known of the process's main thread.

    `passes`: the measured process of each pass. Unseen is what of the gaps no state off the CPU, no handler and no call
    covers, less what each interrupt in them costs beyond its handlers (`interrupt_cost`, where it is known); null where
    no state of the thread is known, or no interrupt was recorded of any.
    """
    rows = []
    with_interrupts = (events.get_column("kind") == "interrupt").any()
    for (name,), some in probes.group_by("pass", maintain_order=True):
        own = threads.filter(pl.col("process_id") == passes.get(str(name), -1)).sort("start_ns", "thread_id")
        # Of a process without a recorded thread nothing is known: no event is, as none has this number.
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
    return pl.DataFrame(rows, schema=_SCHEMA)


def interrupt_cost(
    probes: pl.DataFrame, states: pl.DataFrame, events: pl.DataFrame, threads: pl.DataFrame, name: str
) -> float | None:
    """What an interrupt costs a running thread beyond its handlers, in ns: entering, leaving, a hypervisor's exits.

    The median over the gaps of a pass's probes that have interrupts and in which the main one of its `threads` stayed
    on its CPU: the gap less its handlers, an interrupt. None with fewer than five such gaps.
    """
    probes = probes.filter(pl.col("pass") == name)
    if not threads.height or not probes.height:
        return None
    main = threads.sort("start_ns", "thread_id").item(0, "thread_id")
    off = states.filter((pl.col("thread_id") == main) & (pl.col("state") != RUNNING))
    away = union(off.get_column("start_ns").to_numpy(), off.get_column("end_ns").to_numpy())
    own = events.filter((pl.col("thread_id") == main) & pl.col("kind").is_in(["interrupt", "softirq"]))
    begins = own.get_column("time_ns").to_numpy()
    handlers = union(begins, begins + own.get_column("duration_ns").fill_null(0).to_numpy())
    hard = _interrupts(events, main)
    start, end = (probes.get_column(f"gap_{side}_ns").explode().drop_nulls().to_numpy() for side in ("start", "end"))
    count = np.searchsorted(hard, end) - np.searchsorted(hard, start)
    spent = end - start
    for stretches, every in ((handlers, False), (away, True)):
        gap, _, since, until = meetings(start, end, *stretches)
        taken = np.bincount(gap, until - since, len(start)).astype(np.int64)
        count = np.where(taken > 0, 0, count) if every else count
        spent = spent if every else spent - taken
    told = (count > 0) & (spent >= 0)
    return float(np.median(spent[told] / count[told])) if int(told.sum()) >= _LEAST_TICKS else None


def _interrupts(events: pl.DataFrame, thread: int) -> Numbers:
    """When a thread was interrupted, in order."""
    own = events.filter((pl.col("thread_id") == thread) & (pl.col("kind") == "interrupt"))
    return np.sort(own.get_column("time_ns").to_numpy())
