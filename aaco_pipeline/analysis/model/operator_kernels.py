"""Which framework operators the kernels' time was spent for, where the capture recorded operators but no model.

The operator of a launch is `aaco_pipeline.analysis.model.launching_operators`; nodes of a model that the runtime
names are `node_mapping`, and those behind the kernels of a GPU `device_kernel_nodes`.
"""

from typing import Final

import numpy as np
import polars as pl

from aaco_pipeline.analysis.model.launching_operators import OPERATOR_DOMAIN, launching_operators
from aaco_pipeline.analysis.timeline.activities import group_codes

#: The launch and the call around it were both recorded, and their link by correlation id too: nothing is inferred.
BY_CORRELATION: Final = 1.0
_NODE: Final = ("node_id", "match", "score", "operator", "outermost_operator")


def operators_of_dispatches(dispatches: pl.DataFrame, api_calls: pl.DataFrame) -> pl.DataFrame:
    """Each dispatch's part in `operator_kernels`, for a capture with framework operators.

    Both are canonical tables. Columns: dispatch_id, kernel_id, self_ns, node_id (null), match, score, operator,
    outermost_operator. A dispatch whose launch is unknown, or made outside every operator, is `unattributed`.
    """
    launched = launching_operators(dispatches, api_calls).select("dispatch_id", "operator", "operator_call_id")
    found = dispatches.select("dispatch_id", "kernel_id", "self_ns").join(
        launched.join(_outermost(api_calls), on="operator_call_id", how="left"),
        on="dispatch_id",
        how="left",
        maintain_order="left",
    )
    known = pl.col("operator").is_not_null()
    return found.select(
        "dispatch_id",
        "kernel_id",
        "self_ns",
        node_id=pl.lit(None, pl.Int32),
        match=pl.when(known).then(pl.lit("correlation")).otherwise(pl.lit("unattributed")),
        score=pl.when(known).then(pl.lit(BY_CORRELATION)),
        operator="operator",
        outermost_operator="outermost_operator",
    )


def operator_kernels(dispatches: pl.DataFrame) -> pl.DataFrame:
    """Rows of `operator_kernels` from each dispatch's part in it, as above.

    Sums are those of `kernels.statistics.kernel_stats` over the same dispatches, so that time and counts are conserved:
    a dispatch without self time counts, and adds nothing.
    """
    return (
        dispatches.group_by("kernel_id", *_NODE)
        .agg(dispatch_count=pl.len().cast(pl.Int64), total_ns=pl.col("self_ns").sum())
        .select("node_id", "kernel_id", "dispatch_count", "total_ns", *_NODE[1:])
        .sort("node_id", "kernel_id", "match", "operator", "outermost_operator", "score")
    )


def _outermost(api_calls: pl.DataFrame) -> pl.DataFrame:
    """Columns operator_call_id and outermost_operator: of every operator the one on its thread that encloses all."""
    own = api_calls.filter((pl.col("domain") == OPERATOR_DOMAIN) & pl.col("thread_id").is_not_null())
    threads = group_codes(own, ("process_id", "thread_id"))
    start, end = (own.get_column(name).to_numpy() for name in ("start_ns", "end_ns"))
    order = np.lexsort((own.get_column("call_id").to_numpy(), -end, start, threads))
    # Operators nest: one that begins before everything earlier on its thread has ended lies inside the last outermost.
    # Threads follow one another, so the running end of one must not reach into the next.
    first, offset = (int(start.min()), int(end.max() - start.min()) + 1) if own.height else (0, 1)
    lift = threads[order] * offset
    begun, ended = start[order] - first + lift, np.maximum.accumulate(end[order] - first + lift)
    opens = np.ones(own.height, np.bool_)
    opens[1:] = begun[1:] >= ended[:-1]
    outer = np.maximum.accumulate(np.where(opens, np.arange(own.height), 0))
    ordered = own[order] if own.height else own
    return ordered.select(
        operator_call_id="call_id", outermost_operator=pl.col("name").gather(pl.Series(outer, dtype=pl.UInt32))
    )
