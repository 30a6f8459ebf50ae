"""Executions and counter values in profiler tables, with either rows per execution and counter or counter columns."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from aaco_pipeline.formats.capture_tables import Findings, described_kernels, dispatch_table, table_of
from aaco_pipeline.formats.parsing.csv_text import LATEST_NS, TextTable, kernel_name, number, plain_name
from aaco_pipeline.lake.validation import empty_table, to_contract

_SIZES: Final = ("grid_size", "workgroup_size", "lds_bytes", "scratch_bytes")
_RESOURCES: Final = ("arch_vgprs", "accum_vgprs", "sgprs", "wavefront_size")
#: Columns read for each execution, before processes, devices and dispatches are numbered.
EXECUTION: Final = pl.Schema(
    {
        "source_dispatch_id": pl.UInt64(),
        **dict.fromkeys(("pass", "kernel_name", "guid"), pl.String()),
        **dict.fromkeys(("pid", "thread_id"), pl.Int64()),
        **dict.fromkeys(("device", "queue"), pl.String()),
        "correlation_id": pl.UInt64(),
        **dict.fromkeys((*_SIZES, *_RESOURCES, "start_ns", "end_ns", "duration_ns"), pl.Int64()),
        "times": pl.String(),
    }
)
#: Columns of the detail `counter_dispatches`.
COUNTER_DISPATCHES: Final = pl.Schema(
    {
        "dispatch_id": pl.Int32(),
        "in_dispatches": pl.Boolean(),
        "process_id": pl.Int32(),
        "device_id": pl.Int32(),
        **{name: dtype for name, dtype in EXECUTION.items() if name not in ("guid", "device")},
    }
)
#: Meaning, for the evidence, of each state of an execution's times other than `measured`.
TIMES_MEANING: Final = {
    "zeroed": "the tool set the start to 0 and the end to a median duration: durations, but no times",
    "averaged": "times with a fraction were averaged over executions by the tool: durations, but no times",
    "rounded": "times were rounded to a few digits by whoever saved the file: neither times nor durations",
    "absent": "the file states no times",
}
_EXACT: Final = pl.Decimal(38, 6)
_OWN_CLOCK: Final = "the profiler's own clock; the files do not tie it to wall clock"


def execution_columns(table: TextTable, pass_name: str) -> dict[str, pl.Expr]:
    """Make expressions that read the columns of `EXECUTION` from a table, by any known spelling of its names.

    The kernel's name and the number may still be null; such rows are dropped.
    """
    start, end = table.text("start_timestamp", "beginns"), table.text("end_timestamp", "endns")
    return {
        "source_dispatch_id": table.unsigned("dispatch_id", "index"),
        "pass": pl.lit(pass_name),
        "kernel_name": kernel_name(table.text("kernel_name", "kernelname")),
        "guid": table.text("guid"),
        "pid": table.whole("process_id", "pid"),
        "thread_id": _positive(table.whole("thread_id", "tid")),
        "device": table.text("agent_id", "gpu_id"),
        "queue": table.text("queue_id"),
        "correlation_id": _positive(table.unsigned("correlation_id")),
        "grid_size": table.whole("grid_size", "grd"),
        "workgroup_size": table.whole("workgroup_size", "wgr"),
        "lds_bytes": table.whole("lds_block_size", "lds_per_workgroup", "lds"),
        "scratch_bytes": table.whole("scratch_size", "scratch_per_workitem", "scr"),
        "arch_vgprs": table.whole("vgpr_count", "arch_vgpr", "vgpr"),
        "accum_vgprs": table.whole("accum_vgpr_count", "accum_vgpr"),
        "sgprs": table.whole("sgpr_count", "sgpr"),
        "wavefront_size": table.whole("wave_size"),
        **_times(table, start, end),
    }


def kernels_of(executions: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Build the table `kernels`, one row per name and registers, and add `kernel_id` to the executions."""
    identity = ["kernel_name", "arch_vgprs", "accum_vgprs", "sgprs"]
    distinct = executions.select(identity).unique(maintain_order=True)
    distinct = distinct.with_columns(kernel_id=pl.int_range(pl.len(), dtype=pl.Int32))
    if not distinct.height:
        return empty_table("kernels"), executions.with_columns(kernel_id=pl.lit(None, pl.Int32))
    joined = executions.join(distinct, on=identity, how="left", nulls_equal=True, maintain_order="left")
    return described_kernels(distinct.rename({"kernel_name": "name"})), joined


