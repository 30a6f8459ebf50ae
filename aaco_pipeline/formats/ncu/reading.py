"""Read the text of ncu's CSV into canonical tables."""

import io
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Final

import polars as pl

from aaco_pipeline.errors import CaptureError
from aaco_pipeline.formats.capture_tables import CaptureTables, Findings, Limits
from aaco_pipeline.formats.ncu import COLUMNS, HEADER, LONG, columns_of
from aaco_pipeline.formats.parsing.compression import read_decompressed
from aaco_pipeline.formats.parsing.counter_passes import (
    EXECUTION,
    counter_dispatches,
    counter_rows,
    kernels_of,
    numbered,
)
from aaco_pipeline.formats.parsing.csv_text import decoded, number
from aaco_pipeline.lake.validation import to_contract

#: Columns of both pages that are not metrics.
_DESCRIBING: Final = frozenset(
    (
        *COLUMNS,
        *("process_name", "host_name", "thread_id", "context", "stream", "device", "cc", "section_name"),
        *("id:domain:start/stop_range:pl_type:pl_value:clr_type:color:msg_type:msg", "nvtx_range", "invocations"),
        *("rule_name", "rule_type", "rule_description", "estimated_speedup_type", "estimated_speedup"),
    )
)
_NOT_OF_THE_PROGRAM: Final = ("profiler__", "gpu__time_duration")
_VALUES: Final = {
    **{"source_dispatch_id": pl.UInt64, "pid": pl.Int64},
    **{"counter": pl.String, "text": pl.String, "unit": pl.String},
}
_PREFIXES: Final = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_SECONDS: Final = {"": 1e9, "m": 1e6, "u": 1e3, "n": 1.0, "p": 1e-3}
#: Factors to the base unit, by unit as ncu prints it.
FACTORS: Final = {
    **{f"{prefix}byte{of}": factor for prefix, factor in _PREFIXES.items() for of in ("", "/second", "/block")},
    **{f"{prefix}{unit}": factor for prefix, factor in _PREFIXES.items() for unit in ("hz", "Hz")},
    **{f"{prefix}{unit}": factor for prefix, factor in _SECONDS.items() for unit in ("second", "s")},
    **{f"cycle/{prefix}second": 1e9 / factor for prefix, factor in _SECONDS.items()},
}


def read(path: Path, limits: Limits) -> CaptureTables:
    """See `aaco_pipeline.formats.ncu.read`."""
    names, frame, cut = _table(path, limits)
    rows = frame.with_columns(pl.col(name).str.strip_chars() for name in COLUMNS)
    is_units = rows.get_column("id").fill_null("") == ""
    units = rows.filter(is_units).head(1)
    # A table of several processes may repeat its header.
    rows = rows.filter(~is_units & (pl.col("id") != "ID"))
    rows = rows.with_columns(_identity(rows))
    sound = rows.drop_nulls(["source_dispatch_id", "kernel_name"])
    long = _of_long(sound) if set(LONG) <= set(names) else _of_wide(sound, names, units)
    executions, counters = _numbered(sound, long)
    kept = counters.drop_nulls("value")
    kernels, executions = kernels_of(executions)
    processes = executions.select("process_id", "pid").unique("process_id", keep="first", maintain_order=True)
    tables = {
        "processes": to_contract("processes", processes),
        "devices": _devices(executions),
        "kernels": kernels,
        "counters": counter_rows(kept, executions),
    }
    findings = Findings(path.name)
    findings.have("executions", executions.height, "no kernel was profiled")
    findings.have("counters", kept.height, "no metric was asked for")
    left = rows.height - sound.height
    findings.note(left, "executions without identity", "invalid", f"{left} rows without number or kernel; left out")
    empty = counters.height - kept.height
    findings.note(empty, "counter values without a number", "invalid", f"{empty} values hold no number; left out")
    if executions.height:
        reason = "ncu runs a kernel alone and repeatedly: its times are no program's"
        findings.say("times of executions", "absent", reason)
    if cut:
        findings.say("end of file", "partial", "the file ends within a row; read up to it")
    findings.took(f"executions ({path.name})", executions.height + left, executions.height)
    findings.took(f"counter values ({path.name})", counters.height, kept.height)
    details = {
        "counter_dispatches": counter_dispatches(executions),
        "mangled_kernels": kernels.filter(pl.col("name").str.starts_with("_Z")).select("name"),
        "source_rows": findings.source_rows(),
    }
    return CaptureTables(tables, tuple(findings.evidence), details)


def _table(path: Path, limits: Limits) -> tuple[tuple[str, ...], pl.DataFrame, bool]:
    """Return the plain column names, the table's rows as text, and whether a truncated last row was dropped."""
    content = decoded(read_decompressed(path, limits)).replace(b"\r\n", b"\n")
    lines = content.split(b"\n")
    start = next((place for place, line in enumerate(lines) if line.startswith(HEADER)), None)
    names = None if start is None else columns_of(lines[start])
    if start is None or names is None:
        raise CaptureError(f"{path}: no table of ncu; profile with `ncu --csv --log-file FILE`")
    if len(names) > limits.columns:
        raise CaptureError(f"{path}: more than {limits.columns} columns; ask ncu for fewer metrics at a time")
    repeated = next((name for name, times in Counter(names).items() if times > 1), None)
    if repeated is not None:
        raise CaptureError(f"{path}: more than one column {repeated}; profile again")
    body = [line for line in lines[start + 1 :] if line.startswith(b'"')]
    if len(body) > limits.events:
        raise CaptureError(f"{path}: more than {limits.events} rows; raise the limit or profile fewer kernels")
    cut = bool(body) and not content.endswith(b"\n") and body[-1] == lines[-1] and not _is_whole(body[-1], len(names))
    schema = dict.fromkeys(names, pl.String)
    if cut or not body:
        body = body[:-1]
    if not body:
        return names, pl.DataFrame(schema=schema), cut
    try:
        frame = pl.read_csv(io.BytesIO(b"\n".join(body)), has_header=False, schema=schema, encoding="utf8-lossy")
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, ValueError, OverflowError) as error:
        reason = (str(error).splitlines() or ["unknown"])[0]
        raise CaptureError(f"{path}: a damaged table of ncu: {reason}; copy the file or profile again") from error
    return names, frame, cut


