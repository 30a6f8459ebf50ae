"""Place each kernel on the roofline: its limiting resource, and how close it came to that resource's roof.

`aaco_pipeline.analysis.roofline.bounds` provides the lower-bound times per resource. This module finds the longest per
dispatch and per kernel, and the longest of another unit. Roofs take precedence in the order measured, reported,
published. A unit that counts its own busy cycles needs at least these. Nothing is clamped: a kernel may exceed a
measured roof if it did better than the benchmark, and its row then says so.

The nearest roof depends on work and ceilings, and hardly on the kernel's duration.
`aaco_pipeline.analysis.bottlenecks.kernel_signals` decides whether it is near enough to limit the kernel. Flags and
their reasons are in docs/roofline.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Final

import polars as pl

from aaco_pipeline.analysis.roofline.bounds import (
    BUSY_RATIOS,
    COUNTERS,
    DEMANDS,
    FP6_OR_FP4,
    PREFERRED,
    RESOURCES,
    SOURCES,
    bounds_of,
    busy_ns,
    ceiling_column,
    demands_of,
    per_kernel_and_device,
    prepared,
    time_column,
    timed,
    with_flags,
)
from aaco_pipeline.analysis.thresholds import NOTHING_ELSE_NEEDS_LONGER
from aaco_pipeline.lake.contracts import polars_types
from aaco_pipeline.lake.validation import empty_table

#: If arithmetic fills this fraction of the issue slots of vector instructions, arithmetic is reported instead of issue.
MOSTLY_ARITHMETIC: Final = 0.90
#: Resources that are views of one piece of hardware; they are never compared with each other.
UNITS: Final[Mapping[str, tuple[str, ...]]] = {
    "vector unit": ("vector_issue", "vector", "vector_packed", "vector_integer"),
    "scalar unit": ("scalar_issue",),
    "matrix": ("matrix",),
    "lds": ("lds",),
    "vl1d": ("vl1d",),
    "l1": ("l1",),
    "l2": ("l2",),
    "l3": ("l3",),
    "memory side": ("dram", "infinity_cache", "fabric"),
}
_ARITHMETIC: Final = ("vector", "vector_packed", "vector_integer")
_LEVELS: Final = ("fabric", "dram", "l2", "vl1d", "lds")


@dataclass(frozen=True)
class Placement:
    """`roofline` and `bounds`: the columns of contracts `roofline` and `resource_bounds`."""

    roofline: pl.DataFrame
    bounds: pl.DataFrame


def placement(work: pl.DataFrame, ceilings: pl.DataFrame) -> Placement:
    """Compute both tables, which need the same times. Empty frames give empty tables.

    Args:
        work: From `counter_metrics` or `kernel_work`, or both concatenated: one row per dispatch or, without
            dispatch_id, per kernel. Kernel rows are ratios of sums over their dispatches.
        ceilings: The contract of that name.
    """
    if work.is_empty():
        return Placement(empty_table("roofline"), empty_table("resource_bounds"))
    ready = prepared(work)
    kernels = timed(per_kernel_and_device(ready), ceilings)
    single = ready.filter(pl.col("dispatch_id").is_not_null())
    dispatches = timed(single.with_columns(dispatches="dispatch_count"), ceilings)
    parts = [_placed(_over_devices(kernels)), _placed(_with_resource_times(dispatches))]
    return Placement(pl.concat(parts).sort("kernel_id", "dispatch_id"), bounds_of(kernels))


def _used(resource: str) -> str:
    """Column of the time that the unit needed: by the preferred ceiling, and at least its own busy time."""
    return f"used/{resource}"


def _by(resource: str, source: str) -> str:
    """Column of the time by ceilings of a single source; null if a format has none."""
    return f"by/{resource}/{source}"


def _with_resource_times(rows: pl.DataFrame) -> pl.DataFrame:
    """Add `used/…`, `by/…` and `no_ceiling/…` for each resource, with formats on one pipe added up."""
    columns = []
    for resource in RESOURCES:
        demands = [demand for demand in demands_of(rows) if demand.resource == resource]
        chosen = [pl.coalesce([time_column(demand, source) for source in PREFERRED]) for demand in demands]
        needed = _sum_of_known(chosen)
        if resource in BUSY_RATIOS:
            needed = pl.max_horizontal(needed, busy_ns(resource))
        columns.append(needed.alias(_used(resource)))
        columns += [
            _sum_of_known([pl.col(time_column(d, source)) for d in demands]).alias(_by(resource, source))
            for source in SOURCES
        ]
        lacking = [
            (pl.col(d.column) > 0) & pl.all_horizontal([pl.col(ceiling_column(d, s)).is_null() for s in SOURCES])
            for d in demands
        ]
        columns.append(_any(lacking).alias(f"no_ceiling/{resource}"))
    any_ceiling = _any([pl.col(ceiling_column(d, s)).is_not_null() for d in DEMANDS for s in SOURCES])
    return rows.with_columns(*columns, any_ceiling.alias("any_ceiling"))


def _sum_of_known(parts: list[pl.Expr]) -> pl.Expr:
    """Sum the parts that are not null; null if all are."""
    if not parts:
        return pl.lit(None, pl.Float64)
    known = pl.any_horizontal([part.is_not_null() for part in parts])
    return pl.when(known).then(reduce(pl.Expr.add, [part.fill_null(0.0) for part in parts]))


def _any(conditions: list[pl.Expr]) -> pl.Expr:
    return pl.any_horizontal(conditions).fill_null(False) if conditions else pl.lit(False)


def _over_devices(rows: pl.DataFrame) -> pl.DataFrame:
    """Kernels' rows with their times, summed over their devices; usually there is only one."""
    with_times = _with_resource_times(rows)
    if not with_times.get_column("kernel_id").is_duplicated().any():
        return with_times.with_columns(dispatch_id=pl.lit(None, pl.Int32))
    numbers = [
        name
        for name, dtype in with_times.schema.items()
        if dtype.is_numeric() and name not in ("kernel_id", "device_id", "dispatches")
    ]
    holds = [name for name, dtype in with_times.schema.items() if dtype == pl.Boolean]
    return (
        with_times.group_by("kernel_id", maintain_order=True)
        .agg(
            *[pl.when(pl.col(name).null_count() == 0).then(pl.col(name).sum()).alias(name) for name in numbers],
            *[pl.col(name).any() for name in holds],
            pl.col("dispatches").sum(),
            pl.col("work_source").first(),
            pl.col("quality_flags").explode(empty_as_null=True).drop_nulls().unique().sort(),
        )
        .with_columns(dispatch_id=pl.lit(None, pl.Int32))
    )


