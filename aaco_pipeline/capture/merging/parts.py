"""One part of a run as the merging sees it: what its reader gave, its name, and how its executions are told apart.

Which files make a part is `aaco_pipeline.capture.discovery`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import polars as pl

from aaco_pipeline.formats.capture_tables import CaptureTables, Findings, described_kernels
from aaco_pipeline.formats.thread_trace.matching import plain_name
from aaco_pipeline.lake.evidence import Evidence
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


_LISTED: Final = pl.Schema({"capture": pl.String, "code_object_id": pl.UInt64, "line": pl.Int64, "symbol": pl.String})


def named(
    parts: Sequence[NamedReading], kernels: pl.DataFrame, instructions: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame, list[Evidence]]:
    """The table `kernels` with what the traces list, and `att_instructions` with a kernel in every row that has one.

    An instruction of a trace that matched no dispatch is of the function that it is listed under. A trace that lists
    none names its kernel where its occupancy names one alone. Kernels known before get their symbol.
    """
    traces = [part for part in parts if part.table("att_instructions").height]
    if not traces:
        return kernels, instructions, []
    listed = pl.concat([_LISTED.to_frame(), *map(_functions, traces)])
    spelled = dict(
        pair
        for part in traces
        for pair in part.reading.details["functions"].select("name", "display_name").drop_nulls().iter_rows()
    )
    kernels = _with_symbols(kernels, spelled)
    known = _numbers(kernels)
    without = instructions.filter(pl.col("kernel_id").is_null() & pl.col("capture").is_not_null())
    used = _under(without, listed).get_column("symbol").drop_nulls().unique(maintain_order=True).sort().to_list()
    new = [symbol for symbol in used if plain_name(symbol) not in known]
    if new:
        rows = [(kernels.height + at, spelled.get(symbol) or symbol, symbol) for at, symbol in enumerate(new)]
        schema = {"kernel_id": pl.Int32, "name": pl.String, "symbol": pl.String}
        further = described_kernels(pl.DataFrame(rows, schema=schema, orient="row"))
        kernels = pl.concat([kernels, further.select(kernels.columns)])
    known = _numbers(kernels)
    of_symbol = {symbol: known[plain_name(symbol)] for symbol in used}
    under = (
        _under(instructions, listed).get_column("symbol").replace_strict(of_symbol, default=None, return_dtype=pl.Int32)
    )
    instructions = instructions.with_columns(kernel_id=pl.coalesce("kernel_id", under))
    findings = Findings()
    nameless = instructions.filter(pl.col("kernel_id").is_null() & pl.col("capture").is_not_null())
    where = ", ".join(nameless.get_column("capture").unique().sort().to_list())
    reason = f"{nameless.height} instructions of {where} are listed under no function's name: no kernel is known"
    findings.note(nameless.height, "kernels of thread traces", "partial", reason)
    return kernels, to_contract("att_instructions", instructions), findings.evidence


def _functions(part: NamedReading) -> pl.DataFrame:
    """The functions in a trace's listing: capture, code_object_id, line of the heading, symbol (its name)."""
    functions = part.reading.details["functions"].select(
        pl.lit(part.name).alias("capture"), "code_object_id", "line", symbol=pl.col("name").str.strip_suffix(".kd")
    )
    functions = functions.filter(pl.col("symbol") != "")
    traced = part.reading.details["traced_dispatch"]
    stated = traced.item(0, "kernel_names").to_list() if traced.height else []
    if functions.is_empty() and len(stated) == 1:
        objects = part.table("att_instructions").select("code_object_id").unique()
        return objects.select(
            pl.lit(part.name).alias("capture"), "code_object_id", line=pl.lit(-1, pl.Int64), symbol=pl.lit(stated[0])
        )
    return functions


def _under(instructions: pl.DataFrame, listed: pl.DataFrame) -> pl.DataFrame:
    """The instructions with `symbol`: the last heading above each in its trace's listing of its code object."""
    by = ["capture", "code_object_id"]
    return (
        instructions.drop("symbol", strict=False)
        .with_row_index("row")
        .sort("line", nulls_last=True)
        .join_asof(
            listed.sort("line"), on="line", by=by, strategy="backward", allow_exact_matches=True, check_sortedness=False
        )
        .sort("row")
        .drop("row")
    )


def _with_symbols(kernels: pl.DataFrame, spelled: dict[str, str]) -> pl.DataFrame:
    """The kernels with the symbols of those that a trace lists under the same name."""
    symbols = {plain_name(name): symbol for symbol, name in spelled.items()}
    found = [symbols.get(plain_name(name)) for name in kernels.get_column("name")]
    return kernels.with_columns(symbol=pl.coalesce("symbol", pl.Series(found, dtype=pl.String)))


def _numbers(kernels: pl.DataFrame) -> dict[str, int]:
    """The kernel of each plain name or symbol; of several alike the first."""
    numbers: dict[str, int] = {}
    for number, *names in kernels.select("kernel_id", "name", "symbol").iter_rows():
        for name in filter(None, names):
            numbers.setdefault(plain_name(name), number)
    return numbers
