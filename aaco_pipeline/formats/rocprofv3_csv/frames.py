"""Read each rocprofv3 CSV table as a frame of typed columns, and number the devices of a run.

`reading` turns frames into canonical tables.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import polars as pl

from aaco_pipeline.formats.capture_tables import Findings, table_of
from aaco_pipeline.formats.parsing.csv_text import TextTable, kernel_name, number, statistics_rows

#: Columns that name an agent, by part of a run, with the column for the device's number.
_NAMED: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "dispatch": (("device", "device_id"),),
    "execution": (("device", "device_id"),),
    "copy": (("source_agent", "source_device_id"), ("destination_agent", "destination_device_id")),
    "memory": (("device", "device_id"),),
}
#: Parts that run on a device, whether they name it or not.
_ON_A_DEVICE: Final = ("dispatch", "execution")
#: A larger count indicates damage.
_LARGEST: Final = 2**40
_RELATIVE: Final = re.compile(r"Agent\s+([0-9]{1,9})", re.IGNORECASE)
_BY_TYPE: Final = re.compile(r"(CPU|GPU)\s+([0-9]{1,9})", re.IGNORECASE)
_BARE: Final = re.compile(r"[0-9]{1,9}")


def device_frame(table: TextTable) -> pl.DataFrame:
    """Read the rows of an `agent_info` table: the numbers by which other tables name an agent, and its facts.

    An impossible 0 becomes null. Only vendor, product and clock of a CPU are read.
    """
    is_gpu = table.text("agent_type").str.to_uppercase() == "GPU"

    def of_gpu(column: str) -> pl.Expr:
        value = table.whole(column)
        return pl.when(is_gpu & value.is_between(1, _LARGEST)).then(value)

    name, product = table.text("name"), table.text("product_name")
    clock = pl.when(is_gpu).then(table.text("max_engine_clk_fcompute")).otherwise(table.text("max_engine_clk_ccompute"))
    megahertz = number(clock)
    return table.frame.select(
        node=table.whole("node_id"),
        relative=table.whole("logical_node_id"),
        by_type=table.whole("logical_node_type_id"),
        type=table.text("agent_type").str.to_uppercase(),
        vendor=table.text("vendor_name"),
        arch=pl.when(is_gpu).then(name),
        product=pl.when(is_gpu).then(product).otherwise(pl.coalesce(product, name)),
        compute_units=of_gpu("cu_count"),
        xcc_count=of_gpu("num_xcc"),
        simd_per_cu=of_gpu("simd_per_cu"),
        wavefront_size=of_gpu("wave_front_size"),
        max_clock_mhz=pl.when(megahertz > 0).then(megahertz),
        lds_bytes=of_gpu("lds_size_in_kb") * 1024,
    )


class Devices:
    """Device numbers of one run: those in `agent_info` first, then others named in its tables."""

    def __init__(self, listed: pl.DataFrame | None) -> None:
        self._listed: list[dict[str, Any]] = [] if listed is None else listed.to_dicts()
        # If several rows claim a number, the first counts.
        backwards = list(enumerate(self._listed))[::-1]
        self._at: dict[str, dict[object, int]] = {
            index: {row[index]: position for position, row in backwards} for index in ("node", "relative")
        }
        self._at["type"] = {(row["type"], row["by_type"]): position for position, row in backwards}
        self._facts: list[dict[str, object]] = []
        self._absolute = False
        self._unlisted: list[str] = []

    def numbered(self, parts: Mapping[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
        """Add the numbers of the devices named in the parts; ends of copies in host memory get none."""
        given = dict(parts)
        if "copy" in given:
            is_from_host = pl.col("direction").is_in(["host_to_device", "host_to_host"]).fill_null(False)
            is_to_host = pl.col("direction").is_in(["device_to_host", "host_to_host"]).fill_null(False)
            given["copy"] = given["copy"].with_columns(
                source_agent=pl.when(~is_from_host).then("source_agent"),
                destination_agent=pl.when(~is_to_host).then("destination_agent"),
            )
        places = [(part, *one) for part, columns in _NAMED.items() if part in given for one in columns]
        named: dict[str | None, None] = {}
        running: set[str] = set()
        for part, column, _ in places:
            values = given[part].get_column(column).unique(maintain_order=True).to_list()
            named |= dict.fromkeys(value for value in values if value is not None or part in _ON_A_DEVICE)
            running |= {value for value in values if value is not None and part in _ON_A_DEVICE}
        numbers = self._numbers(list(named), running)
        for part, column, target in places:
            frame = pl.DataFrame(list(numbers.items()), schema={column: pl.String, target: pl.Int32}, orient="row")
            nulls_equal = part in _ON_A_DEVICE
            given[part] = given[part].join(frame, column, "left", nulls_equal=nulls_equal, maintain_order="left")
        return given

    def table(self) -> pl.DataFrame:
        """Build the table `devices`, after `numbered`."""
        return table_of("devices", ({**facts, "device_id": number} for number, facts in enumerate(self._facts)))

    def say(self, findings: Findings) -> None:
        """Report the known devices, and the index by which the tables name them."""
        item, rows = "facts of devices", len(self._facts)
        if not self._listed:
            reason = "no agent_info among the files: only the names of the devices are known"
            findings.say(item, "absent", reason, rows)
        elif self._unlisted:
            findings.say(item, "partial", f"agent_info does not list {', '.join(self._unlisted[:8])}", rows)
        else:
            index = "absolute" if self._absolute else "relative"
            findings.say(item, "present", f"agents named by their {index} index", rows)

    def _numbers(self, named: list[str | None], running: set[str]) -> dict[str | None, int]:
        # "Agent 4" is the index relative to the devices visible to the process, unless the tool was configured
        # otherwise. Kernels run only on GPUs, so the kind of agent shows which index it is.
        wrong = [agent for agent in running if self._kind(agent, "relative") != "GPU"]
        self._absolute = bool(wrong) and all(self._kind(agent, "node") == "GPU" for agent in running)
        index = "node" if self._absolute else "relative"
        numbers: dict[str | None, int] = {}
        found = [(agent, self._position(agent, index)) for agent in named]
        handles = {position: agent for agent, position in found if position is not None and agent is not None}
        facts = ("node", "relative", "by_type", "type")
        for place, row in enumerate(self._listed):
            handle = handles.get(place, f"Agent {row[index] if row[index] is not None else row['node']}")
            self._facts.append({**{k: v for k, v in row.items() if k not in facts}, "handle": handle})
        for agent, position in found:
            numbers[agent] = len(self._facts) if position is None else position
            if position is None:
                self._facts.append({"handle": agent})
                self._unlisted += [] if agent is None else [agent]
        return numbers

    def _kind(self, agent: str, index: str) -> object:
        position = self._position(agent, index)
        return None if position is None else self._listed[position]["type"]

    def _position(self, agent: str | None, index: str) -> int | None:
        """Return the row of `agent_info` that a name refers to, or None."""
        if agent is None:
            return None
        by_type, relative, bare = _BY_TYPE.fullmatch(agent), _RELATIVE.fullmatch(agent), _BARE.fullmatch(agent)
        if by_type is not None:
            return self._at["type"].get((by_type[1].upper(), int(by_type[2])))
        if relative is not None:
            return self._at[index].get(int(relative[1]))
        return None if bare is None else self._at["node"].get(int(bare[0]))


#: Essential columns of each kind; alternatives are separated by `|`.
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
#: Columns read for each kind; others are listed in evidence.
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
    """Read a number; 0 means none."""
    return pl.when(value != 0).then(value)


def _links(table: TextTable) -> dict[str, pl.Expr]:
    thread, correlation = _nonzero(table.whole("thread_id")), _nonzero(table.unsigned("correlation_id"))
    return {"thread_id": thread, "correlation_id": correlation}


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
        # Unchanged: a program may annotate with an empty or blank text. A missing field is null.
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
        # The field has a reason even if an instruction was issued; it is only meaningful if none was.
        stall_reason=pl.when(~issued).then(named("stall_reason")),
        active_waves=table.whole("wave_count"),
    )


def _statistics_frame(table: TextTable) -> pl.DataFrame:
    stem = table.path.name.lower().removesuffix(".gz").removesuffix(".csv")
    named = _STATISTICS_DOMAIN.search(stem)
    domain = named["domain"] if named else stem.removesuffix("_stats")
    return statistics_rows(table, domain)


#: Readers of each kind with one record per row; `counter_passes` reads counters.
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
#: Columns required in a row of such a frame.
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
