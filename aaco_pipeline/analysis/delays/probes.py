"""How much of the time that a probe was not given is explained by what the kernel recorded of its thread."""

from typing import Final

import numpy as np
import polars as pl

from aaco_pipeline.analysis.delays.intervals import meetings, union
from aaco_pipeline.analysis.delays.thread_states import RUNNING

_SCHEMA: Final = {
    **{"pass": pl.String, "before_iteration": pl.Int32, "cpu": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64},
    **{"gaps": pl.Int64, "gap_ns": pl.Int64, "unseen_ns": pl.Int64},
}


def fixed_work_probes(
    probes: pl.DataFrame, states: pl.DataFrame, threads: pl.DataFrame, events: pl.DataFrame, passes: dict[str, int]
) -> pl.DataFrame:
    """`fixed_work_probes` from the probes' gaps (`kernel_probes`) and what is known of the process's main thread.

    `passes`: the measured process of each pass. A gap that no state off the CPU, interrupt, fault or call explains is
    unseen; null where no state of the thread is known.
    """
    rows = []
    for (name,), some in probes.group_by("pass", maintain_order=True):
        own = threads.filter(pl.col("process_id") == passes.get(str(name), -1)).sort("start_ns", "thread_id")
        main = own.item(0, "thread_id") if own.height else None
        off = states.filter((pl.col("thread_id") == main) & (pl.col("state") != RUNNING))
        extents = events.filter((pl.col("thread_id") == main) & (pl.col("duration_ns") > 0))
        begins = pl.concat([off.get_column("start_ns"), extents.get_column("time_ns")]).to_numpy()
        over = extents.get_column("time_ns") + extents.get_column("duration_ns")
        known = union(begins, pl.concat([off.get_column("end_ns"), over]).to_numpy())
        for probe in some.iter_rows(named=True):
            gaps = (np.array(probe["gap_start_ns"], np.int64), np.array(probe["gap_end_ns"], np.int64))
            _, _, since, until = meetings(*gaps, *known)
            gap_ns = int((gaps[1] - gaps[0]).sum())
            rows.append(
                {
                    **{key: probe[key] for key in ("pass", "before_iteration", "cpu", "start_ns", "end_ns")},
                    "gaps": len(gaps[0]),
                    "gap_ns": gap_ns,
                    "unseen_ns": None if main is None else gap_ns - int((until - since).sum()),
                }
            )
    return pl.DataFrame(rows, schema=_SCHEMA)