def numbered(frame: pl.DataFrame, keys: Sequence[str], name: str) -> pl.DataFrame:
    """It is null if the last key is null.

    It is null if the last key is null.
    """
    distinct = (
        frame.filter(pl.col(keys[-1]).is_not_null())
        .select(keys)
        .unique(maintain_order=True)
        .with_columns(pl.int_range(pl.len(), dtype=pl.Int32).alias(name))
    )
    return frame.join(distinct, on=list(keys), how="left", nulls_equal=True, maintain_order="left")


def dispatch_rows(executions: pl.DataFrame) -> pl.DataFrame:
    """Build the table `dispatches` from executions with measured times and all ids; sizes along single axes are null,
    because the source states only products.
    """
    return dispatch_table(
        executions.select(
            *("dispatch_id", "process_id", "thread_id", "device_id", "queue_id", "kernel_id", "correlation_id"),
            *("start_ns", "end_ns", "scratch_bytes"),
            lds_allocated_bytes="lds_bytes",
            grid_work_items="grid_size",
            workgroup_work_items="workgroup_size",
        )
    )


def counter_dispatches(executions: pl.DataFrame) -> pl.DataFrame:
    """Build the detail `counter_dispatches` from numbered executions."""
    return executions.select(pl.col(name).cast(dtype) for name, dtype in COUNTER_DISPATCHES.items())


def counter_rows(counters: pl.DataFrame, executions: pl.DataFrame) -> pl.DataFrame:
    """Build the table `counters` from `execution`, `counter`, `value` and `pass`, by the executions' dispatches."""
    by_execution = executions.select("execution", "dispatch_id", pass_duration_ns="duration_ns")
    joined = counters.join(by_execution, on="execution", how="left", maintain_order="left")
    return to_contract("counters", joined.select("dispatch_id", "counter", "value", "pass", "pass_duration_ns"))


def clock_domains(clock: str, timed: int, anchor: str = _OWN_CLOCK) -> pl.DataFrame:
    """Build the row that names the capture's clock; none if nothing is timed by it."""
    row = {"domain": clock, "offset_ns": 0, "uncertainty_ns": 0, "anchor": anchor}
    return table_of("clock_domains", [row] if timed else [])


def say_times(findings: Findings, item: str, source: str | None, executions: pl.DataFrame) -> None:
    """Report executions whose times were not measured or that end before they began."""
    for state, rows in executions.group_by("times").len().sort("times").rows():
        if state != "measured":
            reason = f"{rows} executions: {TIMES_MEANING[state]}; they are no dispatches"
            findings.say(f"{item}: {state}", "absent" if state == "absent" else "invalid", reason, rows, source)
    backwards = executions.filter(pl.col("duration_ns") < 0).height
    reason = f"{backwards} executions end before they begin; kept as stated"
    findings.note(backwards, f"{item}: reversed", "invalid", reason, source)


def _positive(value: pl.Expr) -> pl.Expr:
    """Read a number; 0 means none."""
    return pl.when(value > 0).then(value)


