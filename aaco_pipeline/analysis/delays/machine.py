"""What a machine does to a thread that only wants to run: from probes of its CPUs and what the kernel recorded."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl

from aaco_pipeline.analysis.delays.intervals import Numbers, meetings, union
from aaco_pipeline.analysis.delays.thread_states import PREEMPTED, RUNNING

_SCHEMA = {
    **{"cpu": pl.Int32, "kind": pl.String, "name": pl.String, "occurrences": pl.Int64, "taken_ns": pl.Int64},
    **{"typical_gap_ns": pl.Int64, "of_ns": pl.Int64},
}


def machine_takes(
    probes: dict[int, dict[str, Any]], states: pl.DataFrame, events: pl.DataFrame, threads: pl.DataFrame
) -> pl.DataFrame:
    """What took time from each CPU's probe: cpu, kind, name, occurrences, taken_ns and of_ns, the probe's whole time.

    `probes`: by CPU start_ns, end_ns and gaps, as pairs, on the axis of the others. The probe of the nth CPU is the
    nth process of `threads`. Kinds: `thread` that had the CPU; `state` in which the probe was off it otherwise;
    `interrupt` and `softirq`, by their handlers' time, an interrupt in a softirq apart from it; `beside`, what else the
    gaps with any of these hold: entering and leaving a handler, and what nothing tells apart from that; `unseen`, gaps
    in which nothing was recorded. Without states only unknown gaps remain: kind `gap`. typical_gap_ns, of an interrupt,
    is the median of the gaps that have it and no other one, null without such a gap.
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
    """What is known of the gaps besides the time off the CPU: each handler's own time, the rest beside, and unseen."""
    start, end = gaps
    begins, took = (handlers.get_column(name).fill_null(0).to_numpy() for name in ("time_ns", "duration_ns"))
    is_hard = (handlers.get_column("kind") == "interrupt").to_numpy()
    hard = union(begins[is_hard], (begins + took)[is_hard])
    within = np.where(is_hard, 0, _covered((begins, begins + took), hard))
    gap = np.searchsorted(start, begins, side="right") - 1
    inside = (gap >= 0) & (begins <= end[np.maximum(gap, 0)]) if len(start) else np.zeros(len(begins), np.bool_)
    away = _covered(gaps, union(*(off.get_column(side).to_numpy() for side in ("start_ns", "end_ns"))))
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
    """For how long each span meets pieces that do not overlap."""
    span, _, since, until = meetings(*spans, *pieces)
    return np.bincount(span, until - since, len(spans[0])).astype(np.int64)
