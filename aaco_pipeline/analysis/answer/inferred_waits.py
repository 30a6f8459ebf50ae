"""Infer untraced waits from the silence of a thread that has no recorded synchronizing calls.

A thread that waits for the device makes no call and enters no operator until the device is done, then continues at
once. A single short gap like that may be chance. It is not chance if the thread stays silent for long while the device
works and resumes as soon as the device is idle, or if an operator reads a result back and returns only after the copy
has arrived. All results here are inferred.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from aaco_pipeline.analysis.timeline.activities import ENCLOSING_DOMAINS, OPERATOR_DOMAIN, once_per_call

#: A thread that resumes this soon after the device became idle was waiting for it.
SOON_NS: Final = 50_000
#: Silence of at least this length while the device works is not a pause between two launches.
LONG_NS: Final = 50_000
#: An operator that waits for its copy outlasts its last call by this multiple of the usual time.
_OUTLASTS: Final = 3.0
_THREAD: Final = ("process_id", "thread_id")
_CAUSES: Final = ("host_wait", "launch_latency")
_NEVER: Final = -(2**63) + 1
Numbers = npt.NDArray[np.int64]


def with_inferred_waits(
    gaps: pl.DataFrame, activities: pl.DataFrame, tables: Mapping[str, pl.DataFrame]
) -> pl.DataFrame:
    """Add the column `inferred` to the gaps: true if an untraced wait explains the gap, whose cause is then `sync`.

    Only gaps whose launching thread has no recorded wait (`launches_since_wait` is null) are examined. The function
    fills that column and sets `inferred` for the gaps around an inferred wait; an inferred wait names no call.
    `activities` come from `recorded`; `tables` are api_calls and memory_copies.
    """
    candidates = _candidates(gaps, activities, tables["memory_copies"])
    if candidates.is_empty():
        return gaps.with_columns(inferred=pl.lit(False))
    calls = tables["api_calls"].select("call_id", *_THREAD, "domain", "start_ns", "end_ns")
    calls = calls.join(candidates.select(_THREAD).unique(), on=_THREAD, how="semi", nulls_equal=True)
    if calls.is_empty():
        return gaps.with_columns(inferred=pl.lit(False))
    heard = _heard(candidates, calls)
    silent = (pl.col("idle_ns") - pl.col("before_ns") >= LONG_NS) & (
        pl.col("busy_since_ns").fill_null(pl.col("before_ns")) <= pl.col("before_ns") + SOON_NS
    )
    soon = pl.col("after_ns") - pl.col("idle_ns") <= SOON_NS
    found = heard.filter(~pl.col("in_call") & soon & (silent | _read_back(calls, activities, tables["memory_copies"])))
    waits = found.select(*_THREAD, waited_ns="after_ns").unique().sort("waited_ns")
    near = _launches_since(candidates, activities, waits)
    waited = pl.col("gap").is_in(found.get_column("gap").implode())
    return (
        gaps.with_row_index("gap")
        .join(near, on="gap", how="left", maintain_order="left")
        .with_columns(
            inferred=waited | pl.col("near").is_not_null(),
            cause=pl.when(waited).then(pl.lit("sync")).otherwise(pl.col("cause").cast(pl.String)),
            host_call_id=pl.when(~waited).then("host_call_id"),
            launches_since_wait=pl.coalesce("launches_since_wait", "near"),
        )
        .drop("gap", "near")
    )


def _candidates(gaps: pl.DataFrame, activities: pl.DataFrame, copies: pl.DataFrame) -> pl.DataFrame:
    """Return gaps of threads without a recorded wait, the launch that ended each, and the preceding read-back.

    Columns: gap, idle_ns, busy_since_ns (end of the device's previous gap), process_id, thread_id, call_start_ns, and,
    if the same thread requested a copy to the host, the times of that call: copy_start_ns and copy_end_ns.
    """
    named = activities.select(
        pl.col("activity_kind").cast(pl.String),
        pl.col("activity_id").cast(pl.Int32),
        "process_id",
        thread_id="call_thread_id",
        start="call_start_ns",
        end="call_end_ns",
    )
    launch = named.drop("end").rename({"activity_kind": "next_activity_kind", "activity_id": "next_activity_id"})
    back = copies.filter(pl.col("direction").cast(pl.String) == "device_to_host").select(
        activity_id=pl.col("copy_id").cast(pl.Int32), activity_kind=pl.lit("memory_copy")
    )
    copy = named.join(back, on=["activity_kind", "activity_id"], how="semi").select(
        previous_activity_kind="activity_kind",
        previous_activity_id="activity_id",
        copy_process="process_id",
        copy_thread="thread_id",
        copy_start_ns="start",
        copy_end_ns="end",
    )
    own = (pl.col("copy_process") == pl.col("process_id")) & pl.col("copy_thread").eq_missing(pl.col("thread_id"))
    return (
        gaps.with_row_index("gap")
        .with_columns(
            pl.col("previous_activity_kind", "next_activity_kind").cast(pl.String),
            pl.col("previous_activity_id", "next_activity_id").cast(pl.Int32),
            busy_since_ns=pl.col("end_ns").shift(1).over("device_id", order_by="start_ns"),
        )
        .filter(
            pl.col("cause").cast(pl.String).is_in(_CAUSES)
            & pl.col("launches_since_wait").is_null()
            & pl.col("doubt").is_null()
        )
        .join(launch, on=["next_activity_kind", "next_activity_id"])
        .drop_nulls("start")
        .join(copy, on=["previous_activity_kind", "previous_activity_id"], how="left")
        .select(
            "gap",
            "busy_since_ns",
            *_THREAD,
            idle_ns="start_ns",
            call_start_ns="start",
            **{name: pl.when(own).then(name) for name in ("copy_start_ns", "copy_end_ns")},
        )
    )


def _heard(candidates: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Add the last time each candidate's thread was active before the device became idle, and the next time after.

    A thread is active when it enters or leaves a call or an operator; `in_call` is true inside a runtime call.
    """
    thread = pl.col("thread_id").fill_null(-1)
    heard = []
    left = candidates.with_columns(thread).partition_by(_THREAD, as_dict=True)
    for (process, on_thread), own in left.items():
        there = calls.filter((pl.col("process_id") == process) & (thread == on_thread))
        idle = own.get_column("idle_ns").to_numpy()
        marks = [np.sort(there.get_column(name).to_numpy()) for name in ("start_ns", "end_ns")]
        before = np.maximum(*(_at(one, np.searchsorted(one, idle, "right") - 1, _NEVER) for one in marks))
        after = np.minimum(*(_at(one, np.searchsorted(one, idle, "right"), -_NEVER) for one in marks))
        runtime = there.filter(~pl.col("domain").cast(pl.String).is_in(ENCLOSING_DOMAINS)).sort(
            "start_ns", maintain_order=True
        )
        opened, closed = (runtime.get_column(name).to_numpy() for name in ("start_ns", "end_ns"))
        within = _at(closed, np.searchsorted(opened, idle, "right") - 1, _NEVER) > idle
        found = {"before_ns": before, "after_ns": after, "in_call": within}
        heard.append(own.with_columns(pl.Series(name, values) for name, values in found.items()))
    never = pl.col("before_ns", "after_ns").abs() == -_NEVER
    return pl.concat(heard).with_columns(pl.when(~never).then(pl.col("before_ns", "after_ns")))


def _at(values: Numbers, places: Numbers, beyond: int) -> Numbers:
    """Return the values at these positions; `beyond` for positions before the first or after the last."""
    return np.append(values, beyond)[np.where(places < 0, len(values), places)]


def _read_back(calls: pl.DataFrame, activities: pl.DataFrame, copies: pl.DataFrame) -> pl.Expr:
    """Return whether an operator that copied to the host outlasted the copy longer than other operators do.

    Its last mark is the end of the copy's call; the next one is the operator's own end.
    """
    operators = calls.filter(pl.col("domain").cast(pl.String) == OPERATOR_DOMAIN).select(*_THREAD, "start_ns", "end_ns")
    if operators.is_empty():
        return pl.lit(False)
    back = copies.filter(pl.col("direction").cast(pl.String) == "device_to_host").select(
        activity_id=pl.col("copy_id").cast(pl.Int32)
    )
    reading = activities.filter(pl.col("activity_kind").cast(pl.String) == "memory_copy").join(
        back, on="activity_id", how="semi"
    )
    runtime = (
        calls.filter(~pl.col("domain").cast(pl.String).is_in(ENCLOSING_DOMAINS))
        .select(*_THREAD, "call_id", called_ns="start_ns", returned_ns="end_ns")
        .sort("returned_ns")
    )
    last = (
        operators.with_columns(pl.col("thread_id").fill_null(-1))
        .sort("end_ns")
        .join_asof(
            runtime.with_columns(pl.col("thread_id").fill_null(-1)),
            left_on="end_ns",
            right_on="returned_ns",
            by=list(_THREAD),
            check_sortedness=False,
        )
        .filter(pl.col("called_ns") >= pl.col("start_ns"))
    )
    others = last.join(reading.select("call_id").drop_nulls(), on="call_id", how="anti")
    ordinary = others.select((pl.col("end_ns") - pl.col("returned_ns")).median()).item()
    if ordinary is None:
        return pl.lit(False)
    copied = (pl.col("before_ns") == pl.col("copy_end_ns")).fill_null(False)
    left = pl.col("after_ns").is_in(last.get_column("end_ns").unique().implode())
    return copied & left & (pl.col("after_ns") - pl.col("copy_end_ns") >= pl.lit(_OUTLASTS * float(ordinary)))


def _launches_since(candidates: pl.DataFrame, activities: pl.DataFrame, waits: pl.DataFrame) -> pl.DataFrame:
    """Columns gap and near: the number of launches by a waiting thread between the waits around the gap."""
    thread = pl.col("thread_id").fill_null(-1)
    if waits.is_empty():
        return pl.DataFrame(schema={"gap": candidates.schema["gap"], "near": pl.Int64})
    launches = once_per_call(activities).select(
        "process_id", pl.col("call_thread_id").fill_null(-1).alias("thread_id"), "call_start_ns"
    )
    waits = waits.with_columns(thread)
    counted = (
        launches.join(waits, on=list(_THREAD), how="semi")
        .sort("call_start_ns")
        .join_asof(waits, left_on="call_start_ns", right_on="waited_ns", by=list(_THREAD), check_sortedness=False)
        .with_columns(near=pl.len().over(*_THREAD, "waited_ns").cast(pl.Int64))
        .unique([*_THREAD, "call_start_ns"])
    )
    return (
        candidates.with_columns(thread)
        .join(counted.select(*_THREAD, "call_start_ns", "near"), on=[*_THREAD, "call_start_ns"])
        .select("gap", "near")
        .unique("gap")
    )