def _is_whole(line: bytes, columns: int) -> bool:
    """Return whether a line has all its fields, which ncu always quotes."""
    return line.endswith(b'"') and line.count(b'","') + 1 >= columns


def _identity(rows: pl.DataFrame) -> list[pl.Expr]:
    """Read an execution's number, process, device, and sizes in work-items."""
    grid, block = _product("grid_size"), _product("block_size")
    device, capability = (pl.col(n) if n in rows.columns else pl.lit(None, pl.String) for n in ("device", "cc"))
    return [
        pl.col("id").cast(pl.UInt64, strict=False).alias("source_dispatch_id"),
        pl.col("process_id").cast(pl.Int64, strict=False).alias("pid"),
        pl.when(pl.col("kernel_name") != "").then(pl.col("kernel_name")).alias("kernel_name"),
        device.str.strip_chars().alias("device"),
        pl.concat_str(pl.lit("sm_"), capability.str.strip_chars().str.replace(".", "", literal=True)).alias("arch"),
        (grid * block).alias("grid_work_items"),
        block.alias("workgroup_size"),
    ]


def _product(name: str) -> pl.Expr:
    """Multiply the axes of `(32, 1, 1)`; null for anything else."""
    axes = pl.col(name).str.extract_groups(r"^\(\s*(\d{1,10}),\s*(\d{1,10}),\s*(\d{1,10})\)$")
    parts = [axes.struct.field(str(axis)).cast(pl.Int64, strict=False) for axis in (1, 2, 3)]
    return parts[0] * parts[1] * parts[2]


def _of_long(rows: pl.DataFrame) -> pl.DataFrame:
    """Read number, process, counter, unit and text of each value of the default page; rule rows have no metric."""
    found = rows.select("source_dispatch_id", "pid", counter="metric_name", unit="metric_unit", text="metric_value")
    named = found.get_column("counter").drop_nulls().unique().to_list()
    kept = [name for name in named if _is_counter(name, named)]
    return found.filter(pl.col("counter").is_in(kept))


def _is_counter(name: str, names: Collection[str]) -> bool:
    """Return whether a metric is a counter to keep.

    A counter has a roll-up after a dot; metrics without one describe the device and the launch. The raw page adds
    roll-ups over units (`.avg`, `.min`, `.max`) to every requested sum. ncu's own activity and durations are not
    counters.
    """
    base, dot, roll_up = name.rpartition(".")
    added = roll_up in ("avg", "min", "max") and f"{base}.sum" in names
    return bool(dot) and not added and not name.startswith(_NOT_OF_THE_PROGRAM)


def _of_wide(rows: pl.DataFrame, names: tuple[str, ...], units: pl.DataFrame) -> pl.DataFrame:
    """Read the same from the raw page, which has its units in a separate row."""
    metrics = [name for name in names if name not in _DESCRIBING and _is_counter(name, names)]
    if not metrics:
        return pl.DataFrame(schema=_VALUES)
    texts = rows.select("source_dispatch_id", "pid", *metrics)
    long = texts.unpivot(metrics, index=["source_dispatch_id", "pid"], variable_name="counter", value_name="text")
    stated = units.select(metrics).unpivot(variable_name="counter", value_name="unit")
    return long.join(stated, on="counter", how="left", maintain_order="left")


def _numbered(rows: pl.DataFrame, long: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the executions with the columns of `EXECUTION` and their numbers, and their counters in base units."""
    identity = ["pid", "source_dispatch_id"]
    stated = rows.select(*identity, "kernel_name", "device", "arch", "workgroup_size", grid_size="grid_work_items")
    executions = stated.unique(identity, keep="first", maintain_order=True).with_row_index("execution")
    added = {name: kind for name, kind in EXECUTION.items() if name not in executions.columns}
    executions = executions.with_columns(pl.lit(None, kind).alias(name) for name, kind in added.items())
    executions = executions.with_columns(
        pl.lit("").alias("pass"),
        times=pl.lit("absent"),
        wavefront_size=pl.lit(32, pl.Int64),
        in_dispatches=pl.lit(False),
        dispatch_id=pl.col("execution").cast(pl.Int32),
        process=pl.struct("pid"),
        place=pl.struct("device"),
    )
    executions = numbered(numbered(executions, ("process",), "process_id"), ("place",), "device_id")
    factor = pl.col("unit").str.strip_chars().replace_strict(FACTORS, default=1.0, return_dtype=pl.Float64)
    value = number(pl.col("text").str.replace_all(",", "", literal=True)) * factor.fill_null(1.0)
    counters = long.join(
        executions.select("execution", *identity), on=identity, nulls_equal=True, maintain_order="left"
    )
    return executions, counters.select("execution", "counter", value=value, **{"pass": pl.lit("")})


def _devices(executions: pl.DataFrame) -> pl.DataFrame:
    found = executions.select(
        "device_id", "arch", vendor=pl.lit("NVIDIA"), handle="device", wavefront_size=pl.lit(32, pl.Int64)
    ).unique("device_id", keep="first", maintain_order=True)
    stated = pl.when(pl.col("arch").is_not_null()).then(pl.lit("capture"))
    return to_contract("devices", found.with_columns(arch_source=stated))
