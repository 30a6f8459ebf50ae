"""Compute the minimum time that each resource of a device needed for the counted work: work over ceiling.

Time-based roofline after Wang, Yang, Farrell, Zhang, Kurth and Williams, "Time-Based Roofline for Deep Learning
Performance Analysis" (2020): a lower bound on the time per resource, which also covers kernels without floating-point
operations. Formats on one pipe add up; the vector and the matrix pipe are separate.
`aaco_pipeline.analysis.roofline.placement` decides which resource limits a kernel.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Final

import polars as pl

from aaco_pipeline.lake.contracts import polars_types

SPEC: Final = "spec"
REPORTED: Final = "reported"
MEASURED: Final = "measured"
SOURCES: Final = (SPEC, REPORTED, MEASURED)
#: Precedence of one resource's ceilings: measured on this device, reported for its model, published.
PREFERRED: Final = (MEASURED, REPORTED, SPEC)
#: Source in `resource_bounds` for a unit's own busy counter; no ceiling is involved.
BUSY: Final = "busy"
#: Resources whose units count busy cycles during which they accept nothing else, with the column of their fraction of
#: the dispatch's cycles. A memory unit also counts cycles spent waiting for the next level, so its busy cycles are no
#: bound; an LDS cycle repeated for a bank conflict moved nothing.
BUSY_RATIOS: Final[Mapping[str, str]] = {
    "vector_issue": "valu_busy_ratio",
    "matrix": "matrix_busy_ratio",
    "scalar_issue": "salu_busy_ratio",
    "lds": "lds_access_ratio",
}
COUNTERS: Final = "counters"
#: The counter of 6- and 4-bit matrix operations does not distinguish the two; neither do the ceilings.
FP6_OR_FP4: Final = "fp6_fp4"


@dataclass(frozen=True)
class Demand:
    """A row's demand for one resource in one number format: its column and unit."""

    resource: str
    dtype: str | None
    column: str
    unit: str

    @property
    def key(self) -> str:
        """Name the pair of resource and format in the columns of a timed frame."""
        return f"{self.resource}/{self.dtype or ''}"


#: Order of precedence for ties. Columns missing from a frame of work are skipped.
DEMANDS: Final = (
    *(Demand("vector", dtype, f"valu_{dtype}_flops", "flop") for dtype in ("fp64", "fp32", "fp16")),
    *(Demand("vector_packed", dtype, f"valu_packed_{dtype}_flops", "flop") for dtype in ("fp32", "fp16")),
    Demand("vector_integer", "int32", "valu_int32_ops", "op"),
    Demand("vector_integer", "int64", "valu_int64_ops", "op"),
    Demand("vector_integer", "int8", "valu_int8_ops", "op"),
    Demand("vector_issue", None, "valu_issue_slots", "issue slot"),
    *(Demand("matrix", dtype, f"matrix_{dtype}_flops", "flop") for dtype in ("fp64", "fp32", "xf32", "fp16", "bf16")),
    Demand("matrix", "fp8", "matrix_fp8_flops", "flop"),
    Demand("matrix", FP6_OR_FP4, "matrix_f6f4_flops", "flop"),
    Demand("matrix", "int8", "matrix_int8_ops", "op"),
    Demand("lds", None, "lds_bytes", "byte"),
    Demand("vl1d", None, "vl1d_bytes", "byte"),
    Demand("l1", None, "l1_bytes", "byte"),
    Demand("l2", None, "l2_bytes", "byte"),
    Demand("l3", None, "l3_bytes", "byte"),
    Demand("fabric", None, "fabric_bytes", "byte"),
    Demand("infinity_cache", None, "fabric_bytes", "byte"),
    Demand("dram", None, "dram_bytes", "byte"),
)
RESOURCES: Final = (*dict.fromkeys(demand.resource for demand in DEMANDS), "scalar_issue")
#: Columns of work that are summed over dispatches; all others describe a single dispatch.
AMOUNTS: Final = (
    *dict.fromkeys(demand.column for demand in DEMANDS if demand.column != "fabric_bytes"),
    "fabric_read_bytes",
    "fabric_write_bytes",
    "dram_read_bytes",
)
_KEYS: Final = ("device_id", "resource", "dtype", "source", "value")


