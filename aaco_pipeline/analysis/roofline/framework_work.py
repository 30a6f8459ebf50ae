"""Work of kernels that framework operators launched, from the shapes of the operators' inputs: no counter needed.

What the operators had to do is `aaco_pipeline.analysis.roofline.operators`. Bytes are the least there can be: every
input read once, every output written once.
"""

from typing import Final

import polars as pl

from aaco_pipeline.analysis.roofline.operators.graphs.replays import BY_COUNT, FROM_TRACE
from aaco_pipeline.analysis.roofline.operators.launches import WORK, OperatorLaunches

#: Flag of every row: the work is by shapes, the least that they imply.
MODEL_BASED: Final = "model_based"
_SHARED: Final = "work_shared_by_time"
_SERVES: Final = "serves_another_kernel"
_CACHED: Final = "served_by_caches_or_not"
#: Of the kernel's time that DRAM would have needed for all bytes, and of the bytes that caches cannot have held.
_GOOD_PART: Final = 0.25
_MOSTLY: Final = 0.75
_PARTLY: Final = "other_launches_left_out"
_CAPTURED: Final = "inputs_from_captured_graph"
_BY_COUNT: Final = "captured_graph_by_count"


def framework_work(
    operators: OperatorLaunches, dispatches: pl.DataFrame, caches: pl.DataFrame, ceilings: pl.DataFrame
) -> pl.DataFrame:
    """One row per kernel and device with launches of known work, as the roofline reads work.

    `dispatches` are those that count. `caches` has device_id and bytes of all caches before the memory, from which
    repeated runs are served as far as they hold their data; of a device that is not in it dram_bytes is null.
    `ceilings` says which devices have a roof of L2. Launches that no operator with a formula made are left out of the
    row, time and work: the flag `other_launches_left_out` says so. Of a call's several main kernels each gets its share
    of the work by time, flag `work_shared_by_time`; an auxiliary one gets none, flag `serves_another_kernel`. Where the
    operators are those of a captured graph, the flag `inputs_from_captured_graph` says so, and
    `captured_graph_by_count` that only count and order of the launches told which.
    """
    known = operators.figures.filter(pl.col("flops").is_not_null() | pl.col("least_bytes").is_not_null())
    counted = dispatches.select(activity_id="dispatch_id")
    rows = (
        operators.launches.filter(pl.col("kernel_id").is_not_null())
        .join(counted, on="activity_id", how="semi", maintain_order="left")
        .join(known, on="work", how="inner", maintain_order="left")
    )
    rows = rows.with_columns(
        subject="kernel_id",
        done=pl.col("flops") * pl.col("part"),
        moved=pl.col("least_bytes") * pl.col("part"),
        part_of_caches="part",
        shared=pl.col("part") < 1,
        serves=pl.col("part").is_null(),
        dispatch_count=pl.lit(1, pl.Int64),
    )
    launches = dispatches.group_by("kernel_id", "device_id").agg(every=pl.len().cast(pl.Int64))
    summed = _without_doubtful_traffic(as_work(rows, caches, ceilings), ceilings)
    summed = summed.join(launches, on=["kernel_id", "device_id"], how="left")
    origins = rows.group_by(pl.col("kernel_id").cast(pl.Int32), "device_id").agg(
        from_capture=(pl.col("inputs_from") != FROM_TRACE).any(), by_count=(pl.col("inputs_from") == BY_COUNT).any()
    )
    summed = summed.join(origins, on=["kernel_id", "device_id"], how="left")
    further = {
        _PARTLY: pl.col("dispatch_count") < pl.col("every"),
        _CAPTURED: pl.col("from_capture"),
        _BY_COUNT: pl.col("by_count"),
    }
    named = [pl.when(holds).then(pl.lit(name)) for name, holds in further.items()]
    flags = pl.concat_list(pl.col("quality_flags"), pl.concat_list(named).list.drop_nulls())
    summed = summed.with_columns(quality_flags=flags).drop("every", "least_bytes", "from_capture", "by_count")
    return summed.sort("kernel_id", "device_id")


