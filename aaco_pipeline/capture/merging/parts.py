"""One part of a run as the merging sees it: what its reader gave, its name, and how its executions are told apart.

Which files make a part is `aaco_pipeline.capture.discovery`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import polars as pl

from aaco_pipeline.formats.capture_tables import CaptureTables, described_kernels
from aaco_pipeline.lake.validation import empty_table, to_contract

#: Tables whose rows are events of a process, with the column that numbers them.
EVENTS: Final[Mapping[str, str]] = {
    "dispatches": "dispatch_id",
    "api_calls": "call_id",
    "memory_copies": "copy_id",
    "markers": "marker_id",
    "memory_allocations": "allocation_id",
    "synchronizations": "synchronization_id",
}


def plainly_named(parts: Sequence["NamedReading"]) -> list["NamedReading"]:
    """The parts with C++ names where their readers say that kernels have those of the binary (`mangled_kernels`).

    A trace of the same run names them in C++, and counters find their dispatches by name: as the trace spells it, where
    it states the name of the binary, too.
    """
    spelled: dict[str, str] = {}
    for part in parts:
        named = part.table("kernels").select("symbol", "name").drop_nulls()
        spelled |= dict(named.filter(pl.col("symbol") != pl.col("name")).iter_rows())
    return [_plainly_named(part, spelled) for part in parts]


def _plainly_named(part: "NamedReading", spelled: Mapping[str, str]) -> "NamedReading":
    mangled = part.reading.details.get("mangled_kernels")
    if mangled is None or mangled.is_empty():
        return part
    # Only where such names are: it brings the whole grammar of them.
    from aaco_pipeline.analysis.kernels.demangling import demangled

    plain = {name: spelled.get(name) or demangled(name) for name in mangled.get_column("name")}
    reading = part.reading
    kernels = reading.tables["kernels"].with_columns(pl.col("name").replace(plain))
    counted = reading.details["counter_dispatches"].with_columns(pl.col("kernel_name").replace(plain))
    return NamedReading(
        part.name,
        replace(
            reading,
            tables={**reading.tables, "kernels": described_kernels(kernels.select("kernel_id", "name"))},
            details={**reading.details, "counter_dispatches": counted},
        ),
        part.counts_first,
    )


@dataclass
class NamedReading:
    """What one reader gave, with the part's name inside the run.

    `counts_first`: of each kernel it counted the first executions alone.
    """

    name: str
    reading: CaptureTables
    counts_first: bool = False

    def table(self, name: str) -> pl.DataFrame:
        return self.reading.tables[name] if name in self.reading.tables else empty_table(name)

    @property
    def host(self) -> str | None:
        """The host of its processes, where the format says."""
        hosts: list[str | None] = self.table("processes").get_column("host").to_list()
        return hosts[0] if hosts else None

    @property
    def counts(self) -> bool:
        return self.table("counters").height > 0

    @cached_property
    def executions(self) -> pl.DataFrame:
        """Its dispatches, and those counted executions that have no times, numbered as `counters` refers to them."""
        dispatches = self.table("dispatches")
        counted = self.reading.details.get("counter_dispatches")
        if counted is None:
            return dispatches
        untimed = counted.filter(~pl.col("in_dispatches")).unique("dispatch_id", keep="first", maintain_order=True)
        names = self.table("kernels").select(pl.col("kernel_id"), kernel_name=pl.col("name"))
        untimed = untimed.join(names.unique("kernel_name", keep="first"), on="kernel_name", how="left")
        further = to_contract(
            "dispatches",
            untimed.select(
                *(
                    "dispatch_id",
                    "process_id",
                    "device_id",
                    "thread_id",
                    "kernel_id",
                    "correlation_id",
                    "scratch_bytes",
                ),
                lds_allocated_bytes="lds_bytes",
                grid_work_items="grid_size",
                workgroup_work_items="workgroup_size",
                below_resolution=pl.lit(False),
            ),
        )
        return pl.concat([dispatches, further])

    @cached_property
    def keys(self) -> pl.DataFrame:
        """Of each execution: dispatch_id, and what names it in another pass: `process`, number, kernel's name, and the
        work-items of its grid and of one workgroup, null where the source does not state them.
        """
        executions = self.executions.select("dispatch_id", "process_id", "kernel_id", **work_items())
        counted = self.reading.details.get("counter_dispatches")
        if counted is not None:
            stated = counted.unique("dispatch_id", keep="first").select("dispatch_id", "grid_size", "workgroup_size")
            executions = executions.join(stated, on="dispatch_id", how="left", maintain_order="left").with_columns(
                grid=pl.coalesce("grid", "grid_size"), workgroup=pl.coalesce("workgroup", "workgroup_size")
            )
        listed = [self.reading.details[d] for d in ("dispatch_keys", "counter_dispatches") if d in self.reading.details]
        numbers = [frame.select("dispatch_id", pl.col("source_dispatch_id").cast(pl.UInt64)) for frame in listed]
        own = executions.select("dispatch_id", source_dispatch_id=pl.col("dispatch_id").cast(pl.UInt64))
        source = pl.concat(numbers).unique("dispatch_id", keep="first") if numbers else own
        return (
            executions.join(source, on="dispatch_id", how="left", maintain_order="left")
            .join(self.table("kernels").select("kernel_id", "name"), on="kernel_id", how="left", maintain_order="left")
            .select("dispatch_id", "source_dispatch_id", "name", "grid", "workgroup", process=pl.col("process_id"))
        )


def work_items() -> dict[str, pl.Expr]:
    """The work-items of grid and workgroup, from their product or from their sizes along the axes."""
    return {
        what: pl.coalesce(f"{what}_work_items", pl.col(f"{what}_x") * pl.col(f"{what}_y") * pl.col(f"{what}_z"))
        for what in ("grid", "workgroup")
    }
