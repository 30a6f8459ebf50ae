"""CSV tables of rocprof version 1 (`results.csv`, `results.stats.csv`) and of version 2 (`results_<pid>.csv`).

One row is one kernel execution, and counters are wide: each a column of its own. What the two versions call the
columns differs, and tools that post-process them mix both spellings; any mixture is read. Facts of the format this
reader relies on: `grd` and `wgr` are products over the axes; kernel names end in ` [clone .kd]` or `.kd`; times are
there only when the profiler was asked for them; header and text may be quoted or not.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np
import polars as pl

from aaco_pipeline.formats.capture_tables import CaptureTables, DetectedFormat, Limits
from aaco_pipeline.formats.parsing.counter_passes import (
    EXECUTION,
    TIMES_MEANING,
    counter_dispatches,
    dispatch_rows,
    execution_columns,
    kernels_of,
    numbered,
    source_rows,
)
from aaco_pipeline.formats.parsing.csv_text import (
    TextTable,
    header_of,
    kernel_name,
    number,
    plain_name,
    read_text,
    whole_number,
)
from aaco_pipeline.lake.evidence import Evidence
from aaco_pipeline.lake.validation import to_contract

#: The clock of both versions, as the host counts it; the files do not tie it to wall clock.
CLOCK: Final = "monotonic"
#: Columns, by plain name, that are no counters; behind a merge some repeat with the number of the merged file.
DISPATCH_COLUMNS: Final = frozenset(
    (
        *("index", "dispatch_id", "kernelname", "kernel_name", "gpu_id", "queue_id", "queue_index", "pid", "tid"),
        *("grd", "grid_size", "wgr", "workgroup_size", "lds", "lds_per_workgroup", "scr", "scratch_per_workitem"),
        *("vgpr", "arch_vgpr", "accum_vgpr", "sgpr", "fbar", "wave_size", "sig", "obj", "kernel_id", "xcc_index"),
        *("beginns", "start_timestamp", "endns", "end_timestamp", "dispatchns", "completens", "durationns"),
        *("correlation_id", "guid", "node_id"),
    )
)
_UNTAKEN: Final = ("queue_index", "fbar", "sig", "obj", "kernel_id", "xcc_index", "dispatchns", "completens", "node_id")
_REPEATED: Final = re.compile(r"(.+)_(\d+)")
_STATISTICS: Final = ("name", "calls", "totaldurationns")
_STATISTICS_NAME: Final = re.compile(r"(?:(?P<domain>[a-z]+)_)?stats$")


@dataclass(frozen=True)
class WideTable:
    """Executions and counters of one wide table.

    `executions` has the columns of `EXECUTION`, one row per execution in the file's order; `counters` has `execution`
    (row number in `executions`), `counter`, `value` and `pass`; `invalid` counts rows without number or kernel name;
    `empty` counts fields of counters that hold no number.
    """

    executions: pl.DataFrame
    counters: pl.DataFrame
    invalid: int
    empty: int


def probe(path: Path) -> DetectedFormat | None:
    """Recognize a table of rocprof version 1 or 2 by its header; None for anything else. Reads a few KB."""
    header = header_of(path) if path.is_file() else None
    names = frozenset(header or ())
    if is_wide(names):
        version = 1 if "kernelname" in names or "queue_index" in names else 2
        return DetectedFormat("rocprof-csv", f"rocprof version {version}, kernels and counters (CSV)")
    if names.issuperset(_STATISTICS) and "minns" not in names:
        return DetectedFormat("rocprof-csv", "rocprof version 1, statistics (CSV)")
    return None


def is_wide(names: frozenset[str]) -> bool:
    """Whether plain column names are those of one row per execution with counters as columns."""
    identified = not names.isdisjoint(("index", "dispatch_id")) and "gpu_id" in names
    return identified and not names.isdisjoint(("kernelname", "kernel_name")) and "counter_name" not in names


def read(path: Path, limits: Limits | None = None) -> CaptureTables:
    """Read one table of rocprof version 1 or 2.

    Tables: `processes`, `devices`, `kernels`, `dispatches` (executions with measured times), `counters`,
    `clock_domains`, or `reported_statistics` alone. Details: `counter_dispatches` (see
    `aaco_pipeline.formats.parsing.counter_passes`), `dispatch_keys`, `source_rows`. Grid and workgroup of `dispatches`
    are null, for the file has only products, which the detail keeps. Raises CaptureError for anything else.
    """
    table = read_text(path, limits or Limits())
    names = frozenset(table.frame.columns)
    if names.issuperset(_STATISTICS):
        return _statistics(table)
    table.require("a table of rocprof", "kernelname|kernel_name", "index|dispatch_id", "gpu_id")
    wide = wide_table(table, path.name.removesuffix(".gz").removesuffix(".csv"))
    executions = wide.executions.with_row_index("execution")
    # An execution whose process or device is not named belongs to one all the same: null is one of the values.
    executions = executions.with_columns(process=pl.struct("pid"), place=pl.struct("device"))
    executions = numbered(numbered(executions, ("process",), "process_id"), ("place",), "device_id")
    executions = numbered(executions, ("process_id", "queue"), "queue_id")
    kernels, executions = kernels_of(executions)
    executions = numbered_dispatches(executions)
    counters = wide.counters.join(
        executions.select("execution", "dispatch_id", "duration_ns"), on="execution", how="left", maintain_order="left"
    )
    measured = executions.filter("in_dispatches").sort("dispatch_id")
    processes = executions.select("process_id", "pid").unique("process_id", keep="first", maintain_order=True)
    devices = executions.select("device_id", handle="device").unique("device_id", keep="first", maintain_order=True)
    tables = {
        "processes": to_contract("processes", processes),
        "devices": to_contract("devices", devices),
        "clock_domains": clock_domains(CLOCK, measured.height),
        "kernels": kernels,
        "dispatches": dispatch_rows(measured),
        "counters": counter_rows(counters),
    }
    details = {
        "counter_dispatches": counter_dispatches(executions),
        "dispatch_keys": measured.select("dispatch_id", "source_dispatch_id"),
        "source_rows": source_rows(
            [
                (f"executions ({path.name})", executions.height + wide.invalid, executions.height),
                (f"counter values ({path.name})", counters.height + wide.empty, counters.height),
            ]
        ),
    }
    return CaptureTables(tables, tuple(_evidence(table, wide, measured)), details)


def wide_table(table: TextTable, pass_name: str) -> WideTable:
    """Executions and counters of a wide table.

    Merged tables repeat the columns of each merged file's executions with that file's number (`wave_size_3`); the
    counters behind them are of that file's pass, which is named `<pass_name>.<number>`. Without such columns every
    counter has the pass `pass_name`.
    """
    executions = table.frame.select(
        expression.cast(EXECUTION[name]).alias(name) for name, expression in execution_columns(table, pass_name).items()
    ).with_row_index("row")
    sound = executions.filter(pl.col("kernel_name").is_not_null() & pl.col("source_dispatch_id").is_not_null())
    passes = counter_passes(table.header, pass_name)
    if not passes or not sound.height:
        counters = pl.DataFrame(
            schema={"execution": pl.UInt32, "counter": pl.String, "value": pl.Float64, "pass": pl.String}
        )
        return WideTable(sound.drop("row"), counters, executions.height - sound.height, 0)
    columns = list(passes)
    # One long column instead of thousands of short ones: the execution's number runs fastest.
    texts = table.frame.select(columns)[sound.get_column("row")] if sound.height < executions.height else table.frame
    values = pl.concat([texts.get_column(name).alias("value") for name in columns])
    spelled = {plain_name(name): name for name in table.header}
    execution, column = np.tile(np.arange(sound.height), len(columns)), np.repeat(np.arange(len(columns)), sound.height)
    counters = pl.DataFrame(
        {
            "execution": pl.Series(execution, dtype=pl.UInt32),
            "counter": pl.Series([spelled[name] for name in columns])[column],
            "value": values.to_frame().select(number(pl.col("value"))).to_series(),
            "pass": pl.Series(list(passes.values()))[column],
        }
    )
    kept = counters.drop_nulls("value")
    return WideTable(sound.drop("row"), kept, executions.height - sound.height, counters.height - kept.height)


def counter_passes(header: tuple[str, ...], pass_name: str) -> dict[str, str]:
    """The plain name of each counter column in order, with its pass."""
    passes: dict[str, str] = {}
    merged = 0
    for written in header:
        name = plain_name(written)
        repeated = _REPEATED.fullmatch(name)
        if repeated is not None and repeated[1] in DISPATCH_COLUMNS:
            merged = int(repeated[2])
        elif name not in DISPATCH_COLUMNS:
            passes[name] = f"{pass_name}.{merged}"
    return passes if merged else dict.fromkeys(passes, pass_name)


def numbered_dispatches(executions: pl.DataFrame) -> pl.DataFrame:
    """The executions with `in_dispatches` and `dispatch_id`: those with measured times first, each in their order."""
    measured = pl.col("times") == "measured"
    number_of = pl.when(measured).then(measured.cum_sum()).otherwise(measured.sum() + (~measured).cum_sum()) - 1
    return executions.with_columns(in_dispatches=measured, dispatch_id=number_of.cast(pl.Int32))


def counter_rows(counters: pl.DataFrame) -> pl.DataFrame:
    """The table `counters` from `dispatch_id`, `counter`, `value`, `pass` and `duration_ns`."""
    return to_contract(
        "counters", counters.select("dispatch_id", "counter", "value", "pass", pass_duration_ns="duration_ns")
    )


def clock_domains(clock: str, timed: int) -> pl.DataFrame:
    """The one row that names the capture's clock; none when nothing is timed by it."""
    return to_contract(
        "clock_domains",
        pl.DataFrame(
            {
                "domain": [clock],
                "offset_ns": [0],
                "uncertainty_ns": [0],
                "anchor": ["the profiler's own clock; the files do not tie it to wall clock"],
            }
        ).head(1 if timed else 0),
    )


