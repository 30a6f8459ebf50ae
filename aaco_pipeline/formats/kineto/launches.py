"""What calls state of the kernels that they launch: ROCm's tracer writes name and grid beside the call, CUPTI does not.

It is all that a trace knows of launches while a stream was captured into a graph, for these run nothing.
"""

from typing import Final

import polars as pl

#: Domains of the table `api_calls` that hold calls of the runtime and its driver.
RUNTIME_DOMAINS: Final = ("hip_runtime", "cuda_runtime", "cuda_driver")
_CAPTURING: Final = "StreamBeginCapture"
#: It is asked for a grid in work-items; all others are asked for one in workgroups.
_IN_WORK_ITEMS: Final = "hipExtModuleLaunchKernel"


def named_launches(stated: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """call_id with the kernel and its size, of a trace in which a graph was captured; without a capture no rows.

    `stated` has correlation, kernel and the sizes; `calls` is the table `api_calls`. Of several processes, which may
    count their correlations alike, none is given.
    """
    stated = stated.rename({"correlation": "correlation_id"})
    names = calls.get_column("name").unique().cast(pl.String)
    if not names.str.contains(_CAPTURING, literal=True).any() or calls.get_column("process_id").n_unique() > 1:
        stated = stated.clear()
    launches = calls.filter(pl.col("domain").is_in(RUNTIME_DOMAINS)).select(
        "call_id", "correlation_id", in_work_items=pl.col("name").cast(pl.String) == _IN_WORK_ITEMS
    )
    unique = stated.unique("correlation_id", keep="none")
    found = launches.join(unique, on="correlation_id", how="inner", maintain_order="left").with_columns(_grids())
    return found.drop("correlation_id", "in_work_items")


def with_grids_in_work_items(dispatches: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """The rows of `dispatches`, with the grids of those whose call was asked for work-items as it was asked."""
    key = ["process_id", "correlation_id"]
    asked = calls.filter(pl.col("name").cast(pl.String) == _IN_WORK_ITEMS).select(*key, in_work_items=True)
    if asked.is_empty():
        return dispatches
    rows = dispatches.join(asked.unique(key), on=key, how="left", maintain_order="left")
    rows = rows.with_columns(pl.col("in_work_items").fill_null(False)).with_columns(_grids())
    return rows.drop("in_work_items")


def _grids() -> list[pl.Expr]:
    """What was read counts the workgroups' work-items, of a call that is asked for work-items once too often."""
    return [
        pl.when(pl.col("in_work_items") & (pl.col(f"workgroup_{axis}") > 0))
        .then(pl.col(f"grid_{axis}") // pl.col(f"workgroup_{axis}"))
        .otherwise(f"grid_{axis}")
        .alias(f"grid_{axis}")
        for axis in "xyz"
    ]
