"""One part of a run: its reader's tables, its name, the identity of its executions, and its thread traces.

`aaco_pipeline.capture.discovery` chooses a part's files. A thread trace belongs to the dispatch with its number only if
that kernel has a name stated in the trace, because another run of the program may number its dispatches differently.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import polars as pl

from aaco_pipeline.formats.capture_tables import CaptureTables, Findings, described_kernels
from aaco_pipeline.formats.thread_trace import plain_name
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
    """Convert binary kernel names (`mangled_kernels`) to C++ names.

    A trace of the same run has C++ kernel names, and counters find their dispatches by name. If the trace also states
    the binary name, its own spelling is used.
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
    # Imported only for such names, because it loads the entire name grammar.
    from aaco_pipeline.analysis.kernels.demangling import demangled

    plain = {name: spelled.get(name) or demangled(name) for name in mangled.get_column("name")}
    reading = part.reading
    kernels = reading.tables["kernels"].with_columns(pl.col("name").replace(plain))
    counted = reading.details["counter_dispatches"].with_columns(pl.col("kernel_name").replace(plain))
    tables = {**reading.tables, "kernels": described_kernels(kernels.select("kernel_id", "name"))}
    details = {**reading.details, "counter_dispatches": counted}
    return NamedReading(part.name, replace(reading, tables=tables, details=details), part.counts_first)


@dataclass
class NamedReading:
    """A reader's tables, with the part's name inside the run.

    `counts_first`: counters cover only the first executions of each kernel.
    """

    name: str
    reading: CaptureTables
    counts_first: bool = False

    def table(self, name: str) -> pl.DataFrame:
        return self.reading.tables[name] if name in self.reading.tables else empty_table(name)

    @property
    def host(self) -> str | None:
        """Return the host of its processes, if the format states it."""
        hosts: list[str | None] = self.table("processes").get_column("host").to_list()
        return hosts[0] if hosts else None

    @property
    def counts(self) -> bool:
        return self.table("counters").height > 0

    @cached_property
    def executions(self) -> pl.DataFrame:
        """Return its dispatches, and counted executions without times, numbered as in `counters`."""
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
                *("dispatch_id", "process_id", "device_id", "thread_id", "kernel_id", "correlation_id"),
                "scratch_bytes",
                lds_allocated_bytes="lds_bytes",
                grid_work_items="grid_size",
                workgroup_work_items="workgroup_size",
                below_resolution=pl.lit(False),
            ),
        )
        return pl.concat([dispatches, further])

    @cached_property
    def keys(self) -> pl.DataFrame:
        """Return dispatch_id of each execution and its identity in other passes: `process`, number, kernel name, and
        the work-items of its grid and of one workgroup, null if the source does not state them.
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
    """Return the work-items of grid and workgroup, from their product or from their sizes along the axes."""
    return {
        what: pl.coalesce(f"{what}_work_items", pl.col(f"{what}_x") * pl.col(f"{what}_y") * pl.col(f"{what}_z"))
        for what in ("grid", "workgroup")
    }


_LISTED: Final = pl.Schema({"capture": pl.String, "code_object_id": pl.UInt64, "line": pl.Int64, "symbol": pl.String})


def named_kernels(
    parts: Sequence[NamedReading], kernels: pl.DataFrame, instructions: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame, list[Evidence]]:
    """Add the kernels listed in traces to `kernels`, and a kernel to each row of `att_instructions` that has one.

    If a trace matched no dispatch, its instructions belong to the functions that list them. A trace without a listing
    gets a kernel if its occupancy data names only one. Known kernels get their symbol.
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
    under = _under(instructions, listed).get_column("symbol")
    under = under.replace_strict(of_symbol, default=None, return_dtype=pl.Int32)
    instructions = instructions.with_columns(kernel_id=pl.coalesce("kernel_id", under))
    findings = Findings()
    nameless = instructions.filter(pl.col("kernel_id").is_null() & pl.col("capture").is_not_null())
    where = ", ".join(nameless.get_column("capture").unique().sort().to_list())
    reason = f"{nameless.height} instructions of {where} are listed under no function's name: no kernel is known"
    findings.note(nameless.height, "kernels of thread traces", "partial", reason)
    return kernels, to_contract("att_instructions", instructions), findings.evidence


def _functions(part: NamedReading) -> pl.DataFrame:
    """List the functions in a trace's listing: capture, code_object_id, line of the heading, and symbol (its name)."""
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
    """Add `symbol` to the instructions: the last heading above each in its code object's listing."""
    by = ["capture", "code_object_id"]
    rows = instructions.drop("symbol", strict=False).with_row_index("row").sort("line", nulls_last=True)
    rows = rows.join_asof(listed.sort("line"), on="line", by=by, strategy="backward", check_sortedness=False)
    return rows.sort("row").drop("row")


def _with_symbols(kernels: pl.DataFrame, spelled: dict[str, str]) -> pl.DataFrame:
    """Add the symbols that a trace lists under a kernel's name."""
    symbols = {plain_name(name): symbol for symbol, name in spelled.items()}
    found = [symbols.get(plain_name(name)) for name in kernels.get_column("name")]
    return kernels.with_columns(symbol=pl.coalesce("symbol", pl.Series(found, dtype=pl.String)))


