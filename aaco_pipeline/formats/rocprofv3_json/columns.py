"""rocprofv3's records by kind: the fields they are read by, codes to names, nested fields to flat.

What the columns become is `aaco_pipeline.formats.rocprofv3_json.tables`' business.
"""

from collections.abc import Sequence
from typing import Final

import polars as pl

KEY: Final = pl.Int32
DOMAINS: Final = {
    "HIP_RUNTIME": "hip_runtime",
    "HIP_COMPILER": "hip_compiler",
    "HSA_CORE": "hsa_core",
    "HSA_AMD": "hsa_amd",
    "HSA_IMAGE": "hsa_image",
    "HSA_FINALIZE": "hsa_finalizer",
}
DIRECTIONS: Final = {
    f"MEMORY_COPY_{a}_TO_{b}": f"{a}_to_{b}".lower() for a in ("HOST", "DEVICE") for b in ("HOST", "DEVICE")
}
INSTRUCTIONS: Final = (
    *("none", "valu", "matrix", "scalar", "tex", "lds", "lds_direct", "flat", "export", "message", "barrier"),
    *("branch_not_taken", "branch_taken", "jump", "other", "no_inst", "dual_valu"),
)
STALLS: Final = (
    *("none", "no_instruction_available", "alu_dependency", "waitcnt", "internal_instruction", "barrier_wait"),
    *("arbiter_not_win", "arbiter_win_ex_stall", "other_wait", "sleep_wait"),
)
_HANDLE: Final = pl.Struct({"handle": pl.UInt64()})
_CORRELATION: Final = pl.Struct({"internal": pl.UInt64()})
_EXTENT: Final = pl.Struct({"x": pl.Int64(), "y": pl.Int64(), "z": pl.Int64()})
_DISPATCH: Final = pl.Struct(
    {
        "agent_id": _HANDLE,
        "queue_id": _HANDLE,
        "kernel_id": pl.UInt64(),
        "dispatch_id": pl.UInt64(),
        "private_segment_size": pl.Int64(),
        "group_segment_size": pl.Int64(),
        "workgroup_size": _EXTENT,
        "grid_size": _EXTENT,
    }
)
#: Times as unsigned numbers: beyond int64 they are no times and are told as such.
_TIMES: Final = {"start_timestamp": pl.UInt64(), "end_timestamp": pl.UInt64()}
_RECORD: Final = {
    "kind": pl.Int64(),
    "operation": pl.Int64(),
    "thread_id": pl.UInt64(),
    "correlation_id": _CORRELATION,
    **_TIMES,
}
_CALL: Final = pl.Schema(_RECORD)
_SAMPLE: Final = pl.Schema(
    {
        "inst_index": pl.Int64(),
        "record": pl.Struct(
            {
                "pc": pl.Struct({"code_object_id": pl.UInt64(), "code_object_offset": pl.UInt64()}),
                "exec_mask": pl.UInt64(),
                "timestamp": pl.UInt64(),
                "dispatch_id": pl.UInt64(),
                "corr_id": _CORRELATION,
                # As text: releases write a number, a name or a truth value.
                "wave_issued": pl.String(),
                "inst_type": pl.String(),
                "wave_cnt": pl.Int64(),
                "snapshot": pl.Struct({"stall_reason": pl.String()}),
            }
        ),
    }
)
#: Record kinds that become tables, with the fields they are read by.
SCHEMAS: Final[dict[str, pl.Schema]] = {
    "kernel_dispatch": pl.Schema({**_RECORD, "dispatch_info": _DISPATCH, "stream_id": _HANDLE}),
    **dict.fromkeys(("hip_api", "hsa_api", "marker_api", "rccl_api", "rocdecode_api", "rocjpeg_api"), _CALL),
    "memory_copy": pl.Schema(
        {**_RECORD, "dst_agent_id": _HANDLE, "src_agent_id": _HANDLE, "bytes": pl.UInt64(), "stream_id": _HANDLE}
    ),
    # The address is a number or an object that holds one.
    "memory_allocation": pl.Schema(
        {**_RECORD, "agent_id": _HANDLE, "address": pl.String(), "allocation_size": pl.UInt64()}
    ),
    "scratch_memory": pl.Schema({**_RECORD, "agent_id": _HANDLE, "allocation_size": pl.UInt64()}),
    "pc_sample_host_trap": _SAMPLE,
    "pc_sample_stochastic": _SAMPLE,
    "counter_collection": pl.Schema(
        {
            "thread_id": pl.UInt64(),
            "dispatch_data": pl.Struct({"dispatch_info": _DISPATCH, "correlation_id": _CORRELATION, **_TIMES}),
            "records": pl.List(pl.Struct({"counter_id": _HANDLE, "value": pl.Float64()})),
        }
    ),
}
SYMBOLS: Final = pl.Schema(
    {
        "kernel_id": pl.UInt64(),
        "kernel_name": pl.String(),
        "formatted_kernel_name": pl.String(),
        "group_segment_size": pl.Int64(),
        "private_segment_size": pl.Int64(),
        "sgpr_count": pl.Int64(),
        "arch_vgpr_count": pl.Int64(),
        "accum_vgpr_count": pl.Int64(),
    }
)


def numbered(frame: pl.DataFrame, name: str, *by: str) -> pl.DataFrame:
    """The distinct values of some columns in their order, numbered; the last of them is not null."""
    return (
        frame.select(by)
        .filter(pl.col(by[-1]).is_not_null())
        .unique()
        .sort(by)
        .with_columns(pl.int_range(pl.len(), dtype=KEY).alias(name))
    )


def handle_of(column: pl.Expr) -> pl.Expr:
    return column.struct.field("handle")


def coded(column: pl.Expr, names: Sequence[str], marker: str) -> pl.Expr:
    """A code, or the enumerator's name as text, as a plain name."""
    numbers = {str(code): name for code, name in enumerate(names)}
    plain = column.str.replace(rf"^.*{marker}", "").str.to_lowercase()
    return plain.replace_strict(numbers, default=plain)


def dispatch_fields(info: pl.Expr) -> dict[str, pl.Expr]:
    extents = (("grid", "grid_size"), ("workgroup", "workgroup_size"))
    return {
        "agent": handle_of(info.struct.field("agent_id")),
        "queue": handle_of(info.struct.field("queue_id")),
        "kernel": info.struct.field("kernel_id"),
        "dispatch": info.struct.field("dispatch_id"),
        "scratch_bytes": info.struct.field("private_segment_size"),
        "lds_allocated_bytes": info.struct.field("group_segment_size"),
        **{f"{plain}_{a}": info.struct.field(name).struct.field(a) for plain, name in extents for a in "xyz"},
    }


CALL: Final = {
    "kind": pl.col("kind"),
    "operation": pl.col("operation"),
    "thread_id": pl.col("thread_id").cast(pl.Int64, strict=False),
    "correlation_id": pl.col("correlation_id").struct.field("internal"),
    "start_ns": pl.col("start_timestamp").cast(pl.Int64, strict=False),
    "end_ns": pl.col("end_timestamp").cast(pl.Int64, strict=False),
}
DISPATCH: Final = {
    **dispatch_fields(pl.col("dispatch_info")),
    **{name: CALL[name] for name in ("thread_id", "correlation_id", "start_ns", "end_ns")},
    "stream": handle_of(pl.col("stream_id")),
}
COPY: Final = {
    **CALL,
    "destination": handle_of(pl.col("dst_agent_id")),
    "source": handle_of(pl.col("src_agent_id")),
    "size_bytes": pl.col("bytes").cast(pl.Int64, strict=False),
    "stream": handle_of(pl.col("stream_id")),
}