def _placed(rows: pl.DataFrame) -> pl.DataFrame:
    """The contract's columns from rows with times per resource."""
    others = [pl.when(pl.col("unit") != unit).then(pl.col(unit)) for unit in UNITS]
    return (
        rows.with_columns(
            pl.max_horizontal([pl.col(_used(r)) for r in members]).alias(u) for u, members in UNITS.items()
        )
        .with_columns(longest=pl.max_horizontal([pl.col(unit) for unit in UNITS]))
        .with_columns(unit=_unit_with(pl.col("longest"), pl.lit("")))
        .with_columns(runner_up_time=pl.max_horizontal(others))
        .with_columns(runner_up=_unit_with(pl.col("runner_up_time"), pl.col("unit")))
        .with_columns(
            nearest=_name_within("unit", pl.col("runner_up_time").fill_null(0.0)),
            second=_name_within("runner_up", pl.lit(0.0)),
        )
        .with_columns(share=_of_duration("longest"), second_share=_of_duration("runner_up_time"))
        .pipe(_judged)
        .pipe(_columns)
    )


def _unit_with(time: pl.Expr, excluded: pl.Expr) -> pl.Expr:
    """Return the first unit that needed `time`, except the one named in `excluded`."""
    return pl.coalesce(pl.when((pl.col(unit) == time) & (excluded != unit)).then(pl.lit(unit)) for unit in UNITS)


