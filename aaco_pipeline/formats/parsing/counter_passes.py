"""Executions and counter values in a profiler's tables: a row per execution and counter, or a column per counter."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from aaco_pipeline.formats.capture_tables import Findings, described_kernels
from aaco_pipeline.formats.parsing.csv_text import LATEST_NS, TextTable, kernel_name, number, plain_name
from aaco_pipeline.lake.validation import empty_table, to_contract

#: What is read of an execution, before processes, devices and dispatches are numbered.
EXECUTION: Final = pl.Schema(
    {
        "source_dispatch_id": pl.UInt64(),
        "pass": pl.String(),
        "kernel_name": pl.String(),
        "guid": pl.String(),
        "pid": pl.Int64(),
        "thread_id": pl.Int64(),
        "device": pl.String(),
        "queue": pl.String(),
        "correlation_id": pl.UInt64(),
        "grid_size": pl.Int64(),
        "workgroup_size": pl.Int64(),
        "lds_bytes": pl.Int64(),
        "scratch_bytes": pl.Int64(),
        "arch_vgprs": pl.Int64(),
        "accum_vgprs": pl.Int64(),
        "sgprs": pl.Int64(),
        "wavefront_size": pl.Int64(),
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
        "duration_ns": pl.Int64(),
        "times": pl.String(),
    }
)
#: The columns of the detail `counter_dispatches`.
COUNTER_DISPATCHES: Final = pl.Schema(
    {
        "dispatch_id": pl.Int32(),
        "in_dispatches": pl.Boolean(),
        "process_id": pl.Int32(),
        "device_id": pl.Int32(),
        **{name: dtype for name, dtype in EXECUTION.items() if name not in ("guid", "device")},
    }
)
#: What each state of an execution's times other than `measured` means to a reader of evidence.
TIMES_MEANING: Final = {
    "zeroed": "the tool set the start to 0 and the end to a median duration: durations, but no times",
    "averaged": "times with a fraction were averaged over executions by the tool: durations, but no times",
    "rounded": "times were rounded to a few digits by whoever saved the file: neither times nor durations",
    "absent": "the file states no times",
}
_EXACT: Final = pl.Decimal(38, 6)


def execution_columns(table: TextTable, pass_name: str) -> dict[str, pl.Expr]:
    """Expressions that read the columns of `EXECUTION` from a table of any known spelling of its names.

    The kernel's name may still be null, as may the number: such a row cannot be kept.
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
    """The table `kernels`, one row per name and registers, and the executions with their `kernel_id`."""
    identity = ["kernel_name", "arch_vgprs", "accum_vgprs", "sgprs"]
    distinct = executions.select(identity).unique(maintain_order=True)
    distinct = distinct.with_columns(kernel_id=pl.int_range(pl.len(), dtype=pl.Int32))
    if not distinct.height:
        return empty_table("kernels"), executions.with_columns(kernel_id=pl.lit(None, pl.Int32))
    joined = executions.join(distinct, on=identity, how="left", nulls_equal=True, maintain_order="left")
    return described_kernels(distinct.rename({"kernel_name": "name"})), joined


def numbered(frame: pl.DataFrame, keys: Sequence[str], name: str) -> pl.DataFrame:
    """The frame with the column `name`: the number from 0, by first appearance, of the values of `keys`.

    It is null where the last key is: a row that does not say which one it belongs to gets none.
    """
    distinct = (
        frame.filter(pl.col(keys[-1]).is_not_null())
        .select(keys)
        .unique(maintain_order=True)
        .with_columns(pl.int_range(pl.len(), dtype=pl.Int32).alias(name))
    )
    return frame.join(distinct, on=list(keys), how="left", nulls_equal=True, maintain_order="left")


def dispatch_rows(executions: pl.DataFrame) -> pl.DataFrame:
    """The table `dispatches` from executions with measured times and the columns `dispatch_id`, `process_id`,
    `device_id`, `queue_id` and `kernel_id`. Sizes along single axes are null: the source states products.
    """
    return to_contract(
        "dispatches",
        executions.select(
            "dispatch_id",
            "process_id",
            "thread_id",
            "device_id",
            "queue_id",
            "kernel_id",
            "correlation_id",
            "start_ns",
            "end_ns",
            lds_allocated_bytes=pl.col("lds_bytes"),
            scratch_bytes=pl.col("scratch_bytes"),
            grid_work_items=pl.col("grid_size"),
            workgroup_work_items=pl.col("workgroup_size"),
            self_ns=(pl.col("end_ns") - pl.col("start_ns")).clip(lower_bound=0),
            below_resolution=pl.lit(False),
        ),
    )


def counter_dispatches(executions: pl.DataFrame) -> pl.DataFrame:
    """The detail `counter_dispatches` from executions with their numbers."""
    return executions.select(pl.col(name).cast(dtype) for name, dtype in COUNTER_DISPATCHES.items())


def counter_rows(counters: pl.DataFrame, executions: pl.DataFrame) -> pl.DataFrame:
    """The table `counters` from `execution`, `counter`, `value` and `pass`, by the executions' dispatches."""
    by_execution = executions.select("execution", "dispatch_id", pass_duration_ns="duration_ns")
    joined = counters.join(by_execution, on="execution", how="left", maintain_order="left")
    return to_contract("counters", joined.select("dispatch_id", "counter", "value", "pass", "pass_duration_ns"))


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


