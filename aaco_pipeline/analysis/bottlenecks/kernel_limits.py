"""Whether a kernel's nearest roof limits it: the one place that decides, for labels, reports and sessions alike.

The roofline says which roof is the nearest and what share of the kernel's time the unit under it needed; that is
arithmetic on work and ceilings. Here the share is held against a threshold. A kernel whose dispatches are as short as
a launch is not judged: what it took is not what its work took.

A share has an uncertainty (`ROOF_UNCERTAINTY`), and executions of the same code must not get different labels for it:
the decision is made on all kernels of a session with the same code and grid together, and near the threshold both
sides of it are named, one as the label and the other as the runner-up.
"""

from collections.abc import Mapping
from typing import Final

import polars as pl

from aaco_pipeline.analysis.thresholds import (
    AT_A_ROOF,
    AT_A_ROOF_BY_SHAPES,
    AT_A_ROOF_STREAMING,
    BALANCED,
    LAUNCH_SIZED_NS,
    ROOF_UNCERTAINTY,
)

#: Which label a resource of `ceilings` stands for, once it limits a kernel.
LABEL_OF_RESOURCE: Final[Mapping[str, str]] = {
    "vector": "compute_vector",
    "vector_packed": "compute_vector",
    "vector_integer": "compute_vector",
    "vector_issue": "compute_vector",
    "scalar_issue": "compute_scalar",
    "matrix": "compute_matrix",
    "dram": "memory_dram",
    "infinity_cache": "memory_infinity_cache",
    "fabric": "memory_fabric",
    "l3": "memory_l3",
    "l2": "memory_l2",
    "l1": "memory_l1",
    "vl1d": "memory_vl1d",
    "lds": "memory_lds",
}
ROOF_LABELS: Final = tuple(dict.fromkeys(LABEL_OF_RESOURCE.values()))
#: How the roofline says that the work is that of shapes and formulas, the least there can be.
MODEL_BASED: Final = "model_based"
#: What tools append to a kernel's symbol, and whether they demangle it, is no difference of code.
_DECORATION: Final = r"\s*\[clone [^\]]*\]|\.kd$"

#: The columns of `kernel_limits`.
SCHEMA: Final = pl.Schema(
    {
        "kernel_id": pl.Int32,
        "too_short": pl.Boolean,
        "nearest": pl.String,
        "share": pl.Float64,
        "is_limit": pl.Boolean,
        "is_near": pl.Boolean,
        "is_sure": pl.Boolean,
        "second": pl.String,
        "second_share": pl.Float64,
    }
)


def kernel_limits(
    placed: pl.DataFrame, stats: pl.DataFrame, launched: pl.DataFrame, indirect: pl.DataFrame, on_cpu: float = 1.0
) -> pl.DataFrame:
    """One row per kernel with statistics: the columns of `SCHEMA`, sorted by kernel_id.

    Args:
        placed: rows of `roofline` about whole kernels.
        stats: `kernel_stats`; a kernel's length is the median of its dispatches, so that a short one that lost its CPU
            once is still a short one.
        launched: kernel_id, name and `grid`, what tells the grids that it was launched with apart.
        indirect: kernel_id and `indirect_access`, 1 where it reads where other data say, 0 where it does not, null
            where that is not known.
        on_cpu: share of the kernels' time in which they had a CPU, 1 on other devices. Nearness to roofs is of that
            time alone.

    Returns:
        `nearest` and `second` are labels of roofs, `share` and `second_share` of the kernel's time, not clamped; all
        null where the roofline names none for it nor for the same code, or the kernel is `too_short`. `is_limit`: the
        nearest roof limits it. `is_near`: it does not, and within the uncertainty it might. `is_sure`: nothing within
        the uncertainty speaks against it. `second` is only there where it needed nearly as long.
    """
    known = (
        stats.select("kernel_id", median_ns="p50_ns")
        .join(_labelled(placed, on_cpu), on="kernel_id", how="left", maintain_order="left")
        .join(launched, on="kernel_id", how="left", maintain_order="left")
        .join(indirect.select("kernel_id", "indirect_access"), on="kernel_id", how="left", maintain_order="left")
        .with_columns(code=pl.col("name").str.replace_all(_DECORATION, "") + " " + pl.col("grid").fill_null(""))
    )
    judged = _of_same_code(known).with_columns(needed=_threshold())
    near_second = pl.col("second_share") >= BALANCED * pl.col("share")
    return (
        judged.with_columns(
            is_limit=pl.col("share") >= pl.col("needed"),
            is_near=pl.col("share").is_between(pl.col("needed") - ROOF_UNCERTAINTY, pl.col("needed"), closed="left"),
            is_sure=pl.col("share") >= pl.col("needed") + ROOF_UNCERTAINTY,
            second=pl.when(near_second & pl.col("nearest").is_not_null()).then("second"),
        )
        .with_columns(second_share=pl.when(pl.col("second").is_not_null()).then("second_share"))
        .select(pl.col(name).cast(dtype) for name, dtype in SCHEMA.items())
        .sort("kernel_id")
    )


