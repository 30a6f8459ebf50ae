"""Work of kernels launched by framework operators, from input shapes; the table `operator_shapes`.

The package `operators` has the formulas.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from aaco_pipeline.analysis.roofline.operators.formulas import FORMULAS, among, owned_launches, work_of
from aaco_pipeline.analysis.roofline.operators.graph_replays import BY_COUNT, FROM_TRACE, Replays
from aaco_pipeline.analysis.roofline.operators.inputs import Inputs, Unstated, Work
from aaco_pipeline.analysis.roofline.placement import placement

_RECORDED: Final = ("operator", "shapes", "types", "strides", "values")
_FIGURES: Final = pl.Schema(
    {
        **dict.fromkeys(("operator", "shapes", "types", "dtype"), pl.String()),
        **{"flops": pl.Float64(), "least_bytes": pl.Float64(), "is_product": pl.Boolean()},
        **{"detail": pl.String(), "reason": pl.String()},
    }
)
#: Formats in which matrix units, where present, compute products, and the columns of their work.
_MATRIX: Final = {
    **{name: f"matrix_{name}_flops" for name in ("fp64", "fp16", "bf16", "fp8")},
    "int8": "matrix_int8_ops",
}
#: The framework evaluates functions of bf16 elements in fp32.
_VECTOR: Final = {
    **{name: f"valu_{name}_flops" for name in ("fp64", "fp32", "fp16")},
    "bf16": "valu_fp32_flops",
    **{name: f"valu_{name}_ops" for name in ("int32", "int64")},
}
#: fp32 products that a library may compute in fewer bits (TF32), which the inputs do not show.
_MAYBE_ROUNDED: Final = "aten::(?:convolution|_scaled_dot_product_)"
#: All possible columns of work.
WORK: Final = tuple(dict.fromkeys((*_MATRIX.values(), *_VECTOR.values())))


@dataclass(frozen=True)
class OperatorLaunches:
    """Launches of operators with their work.

    `launches`: the result of `owned_launches`, with `inputs_from`, `work` and `part`. The latter is the launch's share
    of the call's work, by time among the call's main kernels, because the trace does not show how they divided the
    work. `part` is null for copies, and for auxiliary kernels that accompany a main one, for example to change a
    layout. `figures`: one row per distinct `work`: operator, shapes, types, dtype, flops, least_bytes, is_product,
    detail, reason, and `column`, from which the roofline reads the operations.
    """

    launches: pl.DataFrame
    figures: pl.DataFrame


def operator_launches(
    dispatches: pl.DataFrame,
    copies: pl.DataFrame,
    api_calls: pl.DataFrame,
    inputs: pl.DataFrame,
    kernels: pl.DataFrame,
    *,
    replays: Replays | None = None,
) -> OperatorLaunches:
    """Compute the work of launches; arguments as for `owned_launches`, plus the table `kernels`.

    Launches that `replays` matches with captured graphs are attributed to the captured operators.
    """
    owned = owned_launches(dispatches, copies, api_calls, inputs).with_columns(inputs_from=pl.lit(FROM_TRACE))
    if replays is not None:
        own = owned.join(replays.launches, on=["activity_kind", "activity_id"], how="anti", maintain_order="left")
        owned = pl.concat([own, replays.launches])
        inputs = pl.concat([inputs, replays.inputs])
    called = inputs.filter(among(inputs.get_column("call_id"), owned.get_column("call_id")))
    numbered, figures = _figures(called)
    calls = owned.get_column("call_id").to_numpy()
    works = np.zeros(int(calls.max()) + 1 if len(calls) else 0, np.uint32)
    works[numbered.get_column("call_id").to_numpy()] = numbered.get_column("work").to_numpy()
    roles = kernels.select("kernel_id", is_main=pl.col("role") == "main")
    owned = owned.join(roles, on="kernel_id", how="left", maintain_order="left")
    launches = owned.drop("is_main").with_columns(work=pl.Series(works[calls], dtype=pl.UInt32), part=_parts(owned))
    return OperatorLaunches(launches, figures)


def _parts(owned: pl.DataFrame) -> pl.Series:
    """Return each launch's share of its call's work, by time among the main kernels, or among all if there are none."""
    calls, took = (owned.get_column(name).to_numpy() for name in ("call_id", "duration_ns"))
    is_kernel = owned.get_column("kernel_id").is_not_null().to_numpy()
    is_main = owned.get_column("is_main").fill_null(False).to_numpy()
    has_main = np.bincount(calls[is_main], minlength=int(calls.max()) + 1 if len(calls) else 0) > 0
    working = is_kernel & (is_main | ~has_main[calls])
    count = np.bincount(calls[working], minlength=len(has_main))[calls]
    whole = np.bincount(calls[working], weights=took[working], minlength=len(has_main))[calls]
    part = np.where(whole > 0, took / np.where(whole > 0, whole, 1), 1 / np.maximum(count, 1))
    return pl.select(pl.when(pl.Series(working)).then(pl.Series(part))).to_series()


def _figures(called: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """call_id with `work`, and the figures of each distinct work."""
    reading = [name for name, formula in FORMULAS.items() if formula.reads_values]
    values = pl.when(pl.col("operator").is_in(reading)).then("values")
    short = called.with_columns(values).with_columns(pl.col(name).cast(pl.Categorical) for name in _RECORDED)
    distinct = short.select(_RECORDED).unique(maintain_order=True).with_row_index("recorded")
    rows = [
        (operator, shapes, types, *_figure(operator, shapes, types, strides, given))
        for operator, shapes, types, strides, given in distinct.select(
            pl.col(name).cast(pl.String) for name in _RECORDED
        ).iter_rows()
    ]
    every = pl.DataFrame(rows, schema=_FIGURES, orient="row").with_columns(distinct.get_column("recorded"))
    # Calls that differ only in details that affect no figure share one work.
    names = list(_FIGURES)
    merged = every.select(names).unique().sort(names).with_row_index("work")
    works = every.join(merged, on=names, nulls_equal=True, how="left").select("recorded", "work")
    found = short.join(distinct, on=_RECORDED, nulls_equal=True, how="left", maintain_order="left")
    numbered = found.join(works, on="recorded", how="left", maintain_order="left").select("call_id", "work")
    return numbered, merged.with_columns(column=_column())


def _figure(operator: str, shapes: str, types: str, strides: str | None, values: str | None) -> tuple[object, ...]:
    try:
        work = work_of(operator, Inputs(shapes, types, strides, values))
    except Unstated as reason:
        work = Work(None, None, None, lacking=f"{operator}: {reason}")
    return work.dtype, work.flops, work.least_bytes, work.is_product, work.detail, work.lacking


def _column() -> pl.Expr:
    """Return the column from which the roofline reads the operations; null if their unit is unknown."""
    dtype = pl.col("dtype")
    of_matrix = dtype.replace_strict(_MATRIX, default=None, return_dtype=pl.String)
    of_vector = dtype.replace_strict(_VECTOR, default=None, return_dtype=pl.String)
    rounded = pl.col("operator").str.contains(_MAYBE_ROUNDED)
    in_fp32 = pl.when((dtype == "fp32") & ~rounded).then(pl.lit(_VECTOR["fp32"]))
    return pl.when("is_product").then(pl.coalesce(of_matrix, in_fp32)).otherwise(of_vector)


#: Flag of every row: the work is a lower bound derived from shapes.
MODEL_BASED: Final = "model_based"
_SHARED: Final = "work_shared_by_time"
_SERVES: Final = "serves_another_kernel"
_CACHED: Final = "served_by_caches_or_not"
#: DRAM time for all bytes as a fraction of the kernel's time, and the fraction of bytes that exceeds the caches.
_GOOD_PART: Final = 0.25
_MOSTLY: Final = 0.75
_PARTLY: Final = "other_launches_left_out"
_CAPTURED: Final = "inputs_from_captured_graph"
_BY_COUNT: Final = "captured_graph_by_count"


def framework_work(
    operators: OperatorLaunches, dispatches: pl.DataFrame, caches: pl.DataFrame, ceilings: pl.DataFrame
) -> pl.DataFrame:
    """Return the work per kernel and device that has launches of known work, in the roofline's columns.

    Launches without a formula are excluded from the row, in both time and work (flag `other_launches_left_out`). If a
    call has several main kernels, each gets its share of the work by time (flag `work_shared_by_time`); an auxiliary
    kernel gets none (flag `serves_another_kernel`). The flag `inputs_from_captured_graph` marks operators of a captured
    graph, `captured_graph_by_count` those matched only by launch count and order.

    Args:
        operators: The launches of operators.
        dispatches: The counted dispatches.
        caches: device_id and total bytes of the caches in front of memory, which serve repeated runs if their data
            fits; dram_bytes is null for a device without a row.
        ceilings: The contract, which shows the devices that have an L2 roof.
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
    """Clear the bytes if it matters, and is unknown, whether caches held most of them.

    Bytes that the caches may have held may or may not have come from DRAM: if all of them would have kept DRAM busy for
    much of the time, the kernel cannot be called far from every roof.
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
    """Sum rows of work per `subject`, which becomes kernel_id, and device.

    `rows` has subject, device_id, duration_ns, dispatch_count, done (operations), moved (bytes), part_of_caches (the
    share of the caches' bytes that may have served it), shared, serves, column, and the flops of a call.
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
    # A sum with a missing part would give a wrong rate.
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


def operator_shapes(operators: OperatorLaunches, caches: pl.DataFrame, ceilings: pl.DataFrame) -> pl.DataFrame:
    """Compute rows of the table `operator_shapes` without the session.

    `caches` has device_id and the total bytes of caches in front of memory; `ceilings` is the contract of that name.
    Copies from or to the host use a link that has no roof here, so rows with such copies have no share.
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
    """subject, bound and share_ratio: the nearest roof, and the time at that roof as a fraction of the actual time."""
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
