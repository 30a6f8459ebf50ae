"""The table `operator_shapes`: what each operator had to do for certain shapes, how long it took, how near a roof.

The work comes from `launches`, the roof from `aaco_pipeline.analysis.roofline.placement`.
"""

import polars as pl

from aaco_pipeline.analysis.roofline.framework_work import as_work
from aaco_pipeline.analysis.roofline.operators.launches import OperatorLaunches
from aaco_pipeline.analysis.roofline.placement import placement


def operator_shapes(operators: OperatorLaunches, caches: pl.DataFrame, ceilings: pl.DataFrame) -> pl.DataFrame:
    """Rows of the table `operator_shapes` without the session.

    `caches` has device_id and bytes of all caches before the memory, `ceilings` is the contract of that name. Copies
    from or to the host cross another link than any roof here, so that rows with one have no share.
    """
    is_kernel = pl.col("kernel_id").is_not_null()
    rows = (
        operators.launches.group_by("work", "device_id", "inputs_from")
        .agg(
            call_count=pl.col("call_id").n_unique().cast(pl.Int64),
            launch_count=pl.len().cast(pl.Int64),
            kernel_ns=pl.col("duration_ns").filter(is_kernel).sum(),
            copy_ns=pl.col("duration_ns").filter(~is_kernel).sum(),
            from_or_to_host=pl.col("from_or_to_host").any(),
        )
        .join(operators.figures, on="work")
        .sort("work", "device_id", "inputs_from")
        .with_row_index("subject")
    )
    seconds = (pl.col("kernel_ns") + pl.col("copy_ns")) / 1e9
    return (
        rows.join(_shares(rows, caches, ceilings), on="subject", how="left", maintain_order="left")
        .with_columns(
            *(
                pl.when(seconds > 0).then(pl.col(amount) * pl.col("call_count") / seconds).alias(rate)
                for amount, rate in (("flops", "achieved_flops_per_s"), ("least_bytes", "achieved_bytes_per_s"))
            ),
            detail=pl.when(pl.col("detail") != "").then("detail"),
            least_bytes=pl.col("least_bytes").round().cast(pl.Int64),
        )
        .drop("subject", "work", "column", "is_product", "from_or_to_host")
    )


def _shares(rows: pl.DataFrame, caches: pl.DataFrame, ceilings: pl.DataFrame) -> pl.DataFrame:
    """subject, bound and share_ratio: the nearest roof, and how much of the time it would have taken at it."""
    on_device = rows.filter(~pl.col("from_or_to_host"))
    work = as_work(
        on_device.with_columns(
            duration_ns=pl.col("kernel_ns") + pl.col("copy_ns"),
            dispatch_count="launch_count",
            done=pl.col("flops") * pl.col("call_count"),
            moved=pl.col("least_bytes") * pl.col("call_count"),
            part_of_caches="call_count",
            shared=pl.lit(False),
            serves=pl.lit(False),
        ),
        caches,
        ceilings,
    )
    placed = placement(work, ceilings).roofline
    return placed.select(pl.col("kernel_id").cast(pl.UInt32).alias("subject"), "bound", share_ratio="efficiency_ratio")