def _times(table: TextTable, start: pl.Expr, end: pl.Expr) -> dict[str, pl.Expr]:
    """Read start, end and duration of executions, null if unknown, and how reliable the source's times are.

    A fraction or an exponent in one row marks all rows of its file, even if some look like integers.
    """
    rounded, averaged = table.frame.select(
        pl.any_horizontal(text.str.contains("[eE]").any() for text in (start, end)).alias("rounded"),
        pl.any_horizontal(text.str.contains(r"\.0*[1-9]").any() for text in (start, end)).alias("averaged"),
    ).row(0)
    whole_start, whole_end = table.time("start_timestamp", "beginns"), table.time("end_timestamp", "endns")
    stated = table.whole("durationns")
    nothing = pl.lit(None, pl.Int64)
    if rounded:
        return {"start_ns": nothing, "end_ns": nothing, "duration_ns": stated, "times": pl.lit("rounded")}
    if averaged:
        exact = [text.cast(_EXACT, strict=False) for text in (start, end)]
        sane = pl.all_horizontal(value.is_between(0, LATEST_NS) for value in exact)
        duration = pl.when(sane).then(exact[1] - exact[0]).round().cast(pl.Int64, strict=False)
        return {"start_ns": nothing, "end_ns": nothing, "duration_ns": duration, "times": pl.lit("averaged")}
    measured = (whole_start > 0) & (whole_end > 0)
    zeroed = (whole_start == 0) & (whole_end > 0)
    return {
        "start_ns": pl.when(measured).then(whole_start),
        "end_ns": pl.when(measured).then(whole_end),
        "duration_ns": pl.when(measured | zeroed).then(whole_end - whole_start).otherwise(stated),
        "times": pl.coalesce(
            pl.when(measured).then(pl.lit("measured")), pl.when(zeroed).then(pl.lit("zeroed")), pl.lit("absent")
        ),
    }


@dataclass(frozen=True)
class LongTable:
    """Executions and counters of a table with one row per execution and counter.

    `executions` has the columns of `EXECUTION` and `execution` (row number), one row per execution in file order;
    `counters` has `execution`, `counter`, `value` and `pass`; `invalid` counts rows without number, kernel, counter or
    value; `repeated` counts rows that repeat a counter of an execution (these are summed).
    """

    executions: pl.DataFrame
    counters: pl.DataFrame
    invalid: int
    repeated: int


def long_table(table: TextTable, pass_name: str) -> LongTable:
    """Read executions and counters of a long table.

    If the rows of one dispatch have several times, they come from consecutive passes, named `<pass_name>.<n>`, n from 1
    in order of start. If only some passes saw a dispatch, it is unknown which ones, so its passes are named
    `<pass_name>.unknown<n>`. Otherwise all rows belong to the pass `pass_name`.
    """
    columns = execution_columns(table, pass_name)
    rows = table.frame.select(
        *(expression.cast(EXECUTION[name]).alias(name) for name, expression in columns.items()),
        counter=table.text("counter_name"),
        value=number(table.text("counter_value")),
    )
    needed = ("source_dispatch_id", "kernel_name", "counter", "value")
    sound = rows.drop_nulls(needed)
    identity = ["guid", "pid", "source_dispatch_id", "kernel_name"]
    moment = [*identity, "start_ns", "end_ns", "duration_ns"]
    executions = sound.drop("counter", "value").unique(moment, keep="first", maintain_order=True)
    executions = executions.with_row_index("execution")
    if executions.height > executions.select(identity).n_unique():
        ordinal = pl.struct("start_ns", "end_ns", "duration_ns").rank("ordinal").over(identity)
        of_all_passes = pl.len().over(identity) == pl.len().over(identity).max()
        numbered_pass = pl.when(of_all_passes).then(pl.format("{}.{}", pl.col("pass"), ordinal))
        unplaced = pl.format("{}.unknown{}", pl.col("pass"), ordinal)
        executions = executions.with_columns(numbered_pass.otherwise(unplaced).alias("pass"))
    counters = (
        sound.select(*moment, "counter", "value")
        .join(executions.select("execution", "pass", *moment), moment, "left", nulls_equal=True, maintain_order="left")
        .select("execution", "counter", "value", "pass")
    )
    stated = counters.height
    if stated > counters.select("execution", "counter").n_unique():
        counters = counters.group_by("execution", "counter", "pass", maintain_order=True).agg(pl.col("value").sum())
    return LongTable(executions, counters, rows.height - sound.height, stated - counters.height)