def say_times(findings: Findings, item: str, source: str | None, executions: pl.DataFrame) -> None:
    """State what is wrong with the times of executions: not measured, or ending before they began."""
    for state, rows in executions.group_by("times").len().sort("times").rows():
        if state != "measured":
            reason = f"{rows} executions: {TIMES_MEANING[state]}; they are no dispatches"
            findings.say(f"{item}: {state}", "absent" if state == "absent" else "invalid", reason, rows, source)
    backwards = executions.filter(pl.col("duration_ns") < 0).height
    reason = f"{backwards} executions end before they begin; kept as stated"
    findings.note(backwards, f"{item}: reversed", "invalid", reason, source)


def _positive(value: pl.Expr) -> pl.Expr:
    """A number where 0 stands for none."""
    return pl.when(value > 0).then(value)


def _times(table: TextTable, start: pl.Expr, end: pl.Expr) -> dict[str, pl.Expr]:
    """Start, end and duration of executions, each null unless it is known, and how far the source's can be trusted.

    A fraction or an exponent in one row tells of all rows of its file, though some then look like whole times.
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
        "times": pl.when(measured)
        .then(pl.lit("measured"))
        .when(zeroed)
        .then(pl.lit("zeroed"))
        .otherwise(pl.lit("absent")),
    }


@dataclass(frozen=True)
class LongTable:
    """Executions and counters of a table with one row per execution and counter.

    `executions` has the columns of `EXECUTION` and `execution` (row number), one row per execution in the file's order;
    `counters` has `execution`, `counter`, `value` and `pass`; `invalid` counts rows without number, kernel, counter or
    value; `repeated` counts rows that state a counter of an execution once more, which are summed.
    """

    executions: pl.DataFrame
    counters: pl.DataFrame
    invalid: int
    repeated: int


def long_table(table: TextTable, pass_name: str) -> LongTable:
    """Executions and counters of a long table.

    Where rows of one dispatch have several times, they are of several passes, one after the other: these are named
    `<pass_name>.<n>`, n from 1 in order of start; of a dispatch that not all passes saw it cannot be told which did, so
    its passes are named `<pass_name>.unknown<n>`. Otherwise all are of the pass `pass_name`.
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
        .join(
            executions.select("execution", "pass", *moment),
            on=moment,
            how="left",
            nulls_equal=True,
            maintain_order="left",
        )
        .select("execution", "counter", "value", "pass")
    )
    stated = counters.height
    if stated > counters.select("execution", "counter").n_unique():
        counters = counters.group_by("execution", "counter", "pass", maintain_order=True).agg(pl.col("value").sum())
    return LongTable(executions, counters, rows.height - sound.height, stated - counters.height)


def say_repeated(findings: Findings, long: LongTable, source: str) -> None:
    """State how many counters a long table holds more than once."""
    reason = f"{long.repeated} rows state a counter of a dispatch again; their values were summed"
    findings.note(long.repeated, f"repeated counters ({source})", "partial", reason, source)


def matched(executions: pl.DataFrame, known: pl.DataFrame) -> pl.DataFrame:
    """The executions with `dispatch_id` and `in_dispatches`, and `is_new` for those that make a dispatch of their own.

    `known` has `dispatch_id`, `process_id`, `source_dispatch_id` and `kernel_name` of the dispatches there are. An
    execution is one of them if process, number and name agree; executions of several passes that agree in these share
    a number. New numbers follow the known ones: first the executions with measured times, then those without. Times of
    the first pass alone make dispatches: each pass is another run, and a timeline is of one.
    """
    identity = ["process_id", "source_dispatch_id", "kernel_name"]
    executions = executions.with_columns(of_first_pass=pl.col("pass") == pl.col("pass").first())
    first = pl.concat([executions.filter("of_first_pass"), executions.filter(~pl.col("of_first_pass"))])
    first = first.unique(identity, keep="first", maintain_order=True)
    joined = first.select(*identity, "execution", "times", "of_first_pass").join(
        known.unique(identity, keep="first").with_columns(is_known=pl.lit(True)),
        on=identity,
        how="left",
        maintain_order="left",
    )
    fresh = pl.col("is_known").is_null()
    measured = (pl.col("times") == "measured") & pl.col("of_first_pass")
    order = (
        pl.when(measured)
        .then((fresh & measured).cum_sum())
        .otherwise((fresh & measured).sum() + (fresh & ~measured).cum_sum())
        - 1
        + known.height
    )
    named = joined.with_columns(
        dispatch_id=pl.when(fresh).then(order.cast(pl.Int32)).otherwise(pl.col("dispatch_id")),
        in_dispatches=~fresh | measured,
        founder=pl.when(fresh & measured).then(pl.col("execution")),
    )
    return (
        executions.join(
            named.select(*identity, "dispatch_id", "in_dispatches", "founder"),
            on=identity,
            how="left",
            maintain_order="left",
        )
        .with_columns(is_new=(pl.col("execution") == pl.col("founder")).fill_null(False))
        .drop("founder", "of_first_pass")
    )


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


def say_untaken(findings: Findings, table: TextTable) -> None:
    """State the columns of executions that no table has a place for."""
    left = [name for name in table.header if plain_name(name) in _UNTAKEN]
    source = table.path.name
    findings.note(len(left), f"columns of {source}", "partial", f"columns not taken: {', '.join(left)}", source)
