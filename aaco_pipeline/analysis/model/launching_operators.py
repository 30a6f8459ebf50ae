"""Which framework operator launched each dispatch: the innermost one that was open on the thread of the launch.

The operator's family is `aaco_pipeline.analysis.kernels.names`; nodes of an ONNX model are `node_mapping`.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

OPERATOR_DOMAIN: Final = "operator"
Numbers = npt.NDArray[np.int64]
_THREAD: Final = ("process_id", "thread_id")


def launching_operators(dispatches: pl.DataFrame, api_calls: pl.DataFrame) -> pl.DataFrame:
    """One row per dispatch that an operator launched: dispatch_id, kernel_id, duration_ns, operator, operator_call_id.

    A launch is the call that shares its correlation within the process; of calls of several domains that do, the one
    that began last. A dispatch without a known launch, or launched outside every operator, has no row.
    """
    operators = api_calls.filter((pl.col("domain") == OPERATOR_DOMAIN) & pl.col("thread_id").is_not_null())
    calls = api_calls.filter((pl.col("domain") != OPERATOR_DOMAIN) & pl.col("correlation_id").is_not_null())
    launches = (
        calls.sort("start_ns", "call_id")
        .unique(["process_id", "correlation_id"], keep="last", maintain_order=True)
        .select("process_id", "correlation_id", "thread_id", launched_ns="start_ns")
    )
    launched = dispatches.select(
        "dispatch_id", "process_id", "kernel_id", "correlation_id", duration_ns=pl.col("end_ns") - pl.col("start_ns")
    ).join(launches, on=["process_id", "correlation_id"], how="inner")
    found = [
        _of_thread(
            own, operators.filter(pl.all_horizontal(pl.col(k) == v for k, v in zip(_THREAD, thread, strict=True)))
        )
        for thread, own in launched.group_by(*_THREAD, maintain_order=True)
    ]
    return pl.concat([pl.DataFrame(schema=_LAUNCHED), *found]).sort("dispatch_id")


def _of_thread(launched: pl.DataFrame, operators: pl.DataFrame) -> pl.DataFrame:
    """The launches of one thread with the innermost of its operators around each."""
    # Outer before inner where both begin at once, so that what contains another stands before it.
    ordered = operators.sort("start_ns", "end_ns", "call_id", descending=[False, True, False])
    rows = _innermost(
        ordered.get_column("start_ns").to_numpy(),
        ordered.get_column("end_ns").to_numpy(),
        launched.get_column("launched_ns").to_numpy(),
    )
    named = ordered.select(operator="name", operator_call_id="call_id").with_row_index("operator_row")
    return (
        launched.with_columns(operator_row=pl.Series(rows))
        .filter(pl.col("operator_row") >= 0)
        .join(named.with_columns(pl.col("operator_row").cast(pl.Int64)), on="operator_row", maintain_order="left")
        .select(list(_LAUNCHED))
    )


def _innermost(start: Numbers, end: Numbers, at: Numbers) -> Numbers:
    """For each moment the row of the innermost call open then, or -1; calls nest and are sorted by start, outer first.

    A call's depth is how many began before it and had not ended; at a moment with k open calls the innermost one is the
    last begun of depth k - 1. Calls that do not nest give no wrong answer: what is found must really be open.
    """
    ends = np.sort(end)
    depth = np.arange(len(start)) - np.searchsorted(ends, start, side="right")
    last = np.searchsorted(start, at, side="right") - 1
    open_count = last + 1 - np.searchsorted(ends, at, side="left")
    found = np.full(len(at), -1, np.int64)
    for level in np.unique(open_count[open_count > 0]):
        of_level = np.flatnonzero(depth == level - 1)
        asked = np.flatnonzero(open_count == level)
        place = np.searchsorted(of_level, last[asked], side="right") - 1
        known = place >= 0
        found[asked[known]] = of_level[place[known]]
    is_open = (found >= 0) & (end[found] >= at) if len(end) else np.zeros(len(at), bool)
    return np.where(is_open, found, -1)


_LAUNCHED: Final = pl.Schema(
    {
        "dispatch_id": pl.Int32(),
        "kernel_id": pl.Int32(),
        "duration_ns": pl.Int64(),
        "operator": pl.String(),
        "operator_call_id": pl.Int32(),
    }
)
