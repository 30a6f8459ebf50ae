"""The ledger: what was launched, recorded, linked, counted and lost, by kind of record, process and device."""

from collections.abc import Mapping
from typing import Final

import polars as pl

from aaco_pipeline.analysis.completeness.clocks import TOLERANCE_NS, Fit
from aaco_pipeline.lake.contracts import polars_types

_WHO: Final = ("process_id", "device_id")
#: Kinds of records that host calls launch, by the kind of activity.
_LAUNCHED: Final = {"dispatches": "dispatch", "memory_copies": "memory_copy"}
_NO_CALLS: Final = "no host calls were recorded, so that launches are not known"
_SILENT: Final = "the tool says nothing of what it dropped"


def ledger(
    tables: Mapping[str, pl.DataFrame],
    activities: pl.DataFrame,
    aside: pl.DataFrame,
    launched: pl.DataFrame,
    early: pl.DataFrame,
    *,
    fits: Mapping[int, Fit],
    losses: Mapping[str, int | None],
) -> pl.DataFrame:
    """Rows of the table `completeness` without the session.

    `activities`, `launched` and `early` as `timeline.activities` and `launches` give them, `aside` the dispatches that
    are no activities (their times cannot be used, or they are part of another), `fits` those of `clocks` by
    process, `losses` what the tool counts (`dropped`, `out_of_range`).
    """
    counted = tables["counters"].select("dispatch_id").unique()
    parts = [
        _launched_kind(
            kind, _records(kind, activities.filter(pl.col("activity_kind") == name), aside), launched, early, counted
        )
        for kind, name in _LAUNCHED.items()
    ]
    parts += [_calls(tables["api_calls"]), _counters(tables), _instructions(tables)]
    frame = pl.concat(parts, how="diagonal_relaxed")
    steps = pl.DataFrame(
        [(process, fit.step_ns, fit.early.height) for process, fit in fits.items()],
        schema={"process_id": pl.Int32, "clock_step_ns": pl.Int64, "early": pl.Int64},
        orient="row",
    )
    device = pl.col("record_kind").is_in(list(_LAUNCHED))
    frame = frame.join(steps, on="process_id", how="left").with_columns(
        clock_step_ns=pl.when(device).then("clock_step_ns"),
        **{name: pl.when(device).then(pl.lit(count, pl.Int64)) for name, count in losses.items()},
    )
    types = polars_types("completeness")
    missing = [pl.lit(None, dtype).alias(name) for name, dtype in types.items() if name not in frame.columns]
    frame = frame.with_columns(missing).with_columns(
        reason=pl.when(device).then(
            pl.concat_str(
                pl.when(pl.col("launched").is_null()).then(pl.lit(_NO_CALLS)),
                pl.when(pl.col("dropped").is_null()).then(pl.lit(_SILENT)),
                separator="; ",
                ignore_nulls=True,
            )
        )
    )
    empty = pl.col("reason") == ""
    frame = frame.with_columns(reason=pl.when(~empty).then("reason"))
    return frame.select(pl.col(name).cast(dtype) for name, dtype in types.items()).sort(
        "record_kind", *_WHO, nulls_last=True
    )


def _records(kind: str, own: pl.DataFrame, aside: pl.DataFrame) -> pl.DataFrame:
    """The activities of a kind, and of dispatches also those that are none."""
    if kind != "dispatches":
        return own
    others = aside.select(*_WHO, "start_ns", "end_ns", activity_id=pl.col("dispatch_id").cast(pl.Int32))
    return pl.concat([own, others], how="diagonal")


def _launched_kind(
    kind: str, own: pl.DataFrame, launched: pl.DataFrame, early: pl.DataFrame, counted: pl.DataFrame
) -> pl.DataFrame:
    """What hosts launch: records by process and device, and the launches of a process, at its only device."""
    length = pl.col("end_ns") - pl.col("start_ns")
    odd = (pl.col("call_start_ns") - pl.col("start_ns") > TOLERANCE_NS).fill_null(False) | (length < 0)
    records = own.join(
        counted.with_columns(is_counted=pl.lit(True)), left_on="activity_id", right_on="dispatch_id", how="left"
    )
    rows = records.group_by(_WHO).agg(
        recorded=pl.len().cast(pl.Int64),
        linked=pl.col("call_id").count().cast(pl.Int64),
        counted=pl.col("is_counted").count().cast(pl.Int64),
        out_of_order=odd.sum().cast(pl.Int64),
    )
    first = early.filter(pl.col("activity_kind") == _LAUNCHED[kind])
    rows = rows.join(
        first.group_by(_WHO).agg(before_recording=pl.len().cast(pl.Int64), before_recording_ns=length.sum()),
        on=_WHO,
        how="left",
        nulls_equal=True,
    )
    wanted = "copy" if kind == "memory_copies" else "kernel"
    run = launched.filter((pl.col("kind") == wanted) & pl.col("capture").is_null())
    lost = (pl.col("records") == 0).sum().cast(pl.Int64)
    calls = run.group_by("process_id").agg(launched=pl.len().cast(pl.Int64), unrecorded=lost)
    known = launched.select("process_id").unique()
    alone = rows.filter(pl.len().over("process_id") == 1).select("process_id")
    at_device = calls.join(alone, on="process_id", how="semi")
    rows = rows.join(at_device, on="process_id", how="left")
    elsewhere = calls.join(alone, on="process_id", how="anti").with_columns(recorded=pl.lit(0, pl.Int64))
    rows = pl.concat([rows, elsewhere], how="diagonal")
    is_known = pl.col("process_id").is_in(known.get_column("process_id").implode())
    zero = [pl.when(is_known).then(pl.col(name).fill_null(0)).alias(name) for name in _OF_CALLS]
    hidden = [pl.when(is_known).then(name).alias(name) for name in ("linked", "launched", "unrecorded")]
    rows = rows.with_columns(zero).with_columns(hidden)
    if kind == "memory_copies":
        # A call may move nothing, or be carried out by a kernel: launches without a record say nothing.
        rows = rows.with_columns(counted=pl.lit(None, pl.Int64), unrecorded=pl.lit(None, pl.Int64))
    return rows.with_columns(record_kind=pl.lit(kind))


_OF_CALLS: Final = ("before_recording", "before_recording_ns")


def _calls(api_calls: pl.DataFrame) -> pl.DataFrame:
    odd = (pl.col("end_ns") < pl.col("start_ns")).sum().cast(pl.Int64)
    rows = api_calls.group_by("process_id").agg(recorded=pl.len().cast(pl.Int64), out_of_order=odd)
    return rows.with_columns(record_kind=pl.lit("api_calls"))


def _counters(tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    counters = tables["counters"]
    times = counters.group_by("dispatch_id", "counter", "pass").agg(times=pl.len().cast(pl.Int64))
    own = times.join(tables["dispatches"].select("dispatch_id", *_WHO), on="dispatch_id")
    rows = own.group_by(_WHO).agg(
        recorded=pl.col("times").sum(),
        passes=pl.col("pass").n_unique().cast(pl.Int64),
        repetitions=pl.col("times").max(),
    )
    return rows.with_columns(record_kind=pl.lit("counters"))


def _instructions(tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    own = tables["att_instructions"]
    schema = {"process_id": pl.Int32, "recorded": pl.Int64, "record_kind": pl.String}
    return pl.DataFrame([(None, own.height, "att_instructions")] if own.height else [], schema=schema, orient="row")
