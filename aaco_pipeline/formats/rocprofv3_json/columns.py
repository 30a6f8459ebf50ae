"""Columns read from rocprofv3's results file, its processes and devices, and program-counter samples.

`reading` builds the event tables.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import polars as pl

from aaco_pipeline.formats.capture_tables import Findings, table_of
from aaco_pipeline.formats.parsing.json_fields import whole
from aaco_pipeline.formats.parsing.redaction import safe_command
from aaco_pipeline.lake.validation import to_contract

KEY: Final = pl.Int32
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
_EXTENT: Final = pl.Struct(dict.fromkeys("xyz", pl.Int64()))
_DISPATCH: Final = pl.Struct(
    {
        **dict.fromkeys(("agent_id", "queue_id"), _HANDLE),
        **dict.fromkeys(("kernel_id", "dispatch_id"), pl.UInt64()),
        **dict.fromkeys(("private_segment_size", "group_segment_size"), pl.Int64()),
        **dict.fromkeys(("workgroup_size", "grid_size"), _EXTENT),
    }
)
#: Unsigned, because times beyond int64 are reported as missing.
_TIMES: Final = dict.fromkeys(("start_timestamp", "end_timestamp"), pl.UInt64())
_KIND: Final = dict.fromkeys(("kind", "operation"), pl.Int64())
_RECORD: Final = {**_KIND, "thread_id": pl.UInt64(), "correlation_id": _CORRELATION, **_TIMES}
_CALL: Final = pl.Schema(_RECORD)
_SAMPLE: Final = pl.Schema(
    {
        "inst_index": pl.Int64(),
        "record": pl.Struct(
            {
                "pc": pl.Struct(dict.fromkeys(("code_object_id", "code_object_offset"), pl.UInt64())),
                **dict.fromkeys(("exec_mask", "timestamp", "dispatch_id"), pl.UInt64()),
                "corr_id": _CORRELATION,
                # As text: depending on the release, this is a number, a name or a boolean.
                **dict.fromkeys(("wave_issued", "inst_type"), pl.String()),
                "wave_cnt": pl.Int64(),
                "snapshot": pl.Struct({"stall_reason": pl.String()}),
            }
        ),
    }
)
#: Record kinds that become tables, with the fields to read.
SCHEMAS: Final[dict[str, pl.Schema]] = {
    "kernel_dispatch": pl.Schema({**_RECORD, "dispatch_info": _DISPATCH, "stream_id": _HANDLE}),
    **dict.fromkeys(("hip_api", "hsa_api", "marker_api", "rccl_api", "rocdecode_api", "rocjpeg_api"), _CALL),
    "memory_copy": pl.Schema(
        {**_RECORD, "dst_agent_id": _HANDLE, "src_agent_id": _HANDLE, "bytes": pl.UInt64(), "stream_id": _HANDLE}
    ),
    # The address is a number or an object that contains one.
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
#: Columns of `kernels`, by a symbol's fields.
RESOURCES: Final = {
    **{"arch_vgprs": "arch_vgpr_count", "accum_vgprs": "accum_vgpr_count", "sgprs": "sgpr_count"},
    **{"static_lds_bytes": "group_segment_size", "static_scratch_bytes": "private_segment_size"},
}
SYMBOLS: Final = pl.Schema(
    {
        "kernel_id": pl.UInt64(),
        **dict.fromkeys(("kernel_name", "formatted_kernel_name"), pl.String()),
        **dict.fromkeys(RESOURCES.values(), pl.Int64()),
    }
)


def numbered(frame: pl.DataFrame, name: str, *by: str) -> pl.DataFrame:
    """Number the distinct values of some columns in order of appearance; rows with a null last column are dropped."""
    distinct = frame.select(by).drop_nulls(by[-1]).unique().sort(by)
    return distinct.with_columns(pl.int_range(pl.len(), dtype=KEY).alias(name))


def handle_of(column: pl.Expr) -> pl.Expr:
    return column.struct.field("handle")


def coded(column: pl.Expr, names: Sequence[str], marker: str) -> pl.Expr:
    """Convert a code, or the enumerator's name as text, to a plain name."""
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


