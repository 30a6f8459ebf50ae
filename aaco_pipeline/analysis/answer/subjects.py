"""What an answer names: the call, copy, collective or kernel that its class is about, and the resource of the kernels.

Everything is of the judged window: what lies beside it is nobody's subject.
"""

from collections.abc import Mapping
from typing import Final

import polars as pl

from aaco_pipeline.analysis.answer.first_to_fix import (
    heaviest_collective,
    longest_call,
    longest_copies,
    subject_of_launches,
)
from aaco_pipeline.analysis.answer.kinds import kind_of
from aaco_pipeline.analysis.answer.terms import one_of
from aaco_pipeline.analysis.answer.window import Window, inside

#: A label that covers at least this much of the kernels' time names the resource.
_MOST: Final = 0.5


def subject_of(
    name: str, window: Window, dispatches: pl.DataFrame, gaps: pl.DataFrame, tables: Mapping[str, pl.DataFrame]
) -> str | None:
    """What the class `name`, no device's own time, is to be fixed by; the frames are those of the window's device.

    None where nothing recorded names it.
    """
    if name == "sync":
        return longest_call(inside(gaps, window.pieces), tables["api_calls"])
    if name == "copy":
        own = tables["memory_copies"].filter(pl.col("device_id") == window.device)
        return longest_copies(inside(own, window.pieces))
    if name == "communication":
        return heaviest_collective(tables["collectives"].join(dispatches, on="dispatch_id", how="semi"))
    if name == "launch":
        calls = dispatches.drop_nulls("correlation_id").select("process_id", "correlation_id").n_unique()
        return subject_of_launches(dispatches.height, calls, window.repetitions, one_of(window.rule))
    return None


def on_critical_path(tables: Mapping[str, pl.DataFrame], dispatches: pl.DataFrame) -> dict[str, int] | None:
    """Per kind the nanoseconds of `dispatches` on the critical path; None where there is no path."""
    if tables["critical_path"].is_empty():
        return None
    on_path = tables["critical_path"].filter(
        (pl.col("activity_kind").cast(pl.String) == "dispatch") & pl.col("is_critical")
    )
    own = dispatches.join(on_path.select(dispatch_id="activity_id"), on="dispatch_id", how="semi")
    families = own.join(tables["kernels"].select("kernel_id", "family"), on="kernel_id", how="left")
    sums = families.group_by(pl.col("family").cast(pl.String)).agg((pl.col("end_ns") - pl.col("start_ns")).sum())
    found: dict[str, int] = {}
    for family, time in sums.iter_rows():
        found[kind_of(family)] = found.get(kind_of(family), 0) + int(time)
    return found


def kernel_name(tables: Mapping[str, pl.DataFrame], kinds: pl.DataFrame, kind: str | None) -> str | None:
    """The name of the kind's heaviest kernel; None where the kind has none."""
    own = kinds.filter(pl.col("kind").eq_missing(pl.lit(kind, pl.String)))
    if not own.height or own.item(0, "kernel_id") is None:
        return None
    kernel = tables["kernels"].filter(pl.col("kernel_id") == own.item(0, "kernel_id"))
    return None if not kernel.height else str(kernel.item(0, "short_name") or kernel.item(0, "name"))


def limiting_resource(dispatches: pl.DataFrame, labels: pl.DataFrame) -> str | None:
    """The label of kernels (kernel_id, label) that holds at least half of their time; None where none does."""
    if dispatches.is_empty():
        return None
    timed = dispatches.select("kernel_id", time=pl.col("end_ns") - pl.col("start_ns")).join(
        labels, on="kernel_id", how="left"
    )
    sums = (
        timed.group_by("label")
        .agg(pl.col("time").sum())
        .sort("time", "label", descending=[True, False], nulls_last=True)
    )
    whole, (label, time) = int(sums.get_column("time").sum()), sums.row(0)
    return str(label) if label is not None and whole and time >= _MOST * whole else None
