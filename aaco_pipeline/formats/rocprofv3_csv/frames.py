"""One CSV table of rocprofv3 as a frame of typed columns: what each kind's columns are called and mean."""

import re
from collections.abc import Callable, Mapping
from typing import Final

import polars as pl

from aaco_pipeline.formats.parsing.csv_text import TextTable, kernel_name
from aaco_pipeline.formats.parsing.reported_statistics import statistics_rows
from aaco_pipeline.formats.rocprofv3_csv.devices import device_frame

#: Columns without which a table of a kind says nothing; alternatives are separated by `|`.
ESSENTIAL: Final[Mapping[str, tuple[str, ...]]] = {
    "kernel_trace": ("kernel_name", "dispatch_id", "start_timestamp", "end_timestamp"),
    "api_trace": ("domain", "function", "start_timestamp", "end_timestamp"),
    "memory_copy": ("direction", "start_timestamp", "end_timestamp"),
    "memory_allocation": ("operation", "start_timestamp", "end_timestamp"),
    "scratch_memory": ("operation", "start_timestamp", "end_timestamp"),
    "counter_collection": ("dispatch_id", "kernel_name", "counter_name", "counter_value"),
    "agent_info": ("node_id", "agent_type"),
    "statistics": ("name", "calls"),
    "pc_sampling": ("sample_timestamp",),
}
#: What each kind's columns are read as; a column not listed here is told in evidence.
READ: Final[Mapping[str, tuple[str, ...]]] = {
    "kernel_trace": (
        *("guid", "kind", "agent_id", "queue_id", "stream_id", "thread_id", "dispatch_id", "kernel_id", "kernel_name"),
        *("correlation_id", "start_timestamp", "end_timestamp", "lds_block_size", "group_segment_size", "process_id"),
        *("scratch_size", "private_segment_size", "vgpr_count", "accum_vgpr_count", "sgpr_count", "graph_node_id"),
        *(f"{what}_size_{axis}" for what in ("workgroup", "grid") for axis in "xyz"),
    ),
    "api_trace": (
        *("guid", "domain", "function", "process_id", "thread_id", "correlation_id"),
        *("start_timestamp", "end_timestamp"),
    ),
    "memory_copy": (
        *("guid", "kind", "direction", "stream_id", "source_agent_id", "destination_agent_id", "correlation_id"),
        *("start_timestamp", "end_timestamp", "process_id"),
    ),
    "memory_allocation": (
        *("guid", "kind", "operation", "agent_id", "allocation_size", "address", "correlation_id", "process_id"),
        *("start_timestamp", "end_timestamp", "thread_id"),
    ),
    "scratch_memory": (
        *("guid", "kind", "operation", "agent_id", "thread_id", "allocation_size", "process_id"),
        *("start_timestamp", "end_timestamp", "correlation_id"),
    ),
    "counter_collection": (
        *("guid", "correlation_id", "dispatch_id", "agent_id", "queue_id", "process_id", "thread_id", "grid_size"),
        *("kernel_id", "kernel_name", "workgroup_size", "lds_block_size", "scratch_size", "vgpr_count"),
        *("accum_vgpr_count", "sgpr_count", "counter_name", "counter_value", "start_timestamp", "end_timestamp"),
    ),
    "statistics": ("name", "calls", "totaldurationns", "averagens", "percentage", "minns", "maxns", "stddev"),
    "pc_sampling": (
        *("guid", "sample_timestamp", "exec_mask", "dispatch_id", "instruction", "instruction_comment"),
        *("correlation_id", "wave_issued_instruction", "instruction_type", "stall_reason", "wave_count", "process_id"),
    ),
}
_SAMPLING_NAMES: Final = r"^(?:rocprofiler_pc_sampling_)?(?:instruction_type_|instruction_not_issued_reason_)?"
_STATISTICS_DOMAIN: Final = re.compile(
    r"(?:^|_)(?P<domain>kernel|(?:hip|hsa|marker|rccl|rocdecode|rocjpeg)_api|memory_copy|memory_allocation"
    r"|scratch_memory|domain)_stats$"
)
_DIRECTIONS: Final = ("host_to_device", "device_to_host", "device_to_device", "host_to_host")


def _times(table: TextTable) -> dict[str, pl.Expr]:
    return {"start_ns": table.time("start_timestamp"), "end_ns": table.time("end_timestamp")}


def _process(table: TextTable) -> dict[str, pl.Expr]:
    return {"guid": table.text("guid"), "pid": table.whole("process_id")}


def _nonzero(value: pl.Expr) -> pl.Expr:
    """A number where 0 stands for none."""
    return pl.when(value != 0).then(value)


def _links(table: TextTable) -> dict[str, pl.Expr]:
    return {
        "thread_id": _nonzero(table.whole("thread_id")),
        "correlation_id": _nonzero(table.unsigned("correlation_id")),
    }