def ceiling_column(demand: Demand, source: str) -> str:
    """Column of a timed frame with the ceiling, in units per second; null if there is none."""
    return f"ceiling/{demand.key}/{source}"


def time_column(demand: Demand, source: str) -> str:
    """Column of a timed frame with the lower-bound time in ns; null without work or without a ceiling."""
    return f"time/{demand.key}/{source}"


def busy_ns(resource: str) -> pl.Expr:
    """Time in ns within the row's duration in which the unit worked, by its own counter."""
    return pl.col(BUSY_RATIOS[resource]) * pl.col("duration_ns")


def demands_of(frame: pl.DataFrame) -> list[Demand]:
    """Return the demands for which a timed frame contains work."""
    return [demand for demand in DEMANDS if demand.column in frame.columns]


def timed(work: pl.DataFrame, ceilings: pl.DataFrame) -> pl.DataFrame:
    """Add ceilings and lower-bound times to `work`, one row per dispatch or per kernel and device.

    Adds `fabric_bytes` (both directions, or the one that was counted), `dram_bytes` (see `_dram_bytes`),
    `dram_is_assumed`, and per demand and source `ceiling/…` and `time/…` (Float64, ns).
    """
    wide = _wide(ceilings)
    named = {ceiling_column(demand, source) for demand in DEMANDS for source in SOURCES}
    wide = wide.with_columns(pl.lit(None, pl.Float64).alias(name) for name in sorted(named - set(wide.columns)))
    rows = work.join(wide, on="device_id", how="left", maintain_order="left")
    rows = _memory_side(rows)
    times = [
        (pl.col(demand.column) * 1e9 / pl.col(ceiling_column(demand, source))).alias(time_column(demand, source))
        for demand in demands_of(rows)
        for source in SOURCES
    ]
    return rows.with_columns(times)


def _wide(ceilings: pl.DataFrame) -> pl.DataFrame:
    """One row per device with one column per ceiling; the higher of two from the same source counts."""
    known = ceilings.select(_KEYS).filter(pl.col("value") > 0, pl.col("source").is_in(SOURCES))
    either = pl.when(pl.col("dtype").is_in(["fp6", "fp4"])).then(pl.lit(FP6_OR_FP4)).otherwise(pl.col("dtype"))
    # 64-bit integer instructions take at least the issue slot of 32-bit ones, so the 32-bit rate bounds them.
    long = known.filter(resource="vector_integer", dtype="int32").with_columns(dtype=pl.lit("int64"))
    known = pl.concat([known.with_columns(dtype=either), long])
    named = known.with_columns(
        name=pl.concat_str(
            pl.lit("ceiling"), pl.col("resource") + "/" + pl.col("dtype").fill_null(""), "source", separator="/"
        )
    )
    if named.is_empty():
        return named.select("device_id").cast({"device_id": pl.Int32})
    return _with_issue_rate(named.pivot("name", index="device_id", values="value", aggregate_function="max"))


def _with_issue_rate(wide: pl.DataFrame) -> pl.DataFrame:
    """Estimate the measured issue rate if no benchmark states one: the published rate times the arithmetic's fraction.

    A vector arithmetic benchmark is a sequence of multiply-adds limited by instruction issue, so the fraction of the
    published arithmetic peak that it reached is also the fraction of the published issue rate. A fraction above one
    comes from packed instructions, which the unpacked peak does not describe, and is not used.
    """
    issue, measured = "ceiling/vector_issue//spec", "ceiling/vector_issue//measured"
    if issue not in wide.columns:
        return wide
    shares = [
        pl.col(f"ceiling/vector/{dtype}/measured") / pl.col(f"ceiling/vector/{dtype}/spec")
        for dtype in ("fp64", "fp32", "fp16")
        if {f"ceiling/vector/{dtype}/{source}" for source in (SPEC, MEASURED)} <= set(wide.columns)
    ]
    if not shares:
        return wide
    share = pl.max_horizontal([pl.when(one <= 1).then(one) for one in shares])
    own = [measured] if measured in wide.columns else []
    return wide.with_columns(pl.coalesce(*own, pl.col(issue) * share).alias(measured))