def untaken(table: TextTable) -> list[Evidence]:
    """The columns of executions that no table has a place for."""
    left = [name for name in table.header if plain_name(name) in _UNTAKEN]
    source = table.path.name
    reason = f"columns not taken: {', '.join(left)}"
    return [Evidence(f"columns of {source}", "partial", reason, source, len(left))] if left else []


def presence(rows: int) -> Literal["present", "absent"]:
    """The status of evidence for something that has so many rows."""
    return "present" if rows else "absent"


def times_evidence(item: str, source: str, executions: pl.DataFrame) -> list[Evidence]:
    """What is wrong with the times of executions: not measured, or ending before they began."""
    found = []
    for state, rows in executions.group_by("times").len().sort("times").rows():
        if state != "measured":
            status: Literal["absent", "invalid"] = "absent" if state == "absent" else "invalid"
            reason = f"{rows} executions: {TIMES_MEANING[state]}; they are no dispatches"
            found.append(Evidence(f"{item}: {state}", status, reason, source, rows))
    reversed_times = executions.filter(pl.col("duration_ns") < 0).height
    if reversed_times:
        reason = f"{reversed_times} executions end before they begin; kept as stated"
        found.append(Evidence(f"{item}: reversed", "invalid", reason, source, reversed_times))
    return found


