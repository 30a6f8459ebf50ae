"""In which system call a thread was, where that is what an iteration's time went to: on the CPU, or blocked.

What a wait in a call is for is `aaco_pipeline.analysis.delays.thread_states`.
"""

from typing import Final

import numpy as np
import polars as pl

from aaco_pipeline.analysis.delays.intervals import Numbers, ends, meetings

CALL: Final = "call"
#: A call is named when what it took beyond its median is at least this share of the part.
_LEAST_SHARE: Final = 0.5


def calls_that_took_most(path: pl.DataFrame, events: pl.DataFrame, iterations: int) -> pl.DataFrame:
    """The call in which most of a part of an iteration went by, if it usually does not: row, cause, call.

    `path`: row, thread_id, start_ns, end_ns and cause of pieces of so many iterations.
    """
    returned = events.filter((pl.col("kind") == "syscall") & pl.col("duration_ns").is_not_null()).select(
        "thread_id", "name", start_ns="time_ns", end_ns=pl.col("time_ns") + pl.col("duration_ns")
    )
    found = [path.select("row", "cause").clear().with_columns(call=pl.lit(""), ns=pl.lit(0, pl.Int64))]
    for (thread,), some in path.group_by("thread_id", maintain_order=True):
        of_thread = returned.filter(pl.col("thread_id") == thread).sort("start_ns")
        piece, call, since, until = meetings(*ends(some), *ends(of_thread))
        names = of_thread.get_column("name").gather(call)
        found.append(some.select("row", "cause")[piece].with_columns(call=names, ns=pl.Series(until - since)))
    each = pl.concat(found).group_by("row", "cause", "call").agg(pl.col("ns").sum())
    usual = [
        {"cause": cause, "call": call, "usual_ns": float(np.median(_of_all(some.get_column("ns"), iterations)))}
        for (cause, call), some in each.group_by("cause", "call")
    ]
    whole = path.group_by("row", "cause").agg(whole_ns=(pl.col("end_ns") - pl.col("start_ns")).sum())
    schema = {"cause": pl.String, "call": pl.String, "usual_ns": pl.Float64}
    more = pl.col("ns") - pl.col("usual_ns")
    return (
        each.join(pl.DataFrame(usual, schema=schema), on=["cause", "call"])
        .join(whole, on=["row", "cause"])
        .filter((more > 0) & (more >= _LEAST_SHARE * pl.col("whole_ns")))
        .sort(more, "call", descending=[True, False])
        .unique(["row", "cause"], keep="first", maintain_order=True)
        .select("row", "cause", "call")
    )


def _of_all(some: pl.Series, iterations: int) -> Numbers:
    """What a call took in each iteration, nothing where it was not called."""
    return np.pad(some.to_numpy(), (0, max(iterations - len(some), 0)))
