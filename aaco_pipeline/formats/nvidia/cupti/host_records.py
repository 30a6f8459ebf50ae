"""What the host did, of a CUPTI stream, as canonical tables: calls, allocations, NVTX ranges and marks.

Device activities are `tables`'s.
"""

from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from aaco_pipeline.formats.capture_tables import Findings
from aaco_pipeline.formats.nvidia.cupti.stream import Columns, Stream
from aaco_pipeline.formats.nvidia.cupti.tables import Link, devices_of, distinct, or_none
from aaco_pipeline.lake.on_disk import GrowingTable, pieces_of
from aaco_pipeline.lake.validation import empty_table, to_contract

_DOMAINS: Final = {1: "cuda_runtime", 2: "cuda_driver"}
#: What a runtime's function is called behind its name: the version of CUDA that it came with.
_API_VERSION: Final = r"_v\d{4,5}(_ptsz)?$"
#: CUPTI's CUpti_ActivityMemoryOperationType, and CUpti_ActivityMemoryKind of memory on the host.
_OPERATIONS: Final = {1: "allocation", 2: "release"}
_ON_HOST: Final = (1, 2)
_BEGIN, _END, _INSTANT = 1, 2, 3


def api_calls(stream: Stream, calls: Columns) -> pl.DataFrame:
    """The table `api_calls`, in the stream's order: that of the calls' ends on each thread."""
    count = len(calls["start"])
    if not count:
        return empty_table("api_calls")
    found = [distinct(_of_interface(calls, rows)) for rows in pieces_of(count)]
    names = {number: stream.call_names.get(number, "call not stated") for number in np.concatenate(found).tolist()}
    plain = pl.Series([*names.values()], dtype=pl.String).str.replace(_API_VERSION, "").to_list()
    called = dict(zip(names, plain, strict=True))
    table = GrowingTable()
    for rows in pieces_of(count):
        piece = {name: values[rows] for name, values in calls.items()}
        frame = pl.DataFrame({"number": _of_interface(calls, rows), "domain": piece["domain"]})
        frame = frame.select(
            name=pl.col("number").replace_strict(called, return_dtype=pl.String),
            domain=pl.col("domain").replace_strict(_DOMAINS, default="cuda", return_dtype=pl.String),
            call_id=pl.int_range(rows.start, rows.stop, dtype=pl.Int32),
            process_id=pl.lit(0, pl.Int32),
        )
        frame = frame.with_columns(
            pl.Series("thread_id", piece["thread"].astype(np.int64)),
            or_none(piece["correlation"]).alias("correlation_id"),
            pl.Series("start_ns", piece["start"]),
            pl.Series("end_ns", piece["end"]),
        )
        table.add(to_contract("api_calls", frame))
    return table.table()


def _of_interface(calls: Columns, rows: slice) -> NDArray[np.uint32]:
    """A call's number with that of its interface, as the stream names it."""
    found: NDArray[np.uint32] = (calls["domain"][rows] << np.uint32(16)) | calls["call"][rows]
    return found


def allocations(records: Columns, link: Link, device_of: dict[int, int]) -> pl.DataFrame:
    """The table `memory_allocations`: CUPTI gives an instant for each."""
    rows = pl.DataFrame(
        {
            "operation": pl.Series(records["operation"]),
            "memory_kind": pl.Series(records["memory_kind"]),
            "device_id": devices_of(records["device"], device_of),
            "thread_id": link.thread(records["correlation"]),
            "correlation_id": or_none(records["correlation"]),
            "address": or_none(records["address"]),
            "size_bytes": pl.Series(records["bytes"].astype(np.int64)),
            "start_ns": pl.Series(records["time"]),
        }
    )
    return to_contract(
        "memory_allocations",
        rows.select(
            *("thread_id", "correlation_id", "address", "size_bytes", "start_ns"),
            allocation_id=pl.int_range(pl.len(), dtype=pl.Int32),
            process_id=pl.lit(0, pl.Int32),
            device_id=pl.when(pl.col("memory_kind").is_in(_ON_HOST).not_()).then("device_id"),
            kind=pl.lit("memory"),
            operation=pl.col("operation").replace_strict(_OPERATIONS, default="unknown", return_dtype=pl.String),
            end_ns="start_ns",
        ),
    )


def markers(stream: Stream, records: Columns, findings: Findings) -> tuple[pl.DataFrame, int]:
    """The table `markers`, in order of their beginning, and how many records went into it.

    A range is two records of one number; one that was still open is left out and told.
    """
    names = {number: stream.names.get(number, "") for number in np.unique(records["name"]).tolist()}
    rows = pl.DataFrame({name: records[name] for name in ("time", "range", "kind", "thread", "name")}).with_columns(
        # A number that is used again is the next range of that number.
        turn=pl.int_range(pl.len()).over("range", "kind")
    )
    ends = rows.filter(pl.col("kind") == _END).select("range", "turn", end_ns="time")
    begun = rows.filter(pl.col("kind") == _BEGIN).join(ends, on=["range", "turn"], how="left", maintain_order="left")
    still_open = begun.get_column("end_ns").null_count()
    reason = f"{still_open} ranges were still open where the stream ends; left out"
    findings.note(still_open, "open NVTX ranges", "partial", reason)
    whole = begun.drop_nulls("end_ns")
    instants = rows.filter(pl.col("kind") == _INSTANT).with_columns(end_ns="time")
    both = pl.concat([whole, instants.select(whole.columns)]).sort("time", maintain_order=True)
    table = both.select(
        marker_id=pl.int_range(pl.len(), dtype=pl.Int32),
        process_id=pl.lit(0, pl.Int32),
        thread_id=pl.col("thread").cast(pl.Int64),
        name=pl.col("name").replace_strict(names or {0: ""}, default="", return_dtype=pl.String),
        start_ns="time",
        end_ns="end_ns",
    )
    return to_contract("markers", table), 2 * whole.height + instants.height
