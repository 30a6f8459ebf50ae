"""Occupancy of the kernels and dispatches of a session, from the tables that state what they were launched with."""

from typing import Final

import polars as pl

from aaco_pipeline.hardware.architecture_files import architecture
from aaco_pipeline.hardware.device_facts import device_facts
from aaco_pipeline.hardware.occupancy import INPUTS, occupancy

_STATED: Final = ("kernel_id", "device_id", "workgroup_work_items", "grid_work_items")
_LAUNCH: Final = (*_STATED[:2], "lds_bytes", *_STATED[2:])


def kernel_occupancy(
    dispatches: pl.DataFrame, kernels: pl.DataFrame, devices: pl.DataFrame, achieved: pl.DataFrame
) -> pl.DataFrame:
    """Rows of the table `occupancy`, without those that would state neither a theoretical nor an achieved ratio.

    `achieved`: dispatch_id and achieved_occupancy_ratio of counted dispatches. A kernel has a row of its own; where
    its launches differ it is that of the launches with most time. A dispatch has one when it was counted, or when its
    kernel's launches differ.
    """
    launched = _launches(dispatches, kernels, devices)
    distinct = launched.select(*_LAUNCH, *(name for name in INPUTS if name not in _LAUNCH)).unique(maintain_order=True)
    parts = []
    for row in devices.iter_rows(named=True):
        known = architecture(row["arch"])
        own = distinct.filter(pl.col("device_id") == row["device_id"])
        if known is not None and own.height:
            # What the capture states of the device may be wrong, and is checked against the product there.
            units = device_facts(row, known).compute_units
            own = own.with_columns(compute_units=pl.lit(None if units is None else units.value, pl.Int64))
            parts.append(pl.concat([own.select(_LAUNCH), occupancy(own, known)], how="horizontal"))
    if not parts:
        parts = [distinct.head(0).select(_LAUNCH).with_columns(theoretical_ratio=pl.lit(None, pl.Float64))]
    rows = (
        launched.select("dispatch_id", "self_ns", *_LAUNCH)
        .join(pl.concat(parts), on=list(_LAUNCH), how="left", nulls_equal=True, maintain_order="left")
        .join(achieved, on="dispatch_id", how="left", maintain_order="left")
        .rename({"achieved_occupancy_ratio": "achieved_ratio"})
        .filter(pl.col("theoretical_ratio").is_not_null() | pl.col("achieved_ratio").is_not_null())
    )
    several = rows.group_by("kernel_id").agg(_differs(name) for name in _LAUNCH[1:])
    differing = several.filter(pl.any_horizontal(_LAUNCH[1:])).get_column("kernel_id")
    differs = pl.col("kernel_id").is_in(differing.implode())
    single = rows.filter(pl.col("achieved_ratio").is_not_null() | differs)
    both = pl.concat([_of_kernels(rows), single]).drop("self_ns", *_LAUNCH[1:])
    return both.sort("kernel_id", "dispatch_id", nulls_last=False)


def why_no_limits(devices: pl.DataFrame) -> str | None:
    """Why the limits of a known architecture among the devices are not reckoned with; None when all are known."""
    known = (architecture(arch) for arch in devices.get_column("arch"))
    reasons = (one.why_null("occupancy") for one in known if one is not None and one.occupancy is None)
    return next((reason for reason in reasons if reason is not None), None)


def _launches(dispatches: pl.DataFrame, kernels: pl.DataFrame, devices: pl.DataFrame) -> pl.DataFrame:
    """Every dispatch with what occupancy is reckoned from."""
    registers = kernels.select("kernel_id", "arch_vgprs", "accum_vgprs", "sgprs", "static_lds_bytes")
    sizes = devices.select("device_id", "compute_units", "wavefront_size")
    stated = dispatches.select("dispatch_id", "self_ns", "lds_allocated_bytes", *_STATED)
    joined = stated.join(registers, on="kernel_id", how="left", maintain_order="left").join(
        sizes, on="device_id", how="left", maintain_order="left"
    )
    return joined.with_columns(lds_bytes=pl.coalesce("lds_allocated_bytes", "static_lds_bytes"))


def _differs(name: str) -> pl.Expr:
    """Whether a group has more than one value of a column, null being one."""
    value = pl.col(name)
    return ((value.min() != value.max()) | value.null_count().is_between(1, pl.len() - 1)).fill_null(False).alias(name)


def _of_kernels(rows: pl.DataFrame) -> pl.DataFrame:
    """For each kernel the launch with most time; achieved is the mean over counted dispatches by their time.

    Without times every dispatch counts the same.
    """
    untimed = pl.col("self_ns").null_count().over("kernel_id") > 0
    weight = pl.when(untimed).then(1).otherwise(pl.col("self_ns"))
    rows = rows.with_columns(weight=weight)
    weight = pl.col("weight")
    total = weight.sum().over("kernel_id", *_LAUNCH[1:])
    counted = weight.filter(pl.col("achieved_ratio").is_not_null())
    mean = pl.when(counted.sum() > 0).then((pl.col("achieved_ratio") * weight).sum() / counted.sum())
    achieved = rows.group_by("kernel_id").agg(achieved_ratio=mean)
    longest = pl.col("total") == pl.col("total").max()
    main = (
        rows.select("kernel_id", "dispatch_id", total=total)
        .group_by("kernel_id")
        .agg(pl.col("dispatch_id").filter(longest).min())
    )
    chosen = rows.join(main, on=["kernel_id", "dispatch_id"], how="semi").drop("achieved_ratio")
    return (
        chosen.with_columns(dispatch_id=pl.lit(None, pl.Int32))
        .join(achieved, on="kernel_id", how="left")
        .select(rows.drop("weight").columns)
    )