def _numbers(kernels: pl.DataFrame) -> dict[str, int]:
    """Map each plain name or symbol to its kernel; duplicates map to the first."""
    numbers: dict[str, int] = {}
    for number, *names in kernels.select("kernel_id", "name", "symbol").iter_rows():
        for name in filter(None, names):
            numbers.setdefault(plain_name(name), number)
    return numbers


_SHOWN: Final = 80
_CARRIED: Final = ("waves", "wait_dependencies", "sampled_stalls")


def matched_instructions(
    parts: Sequence[tuple[str, CaptureTables]], keys: pl.DataFrame, dispatches: pl.DataFrame
) -> tuple[pl.DataFrame, dict[str, pl.DataFrame], list[Evidence]]:
    """Return the `att_instructions` of all parts, each assigned to its dispatch, and the related trace data.

    `parts` are named readings; `keys` has dispatch_id, source_dispatch_id and kernel name for each dispatch of the base
    trace, `dispatches` its dispatch_id and kernel_id. Each row has its part as `capture`, and the number stated in the
    trace as `source_dispatch_id`. If a trace's dispatch is not found, dispatch_id and kernel_id are null and the
    evidence gives the reason. Details, each with the column `part`, as described in `thread_trace.read`: `waves`,
    `wait_dependencies` and `sampled_stalls`; `wait_executions` (wave_index, line and stall of the instructions of class
    `wait`, in execution order), `wave_starts` (shader_engine, cu, waves: number that began there, traced or not) and
    `instruction_parts` (one row per instruction row, in the same order).
    """
    found: list[pl.DataFrame] = []
    evidence: list[Evidence] = []
    details: dict[str, list[pl.DataFrame]] = {}
    for part, reading in parts:
        instructions = reading.tables.get("att_instructions", empty_table("att_instructions"))
        if not instructions.height:
            continue
        traced = reading.details.get("traced_dispatch")
        number = traced.item(0, "source_dispatch_id") if traced is not None and traced.height else None
        instructions = instructions.with_columns(capture=pl.lit(part), source_dispatch_id=pl.lit(number, pl.UInt64))
        dispatch, reason = _dispatch(traced, keys)
        if dispatch is None:
            evidence.append(Evidence(f"dispatch that {part} traced", "absent", reason, part))
        else:
            kernel = dispatches.filter(pl.col("dispatch_id") == dispatch).get_column("kernel_id").item()
            instructions = instructions.with_columns(
                dispatch_id=pl.lit(dispatch, pl.Int32), kernel_id=pl.lit(kernel, pl.Int32)
            )
        found.append(instructions)
        details.setdefault("instruction_parts", []).append(pl.DataFrame({"part": [part] * instructions.height}))
        for name, frame in _details(reading, instructions).items():
            details.setdefault(name, []).append(frame.select(pl.lit(part).alias("part"), pl.all()))
    if not found:
        return empty_table("att_instructions"), {}, evidence
    together = {name: pl.concat(frames) for name, frames in details.items()}
    return to_contract("att_instructions", pl.concat(found)), together, evidence


def _details(reading: CaptureTables, instructions: pl.DataFrame) -> dict[str, pl.DataFrame]:
    given = {name: reading.details[name] for name in _CARRIED if name in reading.details}
    if "wave_instructions" in reading.details:
        waits = instructions.filter(pl.col("instruction_class") == "wait").select("line").unique()
        executed = reading.details["wave_instructions"].select("wave_index", "line", "stall")
        given["wait_executions"] = executed.join(waits, on="line", how="semi", maintain_order="left")
    if "occupancy" in reading.details:
        began = reading.details["occupancy"].filter("started")
        starts = began.group_by("shader_engine", "cu").agg(waves=pl.len().cast(pl.Int64))
        given["wave_starts"] = starts.sort("shader_engine", "cu")
    return given


def _dispatch(traced: pl.DataFrame | None, keys: pl.DataFrame) -> tuple[int | None, str]:
    """Return the only dispatch with the number and name stated in a trace, or None and the reason."""
    number = traced.item(0, "source_dispatch_id") if traced is not None and traced.height else None
    if traced is None or number is None:
        return None, "the thread trace does not say which dispatch it is of"
    stated = [*traced.item(0, "kernel_names"), *traced.item(0, "kernel_display_names")]
    numbered = keys.filter(pl.col("source_dispatch_id") == number)
    if not numbered.height:
        return None, f"the base trace has no dispatch of number {number}"
    if not stated:
        return None, f"the thread trace names no kernel, so that dispatch {number} may not be the traced one"
    names = {plain_name(name) for name in stated}
    alike = numbered.filter(
        pl.Series([plain_name(name) in names for name in numbered.get_column("name")], dtype=pl.Boolean)
    )
    if alike.height == 1:
        return int(alike.item(0, "dispatch_id")), ""
    if alike.height:
        return None, f"the base trace has {alike.height} dispatches of number {number} with the traced kernel's name"
    others = ", ".join(_shown(name) for name in numbered.get_column("name").unique(maintain_order=True))
    return None, f"dispatch {number} of the base trace is of {others}, and the trace is of {_shown(stated[-1])}"


def _shown(name: str | None) -> str:
    text = name or "a kernel without a name"
    return repr(text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…")
