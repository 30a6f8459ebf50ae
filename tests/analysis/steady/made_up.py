"""Recordings made here: kernels one after another, each with the call that launched it, and what is put around them."""

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from aaco_pipeline.analysis.steady.parts import STEADY_FROM, SteadyPart, steady_part
from aaco_pipeline.lake.contracts import polars_types
from aaco_pipeline.lake.validation import empty_table

Tables = dict[str, pl.DataFrame]
#: Nanoseconds from one kernel's start to the next one's, and how long each runs.
PACE, LENGTH = 10_000, 8_000
#: From a launch's start to its kernel's.
LATENCY = 4_000


def frame(table: str, rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """Rows of a table; what they leave out is null."""
    types = polars_types(table)
    return pl.DataFrame([{name: row.get(name) for name in types} for row in rows], schema=types)


def call(name: str, start: int, end: int, **more: Any) -> dict[str, Any]:
    """A host call on the one thread."""
    common = {"process_id": 0, "thread_id": 1, "domain": "hip_runtime"}
    return {**common, "name": name, "start_ns": start, "end_ns": end, **more}


def copy(start: int, end: int, direction: str = "host_to_device", **more: Any) -> dict[str, Any]:
    """A copy on the one device."""
    return {"process_id": 0, "device_id": 0, "direction": direction, "start_ns": start, "end_ns": end, **more}


def recording(
    kernels: Sequence[int],
    *,
    pauses: Mapping[int, int] | None = None,
    launched: bool = True,
    calls: Sequence[Mapping[str, Any]] = (),
    copies: Sequence[Mapping[str, Any]] = (),
    iterations: Sequence[tuple[str, int, int]] = (),
    grids: Sequence[int] | None = None,
    lengths: Mapping[int, int] | None = None,
) -> Tables:
    """A recording of those kernels on one stream, each beginning `PACE` after the one before.

    `pauses`: how much later a dispatch begins, by its number; `lengths`: how long it runs, where not `LENGTH`;
    `iterations`: phase, first dispatch and the one behind the last.
    """
    dispatches, launches, at = [], [], 1_000_000
    for number, kernel in enumerate(kernels):
        at += PACE + (pauses or {}).get(number, 0)
        common = {"process_id": 0, "thread_id": 1, "correlation_id": number + 1}
        place = {"dispatch_id": number, "kernel_id": kernel, "device_id": 0, "stream_id": 0, "queue_id": 0}
        ends = at + (lengths or {}).get(number, LENGTH)
        inside = [i for i, (_, first, last) in enumerate(iterations) if first <= number < last]
        size = {"grid_work_items": grids[number] if grids else 64, "workgroup_work_items": 64}
        iteration = inside[0] if inside else None
        dispatches.append({**common, **place, **size, "start_ns": at, "end_ns": ends, "iteration": iteration})
        launches.append(call("hipLaunchKernel", at - LATENCY, at - 2_000, correlation_id=number + 1))
    starts = [int(str(row["start_ns"])) - LATENCY for row in dispatches]
    marked = [
        {"pass": "trace", "iteration": i, "phase": phase, "start_ns": starts[first], "end_ns": starts[last - 1] + 2_000}
        for i, (phase, first, last) in enumerate(iterations)
    ]
    every = [*(launches if launched else ()), *calls]
    names = [{"kernel_id": k, "name": f"k{k}", "short_name": f"k{k}"} for k in sorted(set(kernels))]
    made = {
        "dispatches": frame("dispatches", dispatches),
        "kernels": frame("kernels", names),
        "api_calls": frame("api_calls", [{**one, "call_id": i} for i, one in enumerate(every)]),
        "memory_copies": frame("memory_copies", [{**one, "copy_id": i} for i, one in enumerate(copies)]),
        "iterations": frame("iterations", marked),
    }
    return {**{name: empty_table(name).drop("session_id", strict=False) for name in STEADY_FROM}, **made}


def begins(number: int) -> int:
    """When a dispatch begins in a recording without pauses."""
    return 1_000_000 + PACE * (number + 1)


def parts(found: SteadyPart) -> list[tuple[str, int, int]]:
    """Each part with its borders."""
    return list(found.parts.select("part", "start_ns", "end_ns").iter_rows())


def lacking(found: SteadyPart) -> Any:
    """Why no device has a steady part; None where one has."""
    reasons = found.parts.get_column("lacking")
    return None if reasons.null_count() else reasons.sort().first() or "incomplete"


def judged(tables: Mapping[str, pl.DataFrame]) -> SteadyPart:
    """The steady part, whose parts are checked to cover each device's window exactly."""
    found = steady_part(tables)
    columns = ["device_id", "start_ns", "end_ns"]
    ran = pl.concat([tables[name].select(columns) for name in ("dispatches", "memory_copies")]).drop_nulls()
    windows = ran.group_by("device_id").agg(pl.col("start_ns").min(), pl.col("end_ns").max()).sort("device_id")
    covered = found.parts.group_by("device_id").agg(pl.col("start_ns").min(), pl.col("end_ns").max()).sort("device_id")
    assert covered.equals(windows)
    follows = found.parts.select(
        (pl.col("start_ns") == pl.col("end_ns").shift(1).over("device_id")).fill_null(True).all()
    )
    assert not found.parts.height or follows.item()
    return found