def say_repeated(findings: Findings, long: LongTable, source: str) -> None:
    """Report how many counters occur more than once in a long table."""
    reason = f"{long.repeated} rows state a counter of a dispatch again; their values were summed"
    findings.note(long.repeated, f"repeated counters ({source})", "partial", reason, source)


def matched(executions: pl.DataFrame, known: pl.DataFrame) -> pl.DataFrame:
    """Add `dispatch_id` and `in_dispatches` to executions, and `is_new` for those that become a new dispatch.

    `known` has `dispatch_id`, `process_id`, `source_dispatch_id` and `kernel_name` of the existing dispatches. An
    execution is one of them if process, number and name agree; agreeing executions of several passes share a number.
    New numbers follow the known ones: first executions with measured times, then those without. Only the first pass's
    times become dispatches, because each pass is another run and a timeline shows one run.
    """
    identity = ["process_id", "source_dispatch_id", "kernel_name"]
    executions = executions.with_columns(of_first_pass=pl.col("pass") == pl.col("pass").first())
    first = pl.concat([executions.filter("of_first_pass"), executions.filter(~pl.col("of_first_pass"))])
    first = first.unique(identity, keep="first", maintain_order=True)
    distinct = known.unique(identity, keep="first").with_columns(is_known=pl.lit(True))
    joined = first.select(*identity, "execution", "times", "of_first_pass").join(
        distinct, on=identity, how="left", maintain_order="left"
    )
    fresh = pl.col("is_known").is_null()
    measured = (pl.col("times") == "measured") & pl.col("of_first_pass")
    later = (fresh & measured).sum() + (fresh & ~measured).cum_sum()
    order = pl.when(measured).then((fresh & measured).cum_sum()).otherwise(later) - 1 + known.height
    named = joined.select(
        *identity,
        dispatch_id=pl.when(fresh).then(order.cast(pl.Int32)).otherwise(pl.col("dispatch_id")),
        in_dispatches=~fresh | measured,
        founder=pl.when(fresh & measured).then(pl.col("execution")),
    )
    return (
        executions.join(named, on=identity, how="left", maintain_order="left")
        .with_columns(is_new=(pl.col("execution") == pl.col("founder")).fill_null(False))
        .drop("founder", "of_first_pass")
    )


#: Columns, by plain name, that are not counters; in merged files, some repeat with the number of the merged file.
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


@dataclass(frozen=True)
class WideTable:
    """Executions and counters of one wide table.

    `executions` has the columns of `EXECUTION`, one row per execution in file order; `counters` has `execution` (row
    number in `executions`), `counter`, `value` and `pass`; `invalid` counts rows without number or kernel name; `empty`
    counts counter fields that are not a number.
    """

    executions: pl.DataFrame
    counters: pl.DataFrame
    invalid: int
    empty: int


def wide_table(table: TextTable, pass_name: str) -> WideTable:
    """Read executions and counters of a wide table.

    Merged tables repeat the columns of each merged file's executions with that file's number (`wave_size_3`); the
    counters after them belong to that file's pass, named `<pass_name>.<number>`. Without such columns, all counters
    have the pass `pass_name`.
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
    # One long column instead of thousands of short ones; the execution's number varies fastest.
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
    """Map the plain name of each counter column, in order, to its pass."""
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


def say_untaken(findings: Findings, table: TextTable) -> None:
    """Report the execution columns that fit in no table."""
    left = [name for name in table.header if plain_name(name) in _UNTAKEN]
    source = table.path.name
    findings.note(len(left), f"columns of {source}", "partial", f"columns not taken: {', '.join(left)}", source)
