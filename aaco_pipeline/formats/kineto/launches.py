"""What calls state of the kernels that they launch: ROCm's tracer writes name and grid beside the call, CUPTI does not.

It is all that a trace knows of launches while a stream was captured into a graph, for these run nothing.
"""

from typing import Final

import polars as pl

#: Domains of the table `api_calls` that hold calls of the runtime and its driver.
RUNTIME_DOMAINS: Final = ("hip_runtime", "cuda_runtime", "cuda_driver")
_CAPTURING: Final = "StreamBeginCapture"


def named_launches(stated: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """call_id with the kernel and its size, of a trace in which a graph was captured; without a capture no rows.

    `stated` has correlation, kernel and the sizes; `calls` is the table `api_calls`. Of several processes, which may
    count their correlations alike, none is given.
    """
    stated = stated.rename({"correlation": "correlation_id"})
    names = calls.get_column("name").unique().cast(pl.String)
    if not names.str.contains(_CAPTURING, literal=True).any() or calls.get_column("process_id").n_unique() > 1:
        stated = stated.clear()
    launches = calls.filter(pl.col("domain").is_in(RUNTIME_DOMAINS)).select("call_id", "correlation_id")
    unique = stated.unique("correlation_id", keep="none")
    return launches.join(unique, on="correlation_id", how="inner", maintain_order="left").drop("correlation_id")
