"""One frame of everything that ran on devices, and one of the host calls that asked for it.

Both are what the timeline, the gaps and the critical path are computed from. An activity is named as elsewhere in the
lake, by its kind and its number in that kind's table.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

COMPUTE: Final = "compute"
COMMUNICATION: Final = "communication"
COPY: Final = "copy"
#: Domains whose calls enclose runtime calls and explain them; they launch nothing themselves.
ENCLOSING_DOMAINS: Final = ("operator", "python", "onnxruntime")
OPERATOR_DOMAIN: Final = "operator"
#: Names of communication kernels, where the kernels' families are not known.
COMMUNICATION_PREFIXES: Final = ("ncclDevKernel", "ncclKernel", "nccl", "rccl")
#: Copies and fills that the AMD runtime carries out by kernels of its own.
COPY_PREFIX: Final = "__amd_rocclr_"
#: Families, as in `kernels.family` or the frame `kernel_family`, that are communication.
COMMUNICATION_FAMILIES: Final = ("communication", "collective")
Codes = npt.NDArray[np.int64]
ACTIVITY_KINDS: Final = pl.Enum(["dispatch", "memory_copy", "api_call"])
CATEGORIES: Final = pl.Enum([COMPUTE, COMMUNICATION, COPY])
_LAUNCH: Final = ("process_id", "correlation_id")
_THREAD: Final = ("process_id", "thread_id")


def device_activities(
    dispatches: pl.DataFrame,
    memory_copies: pl.DataFrame,
    kernels: pl.DataFrame,
    calls: pl.DataFrame,
    kernel_family: pl.DataFrame | None = None,
) -> pl.DataFrame:
    """Every dispatch, copy and fill with its launch, sorted by device and start; `activity` numbers the rows.

    Dispatches inside a control-flow dispatch are part of it and left out. `calls` is what `host_calls` gives.
    `kernel_family` (kernel_id, family), where known, outranks `kernels.family`. Columns: activity, activity_kind,
    activity_id, process_id, thread_id, device_id, queue_id, stream_id, kernel_id, category (compute, communication or
    copy), family, iteration, start_ns, end_ns, call_id, call_start_ns, call_end_ns, call_thread_id and
    outermost_call_id of the launch; null where no call of the process has the correlation.
    """
    shared = ("process_id", "device_id", "queue_id", "stream_id", "correlation_id", "start_ns", "end_ns")
    named = _categories(kernels, kernel_family)
    run = dispatches.filter(pl.col("parent_dispatch_id").is_null()).select(
        *shared,
        "thread_id",
        "kernel_id",
        "iteration",
        activity_kind=pl.lit("dispatch", ACTIVITY_KINDS),
        activity_id=pl.col("dispatch_id").cast(pl.Int32),
    )
    run = run.join(named, on="kernel_id", how="left", maintain_order="left")
    moved = memory_copies.select(
        *shared,
        activity_kind=pl.lit("memory_copy", ACTIVITY_KINDS),
        activity_id=pl.col("copy_id").cast(pl.Int32),
        category=pl.lit(COPY, CATEGORIES),
        family=pl.lit(None, pl.String),
    )
    both = pl.concat([run, moved], how="diagonal").with_columns(pl.col("category").fill_null(COMPUTE))
    linked = both.join(_launches(calls), on=_LAUNCH, how="left", maintain_order="left").drop("correlation_id")
    return linked.sort("device_id", "start_ns", "end_ns", maintain_order=True).with_row_index("activity")


def host_calls(api_calls: pl.DataFrame) -> pl.DataFrame:
    """The calls into runtimes and libraries below the framework, by thread and start, each with its outermost call.

    A call made inside another one on the same thread belongs to the outermost. Columns: call_id, process_id,
    thread_id, name, correlation_id, start_ns, end_ns, outermost_call_id.
    """
    own = api_calls.filter(~pl.col("domain").is_in(ENCLOSING_DOMAINS)).select(
        "call_id", *_THREAD, "name", "correlation_id", "start_ns", "end_ns"
    )
    threads = group_codes(own, _THREAD)
    start, end = (own.get_column(name).to_numpy() for name in ("start_ns", "end_ns"))
    order = np.lexsort((-end, start, threads))
    if np.any(order[1:] < order[:-1]):
        own, end, threads = own[order], end[order], threads[order]
    opens = np.zeros(len(end), np.bool_)
    bounds = np.flatnonzero(np.diff(threads, prepend=-1, append=-1))
    for first, last in pairwise(bounds.tolist()):
        ended = np.maximum.accumulate(end[first:last])
        opens[first] = True
        opens[first + 1 : last] = end[first + 1 : last] > ended[:-1]
    outermost = np.maximum.accumulate(np.where(opens, np.arange(len(end)), 0))
    return own.with_columns(outermost_call_id=own.get_column("call_id").gather(outermost))


def group_codes(frame: pl.DataFrame, by: Sequence[str]) -> Codes:
    """A small number per row that is equal where all columns `by` (whole numbers or null) are."""
    codes = np.zeros(frame.height, np.int64)
    for name in by:
        column = frame.get_column(name).cast(pl.Int64)
        known = column.unique().sort(nulls_last=False)
        if len(known) > 1:
            values = known.drop_nulls().to_numpy()
            # Nulls come first, as a value of their own.
            place = np.searchsorted(values, column.fill_null(0).to_numpy()) + 1
            codes = codes * (len(values) + 1) + np.where(column.is_null().to_numpy(), 0, place)
    return codes


def before_in_group(codes: Codes) -> Codes:
    """For each row the row before it with the same code; -1 where there is none."""
    small = codes.astype(np.uint16) if codes.max(initial=0) < 2**16 else codes
    order = np.argsort(small, kind="stable")
    before = np.full(len(codes), -1, np.int64)
    same = codes[order[1:]] == codes[order[:-1]]
    before[order[1:][same]] = order[:-1][same]
    return before


def _launches(calls: pl.DataFrame) -> pl.DataFrame:
    """The call per process and correlation id: the outer one where a runtime's call and its driver's share an id."""
    return (
        calls.lazy()
        .filter(pl.col("correlation_id").is_not_null())
        .select(
            *_LAUNCH,
            "call_id",
            "outermost_call_id",
            call_thread_id="thread_id",
            call_start_ns="start_ns",
            call_end_ns="end_ns",
        )
        .unique(_LAUNCH, keep="first")
        .collect()
    )


def _categories(kernels: pl.DataFrame, kernel_family: pl.DataFrame | None) -> pl.DataFrame:
    """Columns kernel_id, family and category."""
    named = kernels.select("kernel_id", "name", "family")
    if kernel_family is not None:
        known = kernel_family.select("kernel_id", known="family").unique("kernel_id")
        named = named.join(known, on="kernel_id", how="left").with_columns(family=pl.coalesce("known", "family"))
    by_name = pl.any_horizontal(pl.col("name").str.starts_with(prefix) for prefix in COMMUNICATION_PREFIXES)
    communicates = pl.when(pl.col("family").is_null()).then(by_name)
    communicates = communicates.otherwise(pl.col("family").is_in(COMMUNICATION_FAMILIES))
    category = (
        pl.when(communicates)
        .then(pl.lit(COMMUNICATION))
        .when(pl.col("name").str.starts_with(COPY_PREFIX))
        .then(pl.lit(COPY))
        .otherwise(pl.lit(COMPUTE))
    )
    return named.select("kernel_id", "family", category=category.cast(CATEGORIES))
