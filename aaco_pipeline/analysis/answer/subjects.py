"""What an answer names: the call, copy, collective or kernel that its class is about, and the resource of the kernels.

Everything is of the judged window: what lies beside it is nobody's subject.
"""

from collections.abc import Mapping
from typing import Final

import polars as pl

from aaco_pipeline.analysis.answer.allocations import allocating
from aaco_pipeline.analysis.answer.first_to_fix import (
    COPIES_BESIDE,
    WAIT_LESS,
    copies_in_pieces,
    heaviest_collective,
    longest_call,
    longest_copies,
    longest_name,
    pauses_of_host,
    subject_of_launches,
)
from aaco_pipeline.analysis.answer.kinds import kind_of
from aaco_pipeline.analysis.answer.terms import PACK, each_of
from aaco_pipeline.analysis.answer.window import Window, inside

#: A label that covers at least this much of the kernels' time names the resource.
_MOST: Final = 0.5


def subject_of(
    name: str,
    window: Window,
    dispatches: pl.DataFrame,
    gaps: pl.DataFrame,
    tables: Mapping[str, pl.DataFrame],
    *,
    idle: pl.DataFrame | None,
) -> tuple[str | None, str | None]:
    """What the class `name`, no device's own time, is to be fixed by, and advice on that, where it has one of its own.

    The frames are those of the window's device, `idle` as `idle_parts` gives it. None where nothing recorded names it.
    """
    times = window.repetitions, each_of(window.rule)
    if name == "sync":
        own = inside(gaps, window.pieces)
        return longest_call(own, tables["api_calls"], *times), None if _reads_back(own) else WAIT_LESS
    if name == "copy":
        return _copies(window, idle, tables["memory_copies"])
    if name == "communication":
        return heaviest_collective(tables["collectives"].join(dispatches, on="dispatch_id", how="semi")), None
    if name == "launch":
        calls = dispatches.drop_nulls("correlation_id").select("process_id", "correlation_id").n_unique()
        return subject_of_launches(dispatches.height, calls, *times), None
    if name == "allocation":
        return longest_name(inside(allocating(tables["api_calls"]), window.pieces), *times), None
    return None if idle is None or name != "host" else pauses_of_host(idle, *times), None


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


# ---- inside ----------------------------------------------------------------------------------------------------------


def _reads_back(gaps: pl.DataFrame) -> bool:
    """Whether most of the waits' time lies behind a copy: then it is a result that the host waits for."""
    waits = gaps.filter(pl.col("cause") == "sync").select(
        time=pl.col("end_ns") - pl.col("start_ns"),
        behind_copy=(pl.col("previous_activity_kind").cast(pl.String) == "memory_copy").fill_null(False),
    )
    return 2 * int(waits.filter("behind_copy").get_column("time").sum()) >= int(waits.get_column("time").sum())


def _copies(window: Window, idle: pl.DataFrame | None, copies: pl.DataFrame) -> tuple[str | None, str | None]:
    """The copies that take most time, or how many there are where most of their share is the way to them."""
    own = inside(copies.filter(pl.col("device_id") == window.device), window.pieces)
    copying = 0 if idle is None else int(idle.get_column("copying").sum())
    if copying > int(own.select((pl.col("end_ns") - pl.col("start_ns")).sum()).item() or 0):
        pieces = copies_in_pieces(own, window.repetitions, each_of(window.rule))
        if pieces is not None:
            return pieces, PACK
    told = longest_copies(own)
    return told, COPIES_BESIDE if told is not None and told.endswith("pinned memory") else None