def _memory_side(rows: pl.DataFrame) -> pl.DataFrame:
    """Add `fabric_bytes`, `dram_bytes` and `dram_is_assumed`."""
    read, write = (_column(rows, f"fabric_{way}_bytes") for way in ("read", "write"))
    return _dram_bytes(
        rows.with_columns(
            fabric_bytes=pl.when(read.is_not_null() | write.is_not_null()).then(read.fill_null(0) + write.fill_null(0))
        )
    )


def _dram_bytes(rows: pl.DataFrame) -> pl.DataFrame:
    """Add the bytes that DRAM must have carried, as far as known; the model's figure takes precedence.

    If there is no cache between fabric and DRAM, these are the fabric's bytes: data from a neighbour or the host used a
    slower path, so the time stays a lower bound. Hits of an Infinity Cache are not counted. Behind one, the serving
    level is inferred as in the cache-aware roofline (Ilic, Pratas and Sousa 2014): a rate that DRAM cannot deliver came
    from the cache, and DRAM gets no bytes; a lower rate is attributed to DRAM, as an assumption. A device has such a
    cache if its ceilings name one, and may have one unless a fabric ceiling shows that DRAM is directly behind it.
    """
    dram = [pl.col(f"ceiling/dram//{source}") for source in SOURCES]
    direct = _has_ceiling("fabric") & ~_has_ceiling("infinity_cache")
    reads = pl.coalesce(_column(rows, "dram_read_bytes"), _column(rows, "fabric_read_bytes"))
    bytes_ = pl.when(pl.col("fabric_bytes").is_not_null() | reads.is_not_null()).then(
        reads.fill_null(0) + _column(rows, "fabric_write_bytes").fill_null(0)
    )
    stated = _column(rows, "dram_bytes")
    possible = bytes_ * 1e9 / pl.max_horizontal(dram) <= pl.col("duration_ns")
    return rows.with_columns(
        dram_bytes=pl.coalesce(stated, pl.when(direct).then(pl.col("fabric_bytes")).when(possible).then(bytes_)),
        dram_is_assumed=(stated.is_null() & ~direct & possible).fill_null(False),
    )


def _has_ceiling(resource: str) -> pl.Expr:
    return pl.any_horizontal([pl.col(f"ceiling/{resource}//{source}").is_not_null() for source in SOURCES])


def _column(rows: pl.DataFrame, name: str) -> pl.Expr:
    """Return the column as Float64; all null if the frame lacks it."""
    return pl.col(name).cast(pl.Float64) if name in rows.columns else pl.lit(None, pl.Float64)