def _name_within(unit: str, other_units_time: pl.Expr) -> pl.Expr:
    """Return the resource that represents the unit named in column `unit`.

    The vector unit's issue time is never shorter than its arithmetic at full rate, so it would always win. It is
    therefore named only if arithmetic fills less than `MOSTLY_ARITHMETIC` of it, if the unit needs longer than all
    others only with it, or if not all operations could be counted: packed instructions count once, which a peak in
    operations cannot represent.
    """
    arithmetic = pl.max_horizontal([pl.col(_used(resource)) for resource in _ARITHMETIC])
    issue = pl.col(_used("vector_issue"))
    uncertain = pl.col("flops_is_lower_bound").fill_null(False) & (pl.col(_used("vector")) == arithmetic)
    named = pl.coalesce([pl.when(pl.col(_used(r)) == arithmetic).then(pl.lit(r)) for r in _ARITHMETIC])
    too_little = (arithmetic < MOSTLY_ARITHMETIC * issue) | (arithmetic < other_units_time)
    by_issue = issue.is_not_null() & (arithmetic.is_null() | uncertain | too_little)
    vector = pl.when(by_issue).then(pl.lit("vector_issue")).otherwise(named)
    choices = [pl.when(pl.col(unit) == "vector unit").then(vector)]
    for other, members in UNITS.items():
        longest = [pl.when(pl.col(_used(resource)) == pl.col(other)).then(pl.lit(resource)) for resource in members]
        choices.append(pl.when((pl.col(unit) == other) & (other != "vector unit")).then(pl.coalesce(longest)))
    return pl.coalesce(choices)


def _of_duration(time: str) -> pl.Expr:
    return pl.when(pl.col("duration_ns") > 0).then(pl.col(time) / pl.col("duration_ns"))


def _judged(rows: pl.DataFrame) -> pl.DataFrame:
    """Add `bound`, `efficiency_ratio`, the same for the second unit, and all flags.

    If arithmetic or memory traffic is unknown, another resource is named only if it took so much of the time that the
    uncounted work cannot have needed much longer. Counters cover both with the vector unit and the memory side, models
    with any pipe and any level.
    """
    modelled = pl.col("work_source") != COUNTERS
    arithmetic_known = pl.col("vector unit").is_not_null() | (modelled & pl.col("matrix").is_not_null())
    levels_known = _any([pl.col(level).is_not_null() for level in ("l1", "l2", "l3")])
    traffic_known = pl.col("memory side").is_not_null() | (modelled & levels_known)
    decided = pl.col("share").is_not_null() & (pl.col("longest") > 0)
    decided &= (pl.col("share") >= NOTHING_ELSE_NEEDS_LONGER) | (arithmetic_known & traffic_known)
    has_second = decided & (pl.col("runner_up_time") > 0)
    rows = rows.with_columns(
        bound=pl.when(decided).then(pl.col("nearest")),
        efficiency_ratio=pl.when(decided).then(pl.col("share")),
        second_bound=pl.when(has_second).then(pl.col("second")),
        second_ratio=pl.when(has_second).then(pl.col("second_share")),
    )
    flags = with_flags(
        pl.col("quality_flags").fill_null([]),
        {
            "no_duration": pl.col("duration_ns").is_null() | (pl.col("duration_ns") <= 0),
            "no_ceilings": ~pl.col("any_ceiling"),
            **{f"no_ceiling:{r}": pl.col(f"no_ceiling/{r}") & pl.col("any_ceiling") for r in _CEILINGS_OF_THEIR_OWN},
            "no_ceiling:fabric": (pl.col("fabric_bytes") > 0) & pl.col("memory side").is_null() & pl.col("any_ceiling"),
            "not_counted:vector": ~modelled & ~_counted(rows, _VECTOR_COLUMNS),
            "not_counted:memory": ~modelled & pl.col("fabric_bytes").is_null(),
            **_direction_flags(rows),
            "infinity_cache_not_excluded": pl.col("dram_is_assumed"),
            "dram_reads_only": _column_known(rows, "dram_read_bytes") & (pl.col("flops") > 0),
            **{f"above_{source}_roof": _above(source) for source in SOURCES},
        },
    )
    return rows.with_columns(all_flags=flags.list.unique(maintain_order=True))


