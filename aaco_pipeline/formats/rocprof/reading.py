"""Read tables of rocprof versions 1 and 2 from the text of a CSV file into canonical tables."""

import re
from pathlib import Path
from typing import Final

import polars as pl

from aaco_pipeline.formats.capture_tables import CaptureTables, Findings, Limits
from aaco_pipeline.formats.parsing.counter_passes import (
    WideTable,
    clock_domains,
    counter_dispatches,
    counter_rows,
    dispatch_rows,
    kernels_of,
    numbered,
    say_times,
    say_untaken,
    wide_table,
)
from aaco_pipeline.formats.parsing.csv_text import TextTable, read_text, statistics_rows
from aaco_pipeline.formats.rocprof import STATISTICS
from aaco_pipeline.lake.validation import to_contract

#: The clock of both versions, counted by the host; the files do not tie it to the wall clock.
CLOCK: Final = "monotonic"
_STATISTICS_NAME: Final = re.compile(r"(?:(?P<domain>[a-z]+)_)?stats$")


def read(path: Path, limits: Limits) -> CaptureTables:
    """See `aaco_pipeline.formats.rocprof.read`."""
    table = read_text(path, limits)
    if set(STATISTICS) <= set(table.frame.columns):
        return _statistics(table)
    table.require("a table of rocprof", "kernelname|kernel_name", "index|dispatch_id", "gpu_id")
    return executions_of(table, path.name.removesuffix(".gz").removesuffix(".csv"))


def executions_of(table: TextTable, pass_name: str) -> CaptureTables:
    """Read the executions of a table with counters as columns; all are in one pass unless columns repeat."""
    wide = wide_table(table, pass_name)
    executions = wide.executions.with_row_index("execution")
    # Executions without a stated process or device still belong to one: null is one of the values.
    executions = executions.with_columns(process=pl.struct("pid"), place=pl.struct("device"))
    executions = numbered(numbered(executions, ("process",), "process_id"), ("place",), "device_id")
    executions = numbered(executions, ("process_id", "queue"), "queue_id")
    kernels, executions = kernels_of(executions)
    executions = numbered_dispatches(executions)
    measured = executions.filter("in_dispatches").sort("dispatch_id")
    processes = executions.select("process_id", "pid").unique("process_id", keep="first", maintain_order=True)
    devices = executions.select("device_id", handle="device").unique("device_id", keep="first", maintain_order=True)
    tables = {
        "processes": to_contract("processes", processes),
        "devices": to_contract("devices", devices),
        "clock_domains": clock_domains(CLOCK, measured.height),
        "kernels": kernels,
        "dispatches": dispatch_rows(measured),
        "counters": counter_rows(wide.counters, executions),
    }
    findings = _findings(table, wide, measured)
    details = {
        "counter_dispatches": counter_dispatches(executions),
        "dispatch_keys": measured.select("dispatch_id", "source_dispatch_id"),
        "source_rows": findings.source_rows(),
    }
    return CaptureTables(tables, tuple(findings.evidence), details)


def numbered_dispatches(executions: pl.DataFrame) -> pl.DataFrame:
    """Add `in_dispatches` and `dispatch_id`: executions with measured times first, each group in its order."""
    measured = pl.col("times") == "measured"
    number_of = pl.when(measured).then(measured.cum_sum()).otherwise(measured.sum() + (~measured).cum_sum()) - 1
    return executions.with_columns(in_dispatches=measured, dispatch_id=number_of.cast(pl.Int32))


def _findings(table: TextTable, wide: WideTable, measured: pl.DataFrame) -> Findings:
    source, rows, counted = table.path.name, wide.executions.height, wide.counters.height
    findings = Findings(source)
    findings.have("executions", rows, "no rows")
    say_untaken(findings, table)
    if table.cut:
        findings.say("end of file", "partial", "the file ends within a row; read up to it")
    reason = f"{wide.invalid} rows without a dispatch number or kernel name; left out"
    findings.note(wide.invalid, "executions without identity", "invalid", reason)
    say_times(findings, "times of executions", source, wide.executions)
    findings.have("counters", counted, "the table has no counter columns")
    reason = f"{wide.empty} fields of counters hold no number; left out"
    findings.note(wide.empty, "counter values without a number", "invalid", reason)
    findings.say("api calls", "absent", "not in this format")
    if measured.height:
        findings.say("grid by axis", "absent", "the file states products over the axes; kept in counter_dispatches")
    findings.took(f"executions ({source})", rows + wide.invalid, rows)
    findings.took(f"counter values ({source})", counted + wide.empty, counted)
    return findings


def _statistics(table: TextTable) -> CaptureTables:
    """Read `results.stats.csv` and related files: totals computed by the profiler."""
    source = table.path.name
    named = _STATISTICS_NAME.search(source.removesuffix(".gz").removesuffix(".csv").lower().replace(".", "_"))
    domain = (named["domain"] if named else None) or "kernel"
    rows = statistics_rows(table, "kernel" if domain == "results" else domain)
    left_out = table.frame.height - rows.height
    findings = Findings(source)
    findings.have("statistics", rows.height, "no rows")
    findings.note(left_out, "unusable statistics", "invalid", f"{left_out} rows without name or calls; left out")
    if table.cut:
        findings.say("end of file", "partial", "the file ends within a row; read up to it")
    findings.took(f"statistics ({source})", table.frame.height, rows.height)
    details = {"source_rows": findings.source_rows()}
    return CaptureTables({"reported_statistics": rows}, tuple(findings.evidence), details)