def grids(dispatches: pl.DataFrame) -> pl.DataFrame:
    """kernel_id and `grid`: the sizes of grid and work-group that each kernel was launched with, as one text."""
    sizes = dispatches.select("kernel_id", "grid_work_items", "workgroup_work_items").unique()
    text = pl.format("{}/{}", pl.col("grid_work_items").fill_null(0), pl.col("workgroup_work_items").fill_null(0))
    return sizes.group_by("kernel_id").agg(grid=text.sort().str.join(","))


def _labelled(placed: pl.DataFrame, on_cpu: float) -> pl.DataFrame:
    def label(column: str) -> pl.Expr:
        return pl.col(column).replace_strict(LABEL_OF_RESOURCE, default=None, return_dtype=pl.String)

    return placed.drop_nulls("efficiency_ratio").select(
        "kernel_id",
        "duration_ns",
        nearest=label("bound"),
        own_share=pl.col("efficiency_ratio") / on_cpu,
        second=label("second_bound"),
        second_share=pl.col("second_ratio") / on_cpu,
        is_model_based=pl.col("quality_flags").list.contains(MODEL_BASED),
    )


def _of_same_code(kernels: pl.DataFrame) -> pl.DataFrame:
    """Adds `too_short` and `share`, and decides `nearest` and `second` on all kernels of the same code and grid.

    Twice the same code may do unlike work: a kernel whose length or whose share of a roof is further from the others'
    than the uncertainty is decided alone. One as long as the others whose own work was not placed is what they are.
    """
    length = pl.when(pl.col("code").is_not_null()).then(pl.col("median_ns").mean().over("code"))
    alike = ((pl.col("median_ns") - length).abs() <= ROOF_UNCERTAINTY * length).fill_null(False)
    rows = kernels.with_columns(alike=alike).with_columns(
        too_short=pl.when("alike").then(length).otherwise("median_ns") < LAUNCH_SIZED_NS
    )
    roofs = _roofs_of_codes(rows)
    for place, roof in (("first", 0), ("other", 1)):
        own = roofs.filter(pl.col("rank") == roof).select("code", pl.col("label", "together").name.prefix(f"{place}_"))
        rows = rows.join(own, on="code", how="left", maintain_order="left")

    def own_share(label: str) -> pl.Expr:
        share = pl.when(pl.col("nearest") == pl.col(label)).then("own_share")
        return share.when(pl.col("second") == pl.col(label)).then("second_share")

    unplaced = pl.col("nearest").is_null() & pl.col("alike")
    like_them = (own_share("first_label") - pl.col("first_together")).abs() <= ROOF_UNCERTAINTY
    joins = pl.col("code").is_not_null() & (unplaced | like_them.fill_null(False))
    by_shapes = pl.col("is_model_based").max().over("code")
    long_enough = ~pl.col("too_short").fill_null(False)
    decided = {
        "nearest": ("first_label", "nearest"),
        "share": ("first_together", "own_share"),
        "second": ("other_label", "second"),
        "second_share": ("other_together", "second_share"),
    }
    return rows.with_columns(
        *(
            pl.when(long_enough).then(pl.when(joins).then(pl.col(together)).otherwise(pl.col(own))).alias(name)
            for name, (together, own) in decided.items()
        ),
        is_model_based=pl.when(unplaced & pl.col("code").is_not_null()).then(by_shapes).otherwise("is_model_based"),
    )


def _roofs_of_codes(rows: pl.DataFrame) -> pl.DataFrame:
    """code, label, together, rank: the share of each roof over a code's kernels together, the nearest with rank 0."""
    weighed = rows.drop_nulls("code").with_columns(weight=pl.col("duration_ns").fill_null(1))
    named = [
        weighed.select("code", "weight", label=label, share=share)
        for label, share in (("nearest", "own_share"), ("second", "second_share"))
    ]
    of_code = pl.concat(named).drop_nulls(["label", "share"]).group_by("code", "label")
    time = (pl.col("share") * pl.col("weight")).sum()
    summed = of_code.agg(time=time, together=time / pl.col("weight").sum())
    ordered = summed.sort("code", "time", "label", descending=[False, True, False])
    return ordered.with_columns(rank=pl.int_range(pl.len()).over("code"))


def _threshold() -> pl.Expr:
    by_shapes = pl.col("is_model_based").fill_null(False) & pl.col("nearest").str.starts_with("memory_")
    streams = by_shapes & (pl.col("indirect_access") == 0).fill_null(False)
    return pl.when(streams).then(AT_A_ROOF_STREAMING).when(by_shapes).then(AT_A_ROOF_BY_SHAPES).otherwise(AT_A_ROOF)
