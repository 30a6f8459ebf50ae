"""Find the framework operator that launched each dispatch, and each operator's kernel time.

`node_mapping` handles the nodes of an ONNX model.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from aaco_pipeline.analysis.timeline.activities import group_codes

OPERATOR_DOMAIN: Final = "operator"
Numbers = npt.NDArray[np.int64]
_THREAD: Final = ("process_id", "thread_id")


def launching_operators(dispatches: pl.DataFrame, api_calls: pl.DataFrame) -> pl.DataFrame:
    """Find the operator that launched each dispatch: dispatch_id, kernel_id, duration_ns, operator, operator_call_id.

    A dispatch with an unknown launch, or launched outside every operator, has no row.
    """
    operators = api_calls.filter((pl.col("domain") == OPERATOR_DOMAIN) & pl.col("thread_id").is_not_null())
    if operators.is_empty():
        columns = {"dispatch_id": pl.Int32(), "kernel_id": pl.Int32(), "duration_ns": pl.Int64(), **_OPERATOR}
        return pl.DataFrame(schema=columns)
    activities = dispatches.select(
        *("dispatch_id", "process_id", "kernel_id", "correlation_id"), duration_ns=pl.col("end_ns") - pl.col("start_ns")
    )
    found = within(launched(activities, api_calls), operators)
    return found.select("dispatch_id", "kernel_id", "duration_ns", *_OPERATOR).sort("dispatch_id")


def launched(activities: pl.DataFrame, api_calls: pl.DataFrame) -> pl.DataFrame:
    """Return the activities with a known launch, with its thread_id and launched_ns.

    `activities` has process_id and correlation_id. A launch is the call with the same correlation id within the
    process; if several domains have one, the call that began last counts.
    """
    calls = api_calls.filter((pl.col("domain") != OPERATOR_DOMAIN) & pl.col("correlation_id").is_not_null())
    one_process = calls.get_column("process_id").n_unique() == 1
    key = ["correlation_id"] if one_process else ["process_id", "correlation_id"]
    launches = calls.select("process_id", "correlation_id", "thread_id", "call_id", launched_ns="start_ns")
    numbers = launches.get_column("correlation_id").to_numpy()
    if not one_process or np.any(numbers[1:] <= numbers[:-1]):
        launches = launches.sort("launched_ns", "call_id").unique(key, keep="last", maintain_order=True)
    if one_process:
        activities = activities.filter(pl.col("process_id") == api_calls.item(0, "process_id"))
        launches = launches.drop("process_id")
    return activities.join(launches.drop("call_id"), on=key, how="inner", maintain_order="left")


def within(launches: pl.DataFrame, operators: pl.DataFrame) -> pl.DataFrame:
    """Add operator and operator_call_id, the innermost of `operators` open on the launching thread, to each launch.

    `launches` come from `launched`; `operators` are rows of api_calls. Launches outside all operators are dropped.
    """
    found = [
        _of_thread(
            own, operators.filter(pl.all_horizontal(pl.col(k) == v for k, v in zip(_THREAD, thread, strict=True)))
        )
        for thread, own in launches.group_by(*_THREAD, maintain_order=True)
    ]
    return pl.concat([pl.DataFrame(schema={**launches.schema, **_OPERATOR}), *found])


def outer_first(operators: pl.DataFrame) -> pl.DataFrame:
    """Sort one thread's calls by start; among calls that begin at once, the enclosing one comes first."""
    start, end = (operators.get_column(name).to_numpy() for name in ("start_ns", "end_ns"))
    later = start[1:] > start[:-1]
    if np.all(later | ((start[1:] == start[:-1]) & (end[1:] < end[:-1]))):
        return operators
    return operators.sort("start_ns", "end_ns", "call_id", descending=[False, True, False])


def _of_thread(launches: pl.DataFrame, operators: pl.DataFrame) -> pl.DataFrame:
    """Return one thread's launches with the innermost operator around each."""
    ordered = outer_first(operators)
    rows = _innermost(
        ordered.get_column("start_ns").to_numpy(),
        ordered.get_column("end_ns").to_numpy(),
        launches.get_column("launched_ns").to_numpy(),
    )
    inside = rows >= 0
    named = ordered.select(operator=pl.col("name").cast(pl.String), operator_call_id="call_id")[rows[inside]]
    return launches.filter(pl.Series(inside)).hstack(named)


def _innermost(start: Numbers, end: Numbers, at: Numbers) -> Numbers:
    """For each instant, the row of the innermost open call, or -1; calls nest and are sorted by start, outer first.

    A call's depth is the number of earlier calls that had not ended when it began; at an instant with k open calls, the
    innermost one is the latest call of depth k - 1. Even for calls that do not nest, the result is an open call.
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


_OPERATOR: Final = {"operator": pl.String(), "operator_call_id": pl.Int32()}


#: Launch, enclosing call and their link by correlation id were all recorded: nothing is inferred.
BY_CORRELATION: Final = 1.0
_NODE: Final = ("node_id", "match", "score", "operator", "outermost_operator")


def operators_of_dispatches(dispatches: pl.DataFrame, api_calls: pl.DataFrame) -> pl.DataFrame:
    """Return each dispatch's contribution to `operator_kernels`, for a capture with framework operators.

    Columns: dispatch_id, kernel_id, self_ns, node_id (null), match, score, operator, outermost_operator. A dispatch
    whose launch is unknown or outside every operator is `unattributed`.
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
    """Aggregate the dispatches' contributions to rows of `operator_kernels`.

    The sums match `timeline.activities.kernel_stats` over the same dispatches, so time and counts are conserved: a
    dispatch without self time is counted but adds no time.
    """
    return (
        dispatches.group_by("kernel_id", *_NODE)
        .agg(dispatch_count=pl.len().cast(pl.Int64), total_ns=pl.col("self_ns").sum())
        .select("node_id", "kernel_id", "dispatch_count", "total_ns", *_NODE[1:])
        .sort("node_id", "kernel_id", "match", "operator", "outermost_operator", "score")
    )


def _outermost(api_calls: pl.DataFrame) -> pl.DataFrame:
    """Columns operator_call_id and outermost_operator: the operator on its thread that encloses all others."""
    own = api_calls.filter((pl.col("domain") == OPERATOR_DOMAIN) & pl.col("thread_id").is_not_null())
    threads = group_codes(own, ("process_id", "thread_id"))
    start, end = (own.get_column(name).to_numpy() for name in ("start_ns", "end_ns"))
    order = np.lexsort((own.get_column("call_id").to_numpy(), -end, start, threads))
    # Operators nest: one that begins before all earlier ones on its thread have ended lies inside the last outermost
    # one. Threads are concatenated, so the running end of one must not carry over to the next.
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