def _without_doubtful_traffic(work: pl.DataFrame, ceilings: pl.DataFrame) -> pl.DataFrame:
    """The rows without bytes where it would matter whether caches held most of them, which nothing tells.

    What the caches may have held need not have come from DRAM, but may have: where all of it would have kept DRAM busy
    for a good part of the time, the kernel cannot be called far from every roof.
    """
    dram = ceilings.filter(pl.col("resource") == "dram").group_by("device_id").agg(rate=pl.col("value").max())
    rows = work.join(dram, on="device_id", how="left", maintain_order="left")
    matters = pl.col("least_bytes") * 1e9 / pl.col("rate") >= _GOOD_PART * pl.col("duration_ns")
    doubtful = (matters & (pl.col("dram_bytes") < _MOSTLY * pl.col("least_bytes"))).fill_null(False)
    flag = pl.concat_list(pl.when(doubtful).then(pl.lit(_CACHED))).list.drop_nulls()
    return rows.with_columns(
        *(pl.when(~doubtful).then(name).alias(name) for name in ("dram_bytes", "l2_bytes")),
        quality_flags=pl.concat_list("quality_flags", flag),
    ).drop("rate")


def as_work(rows: pl.DataFrame, caches: pl.DataFrame, ceilings: pl.DataFrame) -> pl.DataFrame:
    """Rows of work per `subject`, which becomes kernel_id, and device.

    `rows` has subject, device_id, duration_ns, dispatch_count, done (operations), moved (bytes), part_of_caches (how
    much of the caches' bytes may have served it), shared, serves, column, and the flops of a call.
    """
    roofed = ceilings.filter(pl.col("resource") == "l2").select("device_id", has_l2=pl.lit(True)).unique()
    placed = rows.join(caches, on="device_id", how="left", maintain_order="left")
    placed = placed.join(roofed, on="device_id", how="left", maintain_order="left")
    beyond = (pl.col("moved") - pl.col("bytes") * pl.col("part_of_caches")).clip(lower_bound=0.0)
    column = pl.coalesce("column", pl.when(pl.col("flops") == 0).then(pl.lit("valu_fp32_flops")))
    placed = placed.with_columns(beyond=beyond, column=column)
    known = pl.col("done").is_not_null()
    summed = placed.group_by("subject", "device_id", maintain_order=True).agg(
        pl.col("duration_ns", "dispatch_count").sum(),
        dram_bytes=_complete("beyond"),
        least_bytes=_complete("moved"),
        l2_bytes=pl.when(pl.col("has_l2").fill_null(False).all()).then(_complete("moved")),
        **{name: pl.col("done").filter(pl.col("column") == name).sum() for name in WORK},
        **{f"has/{name}": (known & (pl.col("column") == name)).any() for name in WORK},
        lacks_flops=(~known).any(),
        lacks_bytes=pl.col("moved").is_null().any(),
        lacks_format=(known & pl.col("column").is_null()).any(),
        lacks_caches=pl.col("bytes").is_null().any(),
        shared=pl.col("shared").any(),
        serves=pl.col("serves").any(),
    )
    # A sum that lacks a part would be a wrong rate.
    whole = ~pl.col("lacks_flops") & ~pl.col("lacks_format")
    flags = {
        "operations_unknown": pl.col("lacks_flops"),
        "number_format_unknown": pl.col("lacks_format"),
        "bytes_unknown": pl.col("lacks_bytes"),
        "cache_size_unknown": pl.col("lacks_caches") & ~pl.col("lacks_bytes"),
        _SHARED: pl.col("shared"),
        _SERVES: pl.col("serves"),
    }
    named = [pl.lit(MODEL_BASED), *(pl.when(holds).then(pl.lit(name)) for name, holds in flags.items())]
    return summed.select(
        pl.lit(None, pl.Int32).alias("dispatch_id"),
        pl.col("subject").cast(pl.Int32).alias("kernel_id"),
        "device_id",
        "duration_ns",
        "dispatch_count",
        *(pl.when(whole & pl.col(f"has/{name}")).then(name).alias(name) for name in WORK),
        "dram_bytes",
        "l2_bytes",
        "least_bytes",
        pl.lit(False).alias("flops_is_lower_bound"),
        pl.concat_list(named).list.drop_nulls().alias("quality_flags"),
        pl.lit("model").alias("work_source"),
    )


def _complete(name: str) -> pl.Expr:
    return pl.when(pl.col(name).null_count() == 0).then(pl.col(name).sum())