def _evidence(table: TextTable, wide: WideTable, measured: pl.DataFrame) -> list[Evidence]:
    source, rows = table.path.name, wide.executions.height
    found = [Evidence("executions", presence(rows), None if rows else "no rows", source, rows), *untaken(table)]
    if table.cut:
        found.append(Evidence("end of file", "partial", "the file ends within a row; read up to it", source))
    if wide.invalid:
        reason = f"{wide.invalid} rows without a dispatch number or kernel name; left out"
        found.append(Evidence("executions without identity", "invalid", reason, source, wide.invalid))
    found += times_evidence("times of executions", source, wide.executions)
    counted = wide.counters.height
    lacking = None if counted else "the table has no counter columns"
    found.append(Evidence("counters", presence(counted), lacking, source, counted))
    if wide.empty:
        reason = f"{wide.empty} fields of counters hold no number; left out"
        found.append(Evidence("counter values without a number", "invalid", reason, source, wide.empty))
    found.append(Evidence("api calls", "absent", "not in this format", source))
    shape = "the file states products over the axes; kept in counter_dispatches"
    if measured.height:
        found.append(Evidence("grid by axis", "absent", shape, source))
    return found


def _statistics(table: TextTable) -> CaptureTables:
    """`results.stats.csv` and its siblings: sums that the profiler made itself."""
    source = table.path.name
    named = _STATISTICS_NAME.search(source.removesuffix(".gz").removesuffix(".csv").lower().replace(".", "_"))
    domain = (named["domain"] if named else None) or "kernel"
    domain = "kernel" if domain == "results" else domain
    rows = statistics_rows(table, domain, kernel_name_column=domain == "kernel")
    left_out = table.frame.height - rows.height
    evidence = [Evidence("statistics", presence(rows.height), None if rows.height else "no rows", source, rows.height)]
    if left_out:
        reason = f"{left_out} rows without name or calls; left out"
        evidence.append(Evidence("unusable statistics", "invalid", reason, source, left_out))
    if table.cut:
        evidence.append(Evidence("end of file", "partial", "the file ends within a row; read up to it", source))
    taken = source_rows([(f"statistics ({source})", table.frame.height, rows.height)])
    return CaptureTables({"reported_statistics": rows}, tuple(evidence), {"source_rows": taken})


def statistics_rows(table: TextTable, domain: str, *, kernel_name_column: bool = False) -> pl.DataFrame:
    """The table `reported_statistics` of one file, without the rows that state no name or number of calls."""

    def rounded(name: str) -> pl.Expr:
        text = table.text(name)
        return pl.coalesce(whole_number(text), number(text).round().cast(pl.Int64, strict=False))

    name = table.text("name")
    rows = table.frame.select(
        source=pl.lit(table.path.name),
        domain=pl.lit(domain),
        name=kernel_name(name) if kernel_name_column else name,
        call_count=table.whole("calls"),
        total_ns=rounded("totaldurationns"),
        mean_ns=rounded("averagens"),
        min_ns=rounded("minns"),
        max_ns=rounded("maxns"),
        standard_deviation_ns=rounded("stddev"),
        share_ratio=number(table.text("percentage")) / 100,
    )
    return to_contract("reported_statistics", rows.drop_nulls(("name", "call_count")))
