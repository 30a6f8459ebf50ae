"""Whole recordings made here, to be spoiled in one way each, and what is found in them."""

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from aaco_pipeline.analysis.completeness.examination import EXAMINED, Completeness, examined
from aaco_pipeline.analysis.roofline.operators.graph_replays import captured_launches
from aaco_pipeline.analysis.timeline.activities import RECORDED_FROM, everything
from aaco_pipeline.lake.contracts import polars_types
from aaco_pipeline.lake.evidence import AS_A_WHOLE, Evidence
from aaco_pipeline.lake.validation import empty_table

Tables = dict[str, pl.DataFrame]
#: Nanoseconds from one launch to the next, and from a launch to its kernel.
PACE, LATENCY = 10_000, 5_000


def frame(table: str, rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """Rows of a table; what they leave out is null."""
    types = polars_types(table)
    return pl.DataFrame([{name: row.get(name) for name in types} for row in rows], schema=types)


def recording(
    launches: int = 60, *, streams: int = 1, waits: int = 3, threads: int = 1, call: str = "hipLaunchKernel"
) -> Tables:
    """Kernels, each launched by a call, over streams and threads in turn, with waits for the device between."""
    calls, dispatches = [], []
    for number in range(launches):
        start = number * PACE
        common = {"process_id": 0, "thread_id": 1 + number % threads, "correlation_id": number + 1}
        calls.append({**common, "name": call, "start_ns": start, "end_ns": start + 2_000, "domain": "hip_runtime"})
        ran = {"start_ns": start + LATENCY, "end_ns": start + LATENCY + 4_000, "self_ns": 4_000}
        place = {"dispatch_id": number, "device_id": 0, "queue_id": 0, "stream_id": number % streams}
        size = {"grid_work_items": 32_768, "workgroup_work_items": 64}
        dispatches.append({**common, **ran, **place, **size, "kernel_id": number % 3, "below_resolution": False})
    for number in range(waits):
        start = (number + 1) * launches // waits * PACE - PACE + 2_500
        wait = {"start_ns": start, "end_ns": start + 7_000, "name": "hipDeviceSynchronize", "domain": "hip_runtime"}
        calls.append({**wait, "process_id": 0, "thread_id": 1})
    if streams > 1:
        wait = {"start_ns": 2_100, "end_ns": 2_200, "name": "hipStreamWaitEvent", "domain": "hip_runtime"}
        calls.append({**wait, "process_id": 0, "thread_id": 1})
    kernels = [
        {"kernel_id": k, "name": f"k{k}", "short_name": f"k{k}", "role": "main", "family_source": "none"}
        for k in range(3)
    ]
    return {
        "api_calls": frame("api_calls", [{"call_id": i, **one} for i, one in enumerate(calls)]),
        "dispatches": frame("dispatches", dispatches),
        "kernels": frame("kernels", kernels),
        "devices": frame("devices", [{"device_id": 0, "arch": "gfx942", "wavefront_size": 64, "xcc_count": 8}]),
        "processes": frame("processes", [{"process_id": 0}]),
        "sessions": frame("sessions", [{"source_kind": "capture"}]),
    }


def replayed(replays: int = 6, nodes: int = 8, *, named: bool = True, captured: bool = False) -> Tables:
    """A graph of kernels launched again and again; its nodes are named, or the launches captured into it recorded."""
    tables = recording(replays, call="hipGraphLaunch")
    one = tables["dispatches"]
    rows = [
        {
            **row,
            "dispatch_id": row["dispatch_id"] * nodes + node,
            "kernel_id": node % 3,
            "graph_node_id": node + 1 if named else None,
            "start_ns": row["start_ns"] + node * 500,
            "end_ns": row["start_ns"] + node * 500 + 400,
        }
        for row in one.to_dicts()
        for node in range(nodes)
    ]
    tables["dispatches"] = frame("dispatches", rows)
    if captured:
        capture = [("hipStreamBeginCapture", -2_000), *(("hipLaunchKernel", -1_900 + 100 * n) for n in range(nodes))]
        capture.append(("hipStreamEndCapture", -900))
        common = {"process_id": 0, "thread_id": 1, "domain": "hip_runtime"}
        extra = [
            {**common, "name": name, "start_ns": at, "end_ns": at + 50, "correlation_id": 900 + i, "call_id": 900 + i}
            for i, (name, at) in enumerate(capture)
        ]
        tables["api_calls"] = pl.concat([tables["api_calls"], frame("api_calls", extra)])
    return tables


def counted(tables: Tables, values: Mapping[str, Sequence[float]], name: str = "pass_1") -> Tables:
    """The recording with counter values of its first dispatches, by counter."""
    rows = [
        {"dispatch_id": i, "counter": counter, "value": float(value), "pass": name}
        for counter, listed in values.items()
        for i, value in enumerate(listed)
    ]
    return {**tables, "counters": frame("counters", rows)}


def as_wholes(named: str) -> Tables:
    """A recording whose kernels of such names stand for graphs."""
    tables = recording()
    whole = pl.when(pl.col("name").str.starts_with(named)).then(pl.col("name") + AS_A_WHOLE).otherwise("name")
    return {**tables, "kernels": tables["kernels"].with_columns(name=whole)}


def keeping(tables: Tables, kept: pl.Expr) -> Tables:
    """The recording with some of its dispatches alone."""
    return {**tables, "dispatches": tables["dispatches"].filter(kept)}


def moved(tables: Tables, by_ns: int | pl.Expr, where: pl.Expr | None = None) -> Tables:
    """The recording with the times of some of its dispatches moved."""
    times = pl.when(pl.lit(True) if where is None else where)
    changed = tables["dispatches"].with_columns(
        times.then(pl.col(name) + by_ns).otherwise(name).alias(name) for name in ("start_ns", "end_ns")
    )
    return {**tables, "dispatches": changed}


def whole(tables: Mapping[str, pl.DataFrame]) -> Tables:
    """The recording as it is examined; tables that it does not have are empty."""
    names = dict.fromkeys((*EXAMINED, *RECORDED_FROM, "att_instructions", "operator_inputs"))
    filled = {**{name: empty_table(name) for name in names}, **tables}
    if filled["captured_launches"].is_empty():
        filled["captured_launches"] = captured_launches(filled)
    return filled


def examine(tables: Mapping[str, pl.DataFrame], evidence: Sequence[Evidence] = ()) -> Completeness:
    """The findings on a recording; its missing tables are empty."""
    filled = whole(tables)
    return examined(filled, everything(filled), evidence)


def found(tables: Mapping[str, pl.DataFrame], evidence: Sequence[Evidence] = ()) -> dict[str, dict[str, Any]]:
    """The findings by name; the gravest of several of one name."""
    rows = examine(tables, evidence).findings.to_dicts()
    return {row["finding"]: row for row in reversed(rows)}