def _kernel_frame(table: TextTable) -> pl.DataFrame:
    axes = {f"{what}_{axis}": table.whole(f"{what}_size_{axis}") for what in ("workgroup", "grid") for axis in "xyz"}
    return table.frame.select(
        **_process(table),
        **_links(table),
        **_times(table),
        **axes,
        device=table.text("agent_id"),
        queue=table.text("queue_id"),
        stream=table.text("stream_id"),
        source_dispatch_id=table.unsigned("dispatch_id"),
        kernel_name=kernel_name(table.text("kernel_name")),
        lds_allocated_bytes=table.whole("lds_block_size", "group_segment_size"),
        scratch_bytes=table.whole("scratch_size", "private_segment_size"),
        arch_vgprs=table.whole("vgpr_count"),
        accum_vgprs=table.whole("accum_vgpr_count"),
        sgprs=table.whole("sgpr_count"),
        graph_node_id=_nonzero(table.unsigned("graph_node_id")),
    )


def _call_frame(table: TextTable) -> pl.DataFrame:
    return table.frame.select(
        **_process(table),
        **_links(table),
        **_times(table),
        domain=table.text("domain").str.to_lowercase(),
        # As written: a program may annotate with nothing or blanks. A field that is not there is null.
        name=pl.col("function"),
    )


def _copy_frame(table: TextTable) -> pl.DataFrame:
    direction = table.text("direction").str.to_lowercase().str.strip_prefix("memory_copy_")
    return table.frame.select(
        **_process(table),
        **_times(table),
        correlation_id=_nonzero(table.unsigned("correlation_id")),
        direction=pl.when(direction.is_in(_DIRECTIONS)).then(direction),
        stream=table.text("stream_id"),
        source_agent=table.text("source_agent_id"),
        destination_agent=table.text("destination_agent_id"),
    )


def _memory_frame(table: TextTable, kind: str) -> pl.DataFrame:
    operation = table.text("operation")
    size = table.whole("allocation_size")
    release = operation.str.to_lowercase().str.contains("free|reclaim")
    return table.frame.select(
        **_process(table),
        **_links(table),
        **_times(table),
        device=table.text("agent_id"),
        kind=pl.lit(kind),
        operation=operation,
        size_bytes=pl.when(~((size == 0) & release)).then(size),
        address=table.unsigned("address"),
    )


def _sample_frame(table: TextTable) -> pl.DataFrame:
    issued = table.whole("wave_issued_instruction") != 0

    def named(column: str) -> pl.Expr:
        return table.text(column).str.to_lowercase().str.replace(_SAMPLING_NAMES, "")

    return table.frame.select(
        **_process(table),
        time_ns=table.time("sample_timestamp"),
        execution_mask=table.unsigned("exec_mask"),
        source_dispatch_id=table.unsigned("dispatch_id"),
        instruction=table.text("instruction"),
        source=table.text("instruction_comment"),
        correlation_id=_nonzero(table.unsigned("correlation_id")),
        wave_issued=issued,
        instruction_type=named("instruction_type"),
        # The field holds a reason even when an instruction was issued; it means something only when none was.
        stall_reason=pl.when(~issued).then(named("stall_reason")),
        active_waves=table.whole("wave_count"),
    )


def _statistics_frame(table: TextTable) -> pl.DataFrame:
    stem = table.path.name.lower().removesuffix(".gz").removesuffix(".csv")
    named = _STATISTICS_DOMAIN.search(stem)
    domain = named["domain"] if named else stem.removesuffix("_stats")
    return statistics_rows(table, domain)


#: What reads each kind with one record a row; counters are read by `counter_passes`.
FRAMES: Final[Mapping[str, Callable[[TextTable], pl.DataFrame]]] = {
    "kernel_trace": _kernel_frame,
    "api_trace": _call_frame,
    "memory_copy": _copy_frame,
    "memory_allocation": lambda table: _memory_frame(table, "memory"),
    "scratch_memory": lambda table: _memory_frame(table, "scratch"),
    "pc_sampling": _sample_frame,
    "statistics": _statistics_frame,
    "agent_info": device_frame,
}
#: What a row of such a frame must state to be of use.
NEEDED: Final[Mapping[str, tuple[str, ...]]] = {
    "kernel_trace": ("kernel_name", "source_dispatch_id", "start_ns", "end_ns"),
    "api_trace": ("domain", "name", "start_ns", "end_ns"),
    "memory_copy": ("start_ns", "end_ns"),
    "memory_allocation": ("operation", "start_ns", "end_ns"),
    "scratch_memory": ("operation", "start_ns", "end_ns"),
    "pc_sampling": ("time_ns",),
    "statistics": ("name", "call_count"),
    "agent_info": ("node",),
}
