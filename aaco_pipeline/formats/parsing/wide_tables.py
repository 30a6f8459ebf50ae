"""CSV tables with one row per kernel execution and one column per counter, as rocprof and rocprof-compute write them.

Tables with one row per execution and counter are `aaco_pipeline.formats.parsing.counter_passes`'.
"""

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from aaco_pipeline.formats.capture_tables import Findings
from aaco_pipeline.formats.parsing.counter_passes import EXECUTION, execution_columns
from aaco_pipeline.formats.parsing.csv_header import plain_name
from aaco_pipeline.formats.parsing.csv_text import TextTable, number

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