#: One memory-side ceiling represents the others.
_CEILINGS_OF_THEIR_OWN: Final = tuple(resource for resource in RESOURCES if resource not in UNITS["memory side"])
_VECTOR_COLUMNS: Final = tuple(demand.column for demand in DEMANDS if demand.resource.startswith("vector"))


def _counted(rows: pl.DataFrame, columns: tuple[str, ...]) -> pl.Expr:
    return _any([pl.col(name).is_not_null() for name in columns if name in rows.columns])


def _column_known(rows: pl.DataFrame, name: str) -> pl.Expr:
    return pl.col(name).is_not_null() if name in rows.columns else pl.lit(False)


def _direction_flags(rows: pl.DataFrame) -> dict[str, pl.Expr]:
    read, write = (_column_known(rows, f"fabric_{way}_bytes") for way in ("read", "write"))
    return {"fabric_reads_only": read & ~write, "fabric_writes_only": write & ~read}


def _above(source: str) -> pl.Expr:
    """Return whether some resource, by that source's ceilings alone, would have needed longer than the kernel took."""
    over = [pl.col(_by(resource, source)) > pl.col("duration_ns") for resource in RESOURCES]
    return (pl.col("duration_ns") > 0) & _any(over)


def _columns(rows: pl.DataFrame) -> pl.DataFrame:
    """The contract's columns from judged rows."""

    def amount(name: str) -> pl.Expr:
        return pl.col(name).round() if name in rows.columns else pl.lit(None, pl.Float64)

    def ratio(above: pl.Expr, below: pl.Expr) -> pl.Expr:
        return pl.when(below > 0).then(above / below)

    flops, seconds = pl.col("flops"), pl.col("duration_ns") / 1e9
    fabric = amount("fabric_read_bytes") + amount("fabric_write_bytes")
    level_bytes = {level: amount(f"{level}_bytes") for level in _LEVELS} | {
        "fabric": fabric,
        "dram": amount("dram_read_bytes"),
    }
    schema = polars_types("roofline")
    made = rows.with_columns(
        flops_is_lower_bound=pl.when(flops.is_not_null()).then(pl.col("flops_is_lower_bound")),
        flops_by_type=pl.when(flops.is_not_null()).then(_flops_by_type(rows)),
        achieved_flops_per_s=ratio(flops, seconds),
        achieved_bytes_per_s=ratio(fabric, seconds),
        quality_flags=pl.col("all_flags"),
        **{f"{level}_arithmetic_intensity": ratio(flops, moved) for level, moved in level_bytes.items()},
        **{f"{level}_traffic_bytes": amount(f"{level}_bytes") for level in ("l2", "vl1d", "lds")},
        **{name: amount(name) for name in ("fabric_read_bytes", "fabric_write_bytes", "dram_read_bytes")},
    )
    return made.select(pl.col(name).cast(dtype) for name, dtype in schema.items())


def _flops_by_type(rows: pl.DataFrame) -> pl.Expr:
    """Operations per format over both pipes, without formats that did not occur."""
    columns: dict[str, list[str]] = {}
    for demand in demands_of(rows):
        if demand.unit == "flop":
            columns.setdefault(demand.dtype or FP6_OR_FP4, []).append(demand.column)
    totals = {dtype: _sum_of_known([pl.col(name) for name in names]) for dtype, names in columns.items()}
    entries = [
        pl.when(total > 0).then(pl.struct(pl.lit(dtype).alias("dtype"), total.alias("flops")))
        for dtype, total in totals.items()
    ]
    return pl.concat_list(entries).list.drop_nulls() if entries else pl.lit(None)
