"""What rocprofv3's results file says of each process, and of the devices that the processes used.

Their records are `aaco_pipeline.formats.rocprofv3_json.tables`'.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import polars as pl

from aaco_pipeline.formats.capture_tables import Findings
from aaco_pipeline.formats.parsing.json_fields import whole
from aaco_pipeline.formats.parsing.redaction import safe_command
from aaco_pipeline.formats.rocprofv3_json.columns import KEY, SCHEMAS, SYMBOLS, handle_of
from aaco_pipeline.lake.validation import empty_table, to_contract

_GPU: Final = 2
_TEXTS: Final = ("vendor_name", "name", "product_name")


@dataclass
class Process:
    """What the file holds of one process: parts as parsed, records as frames by kind, and how many of each kind."""

    parts: dict[str, Any] = field(default_factory=dict)
    symbols: pl.DataFrame = field(default_factory=SYMBOLS.to_frame)
    records: dict[str, list[pl.DataFrame]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def part(self, *keys: str) -> Any:
        """A part by its path, None where any step is missing."""
        part: Any = self.parts
        for key in keys:
            part = part.get(key) if isinstance(part, dict) else None
        return part

    def text(self, *keys: str) -> str | None:
        """A text by its path."""
        part = self.part(*keys)
        return part if isinstance(part, str) else None

    def entries(self, *keys: str) -> list[dict[str, Any]]:
        """A list of objects by its path; whatever else it holds is passed over."""
        part = self.part(*keys)
        return [entry for entry in part if isinstance(entry, dict)] if isinstance(part, list) else []

    def frame(self, kind: str) -> pl.DataFrame:
        """The records of one kind."""
        return pl.concat([SCHEMAS[kind].to_frame(), *self.records.get(kind, [])])

    def used_agents(self) -> set[int]:
        """The handles of the agents that ran kernels."""
        infos = (
            self.frame("kernel_dispatch").get_column("dispatch_info"),
            self.frame("counter_collection").get_column("dispatch_data").struct.field("dispatch_info"),
        )
        handles = [info.to_frame("info").select(handle_of(pl.col("info").struct.field("agent_id"))) for info in infos]
        return set(pl.concat(handles).to_series().drop_nulls().unique().to_list())


def process_rows(processes: Sequence[Process]) -> pl.DataFrame:
    """The table `processes`."""
    rows = []
    for place, process in enumerate(processes):
        words = process.part("metadata", "command")
        rows.append(
            {
                "process_id": place,
                "host": process.text("metadata", "node", "hostname"),
                "pid": whole(process.part("metadata", "pid")),
                "command": safe_command([str(word) for word in words]) if isinstance(words, list) else None,
            }
        )
    schema = {"host": pl.String, "pid": pl.Int64, "command": pl.String}
    return to_contract("processes", pl.DataFrame(rows, schema_overrides=schema))


def device_rows(processes: Sequence[Process], findings: Findings) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The GPUs, one row for each handle, and the handles of each process with their `device_id`."""
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
    frame = pl.DataFrame(list(rows.values()), infer_schema_length=None)
    schema = {"process_id": KEY, "agent": pl.UInt64, "device_id": KEY}
    known = pl.DataFrame(agents, schema=schema, orient="row")
    return to_contract("devices", frame) if rows else empty_table("devices"), known


def _handle(agent: Mapping[str, Any]) -> int | None:
    identity = agent.get("id")
    return whole(identity.get("handle"), 2**64 - 1) if isinstance(identity, dict) else None


def _hardware(agent: Mapping[str, Any]) -> dict[str, object]:
    """What the file states about a GPU, as columns of `devices`."""
    banks = [bank for bank in agent.get("mem_banks") or [] if isinstance(bank, dict)]
    caches = [cache for cache in agent.get("caches") or [] if isinstance(cache, dict)]
    second = next((whole(cache.get("size")) for cache in caches if cache.get("level") == 2), None)
    lds = whole(agent.get("lds_size_in_kb"))
    engine, memory = whole(agent.get("max_engine_clk_fcompute")), whole(banks[0].get("mem_clk_max")) if banks else None
    texts = {key: value if isinstance(value := agent.get(key), str) and value else None for key in _TEXTS}
    return {
        "vendor": texts["vendor_name"],
        "arch": texts["name"],
        "product": texts["product_name"],
        "compute_units": whole(agent.get("cu_count")),
        "xcc_count": whole(agent.get("num_xcc")),
        "simd_per_cu": whole(agent.get("simd_per_cu")),
        "wavefront_size": whole(agent.get("wave_front_size")),
        "max_clock_mhz": float(engine) if engine else None,
        "memory_clock_mhz": float(memory) if memory else None,
        "memory_bytes": sum(whole(bank.get("size_in_bytes")) or 0 for bank in banks) or None,
        "memory_bus_bits": (whole(banks[0].get("width")) if banks else None) or None,
        "l2_bytes": second * 1024 if second else None,
        "lds_bytes": lds * 1024 if lds else None,
    }
