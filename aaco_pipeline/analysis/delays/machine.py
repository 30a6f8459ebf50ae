"""What a machine does to a thread that only wants to run: from probes of its CPUs and what the kernel recorded."""

from typing import Any

import numpy as np
import polars as pl

from aaco_pipeline.analysis.delays.intervals import meetings, union
from aaco_pipeline.analysis.delays.thread_states import PREEMPTED, RUNNING

_SCHEMA = {
    **{"cpu": pl.Int32, "kind": pl.String, "name": pl.String, "occurrences": pl.Int64, "taken_ns": pl.Int64},
    "of_ns": pl.Int64,
}


def machine_takes(
    probes: dict[int, dict[str, Any]], states: pl.DataFrame, events: pl.DataFrame, threads: pl.DataFrame
) -> pl.DataFrame:
    """What took time from each CPU's probe: cpu, kind (`thread`, `interrupt`, `unseen`), name, occurrences, taken_ns
    and of_ns, the probe's whole time.

    `probes`: by CPU start_ns, end_ns and gaps, as pairs, on the axis of the others. The probe of the nth CPU is the
    nth process of `threads`. An interrupt takes the whole gap that it lies in, less what others of the gap have; gaps
    in which nothing was recorded are unseen. Without states only unknown gaps remain: kind `gap`.
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
        by = pl.when(pl.col("state") == PREEMPTED).then(pl.col("by_name").fill_null("?")).otherwise("state")
        taken = off.group_by(name=by).agg(pl.len().cast(pl.Int64).alias("occurrences"), length.sum().alias("taken_ns"))
        rows += [{**of, "kind": "thread", **row} for row in taken.sort("name").iter_rows(named=True)]
        rows += _of_gaps(of, (start, end), off, events.filter(pl.col("thread_id").is_in(own.implode())))
    return pl.DataFrame(rows, schema=_SCHEMA)


def _of_gaps(
    of: dict[str, Any], gaps: tuple[Any, Any], off: pl.DataFrame, events: pl.DataFrame
) -> list[dict[str, Any]]:
    """What interrupts took of the gaps: each the whole gap around it, less the time off the CPU; the rest is unseen."""
    start, end = gaps
    away = union(off.get_column("start_ns").to_numpy(), off.get_column("end_ns").to_numpy())
    gap, _, since, until = meetings(start, end, *away)
    left = (end - start) - np.bincount(gap, until - since, len(start)).astype(np.int64)
    handlers = events.filter(pl.col("kind").is_in(["interrupt", "softirq"])).sort("time_ns")
    place = np.searchsorted(start, handlers.get_column("time_ns").to_numpy(), side="right") - 1
    inside = (place >= 0) & (handlers.get_column("time_ns").to_numpy() <= end[np.maximum(place, 0)])
    named = handlers.filter(pl.Series(inside)).with_columns(gap=pl.Series(place[inside]))
    first = named.filter(pl.col("kind") == "interrupt").unique("gap", keep="first", maintain_order=True)
    ours = first.with_columns(taken_ns=pl.Series(np.maximum(left, 0))[first.get_column("gap")])
    by_name = ours.group_by("name").agg(pl.len().cast(pl.Int64).alias("occurrences"), pl.col("taken_ns").sum())
    rows = [{**of, "kind": "interrupt", **row} for row in by_name.sort("name").iter_rows(named=True)]
    explained = np.zeros(len(start), np.bool_)
    explained[first.get_column("gap").to_numpy()] = True
    explained |= np.bincount(gap, minlength=len(start)) > 0
    unseen = int(left[~explained].sum())
    return [*rows, {**of, "kind": "unseen", "name": None, "occurrences": int((~explained).sum()), "taken_ns": unseen}]