def per_kernel_and_device(work: pl.DataFrame) -> pl.DataFrame:
    """Sum rows of work per kernel and device, over the dispatches with a duration if there are any.

    An amount that is missing in one of those dispatches is null: a partial amount over the full duration would be a
    wrong rate. Adds `dispatches` and the flags `partly_counted` and `untimed_dispatches_left_out`.
    """
    duration_known = pl.col("duration_ns").is_not_null()
    timed_somewhere = duration_known.any().over("kernel_id")
    covered = work.with_columns(left_out=timed_somewhere & ~duration_known)
    left_out = covered.group_by("kernel_id").agg(pl.col("left_out").any())
    amounts = [name for name in AMOUNTS if name in work.columns]
    complete = [
        pl.when(pl.col(name).null_count() == 0).then(pl.col(name).sum()).alias(name) for name in (*amounts, "flops")
    ]
    partly = pl.any_horizontal([pl.col(name).null_count().is_between(1, pl.len() - 1) for name in amounts])
    summed = (
        covered.filter(~pl.col("left_out"))
        .group_by("kernel_id", "device_id", maintain_order=True)
        .agg(
            *complete,
            *(_over_dispatches(name) for name in BUSY_RATIOS.values()),
            duration_ns=pl.when(duration_known.all()).then(pl.col("duration_ns").sum()),
            dispatches=pl.col("dispatch_count").sum(),
            flops_is_lower_bound=pl.col("flops_is_lower_bound").any(),
            work_source=pl.col("work_source").first(),
            flags=pl.col("quality_flags").explode(empty_as_null=True).drop_nulls().unique().sort(),
            partly_counted=partly,
        )
        .join(left_out, on="kernel_id", how="left", maintain_order="left")
    )
    return summed.with_columns(
        quality_flags=with_flags(
            pl.col("flags"),
            {"partly_counted": pl.col("partly_counted"), "untimed_dispatches_left_out": pl.col("left_out")},
        )
    ).drop("flags", "partly_counted", "left_out")


def _over_dispatches(ratio: str) -> pl.Expr:
    """Duration-weighted fraction of cycles over the dispatches that have one."""
    length = pl.col("duration_ns").filter(pl.col(ratio).is_not_null())
    return pl.when(length.sum() > 0).then((pl.col(ratio) * pl.col("duration_ns")).sum() / length.sum()).alias(ratio)


def with_flags(flags: pl.Expr, conditions: dict[str, pl.Expr]) -> pl.Expr:
    """The list `flags` followed by the name of each condition that holds."""
    named = [pl.when(holds.fill_null(False)).then(pl.lit(name)) for name, holds in conditions.items()]
    return pl.concat_list(flags, pl.concat_list(named).list.drop_nulls())


def prepared(work: pl.DataFrame) -> pl.DataFrame:
    """Add `flops` over all formats (null if none is counted) and optional columns to `work`."""
    floats = [d.column for d in demands_of(work) if d.unit == "flop"]
    any_counted = pl.any_horizontal([pl.col(name).is_not_null() for name in floats]) if floats else pl.lit(False)
    total = reduce(pl.Expr.add, [pl.col(name).fill_null(0.0) for name in floats], pl.lit(0.0))
    source = pl.col("work_source") if "work_source" in work.columns else pl.lit(None, pl.String)
    dispatches = pl.col("dispatch_count") if "dispatch_count" in work.columns else pl.lit(None, pl.Int64)
    # Every instruction takes at least one slot.
    slots = pl.coalesce(_column(work, "valu_issue_slots"), _column(work, "valu_instructions"))
    return work.with_columns(
        *(_column(work, name).alias(name) for name in BUSY_RATIOS.values()),
        *([slots.alias("valu_issue_slots")] if {"valu_issue_slots", "valu_instructions"} & set(work.columns) else []),
        pl.when(any_counted).then(total).alias("flops"),
        source.fill_null(COUNTERS).alias("work_source"),
        dispatches.fill_null(1).alias("dispatch_count"),
    )