_GPU: Final = 2
_TEXTS: Final = {"vendor": "vendor_name", "arch": "name", "product": "product_name"}
_COUNTS: Final = {
    **{"compute_units": "cu_count", "xcc_count": "num_xcc", "simd_per_cu": "simd_per_cu"},
    "wavefront_size": "wave_front_size",
}


@dataclass
class Process:
    """The file's contents for one process: parsed parts, frames of records by kind, and counts by kind."""

    parts: dict[str, Any] = field(default_factory=dict)
    symbols: pl.DataFrame = field(default_factory=SYMBOLS.to_frame)
    records: dict[str, list[pl.DataFrame]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def part(self, *keys: str) -> Any:
        """Return a part by its path, None if any step is missing."""
        part: Any = self.parts
        for key in keys:
            part = part.get(key) if isinstance(part, dict) else None
        return part

    def text(self, *keys: str) -> str | None:
        """Return the string at a path."""
        part = self.part(*keys)
        return part if isinstance(part, str) else None

    def entries(self, *keys: str) -> list[dict[str, Any]]:
        """Return a list of objects by its path, without other values in it."""
        part = self.part(*keys)
        return [entry for entry in part if isinstance(entry, dict)] if isinstance(part, list) else []

    def frame(self, kind: str) -> pl.DataFrame:
        """Return the records of one kind."""
        return pl.concat([SCHEMAS[kind].to_frame(), *self.records.get(kind, [])])

    def used_agents(self) -> set[int]:
        """Return the handles of the agents that ran kernels."""
        traced = self.frame("kernel_dispatch").get_column("dispatch_info")
        counted = self.frame("counter_collection").get_column("dispatch_data").struct.field("dispatch_info")
        handles = (info.struct.field("agent_id").struct.field("handle") for info in (traced, counted))
        return set(pl.concat(handles).drop_nulls().unique().to_list())


def process_rows(processes: Sequence[Process]) -> pl.DataFrame:
    """Build the table `processes`."""
    rows = []
    for place, process in enumerate(processes):
        words = process.part("metadata", "command")
        command = safe_command([str(word) for word in words]) if isinstance(words, list) else None
        host, pid = process.text("metadata", "node", "hostname"), whole(process.part("metadata", "pid"))
        rows.append({"process_id": place, "host": host, "pid": pid, "command": command})
    return table_of("processes", rows)


def device_rows(processes: Sequence[Process], findings: Findings) -> tuple[pl.DataFrame, pl.DataFrame]:
    """List the GPUs, one row per handle, and the handles of each process with their `device_id`."""
    rows: dict[tuple[str | None, int], dict[str, object]] = {}
    agents: list[tuple[int, int, object]] = []
    for place, process in enumerate(processes):
        host = process.text("metadata", "node", "machine_id")
        gpus = [(_handle(agent), _hardware(agent)) for agent in process.entries("agents") if agent.get("type") == _GPU]
        listed = {handle for handle, _ in gpus}
        unlisted = sorted(process.used_agents() - listed)
        for handle, facts in (*gpus, *((handle, dict[str, object]()) for handle in unlisted)):
            if handle is not None:
                row = {"device_id": len(rows), **facts, "handle": str(handle)}
                agents.append((place, handle, rows.setdefault((host, handle), row)["device_id"]))
        for handle in unlisted:
            reason = "dispatches name it but the list of agents does not"
            findings.say(f"description of agent {handle}", "absent", reason)
    schema = {"process_id": KEY, "agent": pl.UInt64, "device_id": KEY}
    return table_of("devices", rows.values()), pl.DataFrame(agents, schema=schema, orient="row")


def _handle(agent: Mapping[str, Any]) -> int | None:
    identity = agent.get("id")
    return whole(identity.get("handle"), 2**64 - 1) if isinstance(identity, dict) else None


def _hardware(agent: Mapping[str, Any]) -> dict[str, object]:
    """Read a GPU's description into columns of `devices`."""
    banks = [bank for bank in agent.get("mem_banks") or [] if isinstance(bank, dict)]
    caches = [cache for cache in agent.get("caches") or [] if isinstance(cache, dict)]
    second = next((whole(cache.get("size")) for cache in caches if cache.get("level") == 2), None)
    lds = whole(agent.get("lds_size_in_kb"))
    engine, memory = whole(agent.get("max_engine_clk_fcompute")), whole(banks[0].get("mem_clk_max")) if banks else None
    texts = {column: text for column, key in _TEXTS.items() if isinstance(text := agent.get(key), str) and text}
    return {
        **texts,
        **{column: whole(agent.get(key)) for column, key in _COUNTS.items()},
        "max_clock_mhz": float(engine) if engine else None,
        "memory_clock_mhz": float(memory) if memory else None,
        "memory_bytes": sum(whole(bank.get("size_in_bytes")) or 0 for bank in banks) or None,
        "memory_bus_bits": (whole(banks[0].get("width")) if banks else None) or None,
        "l2_bytes": second * 1024 if second else None,
        "lds_bytes": lds * 1024 if lds else None,
    }


_STOCHASTIC: Final = "pc_sample_stochastic"
SAMPLES: Final = ("pc_sample_host_trap", _STOCHASTIC)
_TRUTH: Final = {"1": True, "true": True, "0": False, "false": False}


def pc_samples(processes: Sequence[Process], keys: pl.DataFrame) -> pl.DataFrame:
    """Build the samples of all processes; `keys` are the dispatches with `process_id` and `source_dispatch_id`.

    The reason field is stale for a wavefront that issued, the type field for one that did not.
    """
    first = keys.unique(["process_id", "source_dispatch_id"], keep="first", maintain_order=True)
    frames = [
        _samples(process, place, kind, pl.lit(kind == _STOCHASTIC))
        for place, process in enumerate(processes)
        for kind in SAMPLES
    ]
    frame = pl.concat(frames).join(first, on=["process_id", "source_dispatch_id"], how="left", maintain_order="left")
    return to_contract("pc_samples", frame.drop("process_id").with_columns(sample_id=pl.int_range(pl.len(), dtype=KEY)))


def _samples(process: Process, place: int, kind: str, stochastic: pl.Expr) -> pl.DataFrame:
    record = pl.col("record").struct
    position = record.field("pc").struct
    truth = record.field("wave_issued").str.to_lowercase()
    issued = truth.replace_strict(_TRUTH, default=None, return_dtype=pl.Boolean)
    instruction_type = coded(record.field("inst_type"), INSTRUCTIONS, "TYPE_")
    stall = coded(record.field("snapshot").struct.field("stall_reason"), STALLS, "REASON_")
    return process.frame(kind).select(
        process_id=pl.lit(place, KEY),
        time_ns=record.field("timestamp").cast(pl.Int64, strict=False),
        source_dispatch_id=record.field("dispatch_id"),
        correlation_id=record.field("corr_id").struct.field("internal"),
        code_object_id=position.field("code_object_id"),
        address=position.field("code_object_offset"),
        instruction=_text(process, "pc_sample_instructions"),
        source=_text(process, "pc_sample_comments"),
        execution_mask=record.field("exec_mask"),
        wave_issued=pl.when(stochastic).then(issued),
        instruction_type=pl.when(stochastic & issued).then(instruction_type),
        stall_reason=pl.when(stochastic & ~issued).then(stall),
        active_waves=record.field("wave_cnt"),
    )


def _text(process: Process, name: str) -> pl.Expr:
    """Look up the text for a sample's index; -1 means none."""
    listed = process.part("strings", name)
    texts = [text if isinstance(text, str) and text else None for text in listed] if isinstance(listed, list) else []
    places, words = pl.Series(range(len(texts)), dtype=pl.Int64), pl.Series(texts, dtype=pl.String)
    return pl.col("inst_index").replace_strict(places, words, default=None, return_dtype=pl.String)