def bounds_of(rows: pl.DataFrame) -> pl.DataFrame:
    """Compute rows of `resource_bounds` from timed rows per kernel and device: lower-bound times of used resources.

    One row per resource, number format and ceiling source; several formats on one pipe also get a common row with a
    null format. A resource without work or without a ceiling has no row.
    """
    schema = polars_types("resource_bounds")
    single = pl.concat([_bound_rows(rows, demand, source) for demand in demands_of(rows) for source in SOURCES])
    several = _together(rows, single, ("vector", "vector_integer", "matrix"))
    together = pl.concat([single, *several, *(_busy_rows(rows, resource, single) for resource in BUSY_RATIOS)])
    per_kernel = together.group_by("kernel_id", "resource", "dtype", "ceiling_source").agg(
        pl.col("unit").first(),
        pl.col("work", "time_ns").sum(),
        pl.when(pl.col("duration_ns").null_count() == 0).then(pl.col("duration_ns").sum()),
        pl.col("work_source").first(),
        devices=pl.len(),
    )
    # A kernel that ran on several devices is bounded only if all of them have the ceiling.
    everywhere = rows.group_by("kernel_id").agg(all_devices=pl.len())
    whole = per_kernel.join(everywhere, on="kernel_id").filter(
        pl.col("work") > 0, (pl.col("devices") == pl.col("all_devices")) & pl.col("time_ns").is_not_null()
    )
    share = pl.when(pl.col("duration_ns") > 0).then(pl.col("time_ns") / pl.col("duration_ns"))
    return (
        whole.with_columns(lower_bound_ns=pl.col("time_ns").round(), share_ratio=share)
        .select(pl.col(name).cast(dtype) for name, dtype in schema.items())
        .sort("kernel_id", "resource", "dtype", "ceiling_source")
    )


def _bound_rows(rows: pl.DataFrame, demand: Demand, source: str) -> pl.DataFrame:
    """Rows of one demand and source, per kernel and device, if there is both work and a ceiling."""
    timed_rows = rows.lazy().filter(pl.col(time_column(demand, source)).is_not_null())
    return timed_rows.select(
        "kernel_id",
        "device_id",
        pl.lit(demand.resource).alias("resource"),
        pl.lit(demand.dtype, pl.String).alias("dtype"),
        pl.col(demand.column).cast(pl.Float64).alias("work"),
        pl.lit(demand.unit).alias("unit"),
        pl.col(time_column(demand, source)).alias("time_ns"),
        pl.lit(source).alias("ceiling_source"),
        "duration_ns",
        "work_source",
    ).collect()


def _busy_rows(rows: pl.DataFrame, resource: str, like: pl.DataFrame) -> pl.DataFrame:
    """Rows of a unit's own busy time, per kernel and device, if it was counted."""
    counted = rows.filter(busy_ns(resource).is_not_null()).with_columns(
        resource=pl.lit(resource),
        dtype=pl.lit(None, pl.String),
        work=busy_ns(resource),
        unit=pl.lit("ns"),
        time_ns=busy_ns(resource),
        ceiling_source=pl.lit(BUSY),
    )
    return counted.select(like.columns)


def _together(rows: pl.DataFrame, single: pl.DataFrame, pipes: Iterable[str]) -> list[pl.DataFrame]:
    """One row per kernel, device and source for each pipe that worked in several formats, if all have ceilings."""
    found = []
    for pipe in pipes:
        columns = [demand.column for demand in demands_of(rows) if demand.resource == pipe]
        if not columns:
            continue
        worked = rows.select("kernel_id", "device_id", formats=pl.sum_horizontal([pl.col(c) > 0 for c in columns]))
        several = worked.filter(pl.col("formats") > 1)
        pair = (
            single.filter(pl.col("resource") == pipe, pl.col("work") > 0)
            .group_by("kernel_id", "device_id", "resource", "ceiling_source", maintain_order=True)
            .agg(
                pl.col("work").sum(),
                unit=pl.when(pl.col("unit").n_unique() == 1).then(pl.col("unit").first()).otherwise(pl.lit("op")),
                time_ns=pl.col("time_ns").sum(),
                duration_ns=pl.col("duration_ns").first(),
                work_source=pl.col("work_source").first(),
                with_ceiling=pl.len(),
            )
            .join(several, on=["kernel_id", "device_id"])
            .filter(pl.col("with_ceiling") == pl.col("formats"))
        )
        found.append(pair.with_columns(dtype=pl.lit(None, pl.String)).select(single.columns))
    return found
