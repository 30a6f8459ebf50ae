"""All device activities of a session and the host calls that launched them, one frame each.

`host_waits` handles waits of the host.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from aaco_pipeline.analysis.timeline.host_waits import Waits, waits

COMPUTE: Final = "compute"
COMMUNICATION: Final = "communication"
COPY: Final = "copy"
HOST: Final = "host"
LAUNCHING: Final = "launch"
#: Domains whose calls enclose runtime calls and explain them; they launch nothing themselves.
ENCLOSING_DOMAINS: Final = ("operator", "python", "onnxruntime")
OPERATOR_DOMAIN: Final = "operator"
#: Names of communication kernels, used if the kernels' families are unknown.
COMMUNICATION_PREFIXES: Final = ("ncclDevKernel", "ncclKernel", "nccl", "rccl")
#: Copies and fills that the AMD runtime implements as kernels.
COPY_PREFIX: Final = "__amd_rocclr_"
#: The family of communication kernels in `kernels.family`.
COMMUNICATION_FAMILY: Final = "comm"
Codes = npt.NDArray[np.int64]
ACTIVITY_KINDS: Final = pl.Enum(["dispatch", "memory_copy", "api_call"])
CATEGORIES: Final = pl.Enum([COMPUTE, COMMUNICATION, COPY])
_LAUNCH: Final = ("process_id", "correlation_id")
_THREAD: Final = ("process_id", "thread_id")


def device_activities(
    dispatches: pl.DataFrame, memory_copies: pl.DataFrame, kernels: pl.DataFrame, calls: pl.DataFrame
) -> pl.DataFrame:
    """Return every dispatch, copy and fill with its launch, sorted by device and start; `activity` numbers the rows.

    Dispatches inside a control-flow dispatch are part of it and omitted. `calls` comes from `host_calls`. Columns:
    activity, activity_kind, activity_id, process_id, thread_id, device_id, queue_id, stream_id, kernel_id, iteration,
    start_ns, end_ns, category (compute, communication or copy), work (a compute kernel's family if known, else the
    category), and for the launch call_id, outermost_call_id, call_thread_id, call_start_ns and call_end_ns, null if no
    call of the process has the correlation id.
    """
    shared = ("process_id", "device_id", "queue_id", "stream_id", "correlation_id", "start_ns", "end_ns")
    run = dispatches.filter(pl.col("parent_dispatch_id").is_null()).select(
        *shared,
        "thread_id",
        "kernel_id",
        "iteration",
        activity_kind=pl.lit("dispatch", ACTIVITY_KINDS),
        activity_id=pl.col("dispatch_id").cast(pl.Int32),
    )
    moved = memory_copies.select(
        *shared, activity_kind=pl.lit("memory_copy", ACTIVITY_KINDS), activity_id=pl.col("copy_id").cast(pl.Int32)
    )
    both = pl.concat([run, moved], how="diagonal").sort("device_id", "start_ns", "end_ns", maintain_order=True)
    launch = calls[["call_id", "outermost_call_id", "thread_id", "start_ns", "end_ns"]]
    launch.columns = ["call_id", "outermost_call_id", "call_thread_id", "call_start_ns", "call_end_ns"]
    position = _launching_rows(both, calls)
    named = _categories(kernels)
    kernel = _rows_with(named.get_column("kernel_id"), both.get_column("kernel_id"))
    return (
        both.drop("correlation_id")
        .with_row_index("activity")
        .with_columns(
            pl.Series("category", named.get_column("category").gather(kernel)).fill_null(COPY),
            pl.Series("work", named.get_column("work").gather(kernel)).fill_null(COPY),
            *(column.gather(position) for column in launch),
        )
    )


def host_calls(api_calls: pl.DataFrame) -> pl.DataFrame:
    """Return calls into runtimes and libraries below the framework, by thread and start, with their outermost call.

    Columns: call_id, process_id, thread_id, name, correlation_id, start_ns, end_ns, outermost_call_id.
    """
    own = api_calls.filter(~pl.col("domain").is_in(ENCLOSING_DOMAINS)).select(
        "call_id", *_THREAD, pl.col("name").cast(pl.Categorical), "correlation_id", "start_ns", "end_ns"
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
    """A small number per row, equal for rows that are equal in all columns `by` (integers or null)."""
    codes = np.zeros(frame.height, np.int64)
    for name in by:
        column = frame.get_column(name).cast(pl.Int64)
        known = column.unique().sort(nulls_last=False)
        if len(known) > 1:
            values = known.drop_nulls().to_numpy()
            # Nulls come first, as a separate value.
            place = np.searchsorted(values, column.fill_null(0).to_numpy()) + 1
            codes = codes * (len(values) + 1) + np.where(column.is_null().to_numpy(), 0, place)
    return codes


def before_in_group(codes: Codes) -> Codes:
    """For each row, the previous row with the same code; -1 if there is none."""
    small = codes.astype(np.uint16) if codes.max(initial=0) < 2**16 else codes
    order = np.argsort(small, kind="stable")
    before = np.full(len(codes), -1, np.int64)
    same = codes[order[1:]] == codes[order[:-1]]
    before[order[1:][same]] = order[:-1][same]
    return before


def once_per_call(activities: pl.DataFrame) -> pl.DataFrame:
    """Return activities with known launches; if one call launched several, only the first."""
    linked = activities.drop_nulls("call_id")
    calls = linked.get_column("call_id").to_numpy()
    rows = np.arange(len(calls))
    first = np.empty(int(calls.max(initial=-1)) + 1, np.int64)
    first[calls[::-1]] = rows[::-1]
    opens = first[calls] == rows
    return linked if opens.all() else linked.filter(pl.Series(opens))


def launching(api_calls: pl.DataFrame, activities: pl.DataFrame) -> pl.DataFrame:
    """Return the calls that launched an activity; call numbers are dense, so an array indexed by them suffices."""
    calls = api_calls.get_column("call_id").to_numpy()
    launches = activities.get_column("call_id").drop_nulls().to_numpy()
    launched = np.zeros(max(calls.max(initial=-1), launches.max(initial=-1)) + 1, np.bool_)
    launched[launches] = True
    return api_calls.filter(pl.Series(launched[calls]))


def row_before(activities: pl.DataFrame, by: Sequence[str]) -> pl.Series:
    """For each activity, the row of the previous one that is equal in all columns `by`; null if there is none."""
    return _as_rows(before_in_group(group_codes(activities, by)))


def _launching_rows(activities: pl.DataFrame, calls: pl.DataFrame) -> pl.Series:
    """For each activity, the row of the call with its process and correlation id; the outer one if a runtime call and
    its driver call share an id."""
    found = np.full(activities.height, -1, np.int64)
    numbered = [frame.select(*_LAUNCH).with_row_index("row").drop_nulls() for frame in (activities, calls)]
    processes = [frame.partition_by("process_id", as_dict=True) for frame in numbered]
    for process, own in processes[0].items():
        if process not in processes[1]:
            continue
        there = processes[1][process]
        # Ids are matched in place: an id beyond int64 keeps its bits, which suffices for equality.
        sought, known = (one.get_column("correlation_id").to_numpy() for one in (own, there))
        order = np.argsort(known, kind="stable")
        place = np.minimum(np.searchsorted(known[order], sought, side="left"), len(known) - 1)
        hit = known[order][place] == sought
        found[own.get_column("row").to_numpy()[hit]] = there.get_column("row").to_numpy()[order][place][hit]
    return _as_rows(found)


def _rows_with(keys: pl.Series, values: pl.Series) -> pl.Series:
    """For each value, the row of the equal key; null if there is none or the value is null."""
    known = keys.cast(pl.Int64).to_numpy()
    if not len(known):
        return pl.Series([None] * len(values), dtype=pl.UInt32)
    order = np.argsort(known)
    sought = values.cast(pl.Int64).fill_null(np.iinfo(np.int64).min).to_numpy()
    place = np.minimum(np.searchsorted(known[order], sought), len(known) - 1)
    return _as_rows(np.where(known[order][place] == sought, order[place], -1))


def _as_rows(found: Codes) -> pl.Series:
    rows = pl.Series(found)
    return rows.set(rows < 0, None)


def _categories(kernels: pl.DataFrame) -> pl.DataFrame:
    """Columns kernel_id, category and work."""
    named = kernels.select("kernel_id", "name", pl.col("family").cast(pl.String))
    by_name = pl.any_horizontal(pl.col("name").str.starts_with(prefix) for prefix in COMMUNICATION_PREFIXES)
    communicates = pl.when(pl.col("family").is_null()).then(by_name).otherwise(pl.col("family") == COMMUNICATION_FAMILY)
    category = (
        pl.when(communicates)
        .then(pl.lit(COMMUNICATION))
        .when(pl.col("name").str.starts_with(COPY_PREFIX))
        .then(pl.lit(COPY))
        .otherwise(pl.lit(COMPUTE))
    )
    named = named.with_columns(category=category)
    work = pl.when(pl.col("category") == COMPUTE).then(pl.coalesce("family", "category")).otherwise("category")
    works = named.select(work).to_series().unique().to_list()
    # Names once, and a small number per activity: there are millions of them.
    kinds = pl.Enum(sorted({*works, COMPUTE, COMMUNICATION, COPY, HOST, LAUNCHING}))
    return named.select("kernel_id", pl.col("category").cast(CATEGORIES), work=work.cast(kinds))


def timed(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows with usable times: both are known, and the end is not before the start."""
    usable = (rows.get_column("end_ns") >= rows.get_column("start_ns")).fill_null(False)
    # Usually all of them are, and copying a large table would dominate the stage's time.
    return rows if usable.all() else rows.filter(usable)


def measured_dispatches(dispatches: pl.DataFrame, iterations: pl.DataFrame) -> pl.DataFrame:
    """Return the dispatches that count: those of measured iterations, or all if the trace has at most one iteration.

    Warm-up stays in `dispatches` but is excluded here, as from every statistic. A single marked iteration does not
    characterize the work around it. If several processes ran, one without any dispatch in an iteration counts
    completely, because its iterations are unknown.
    """
    traced = iterations.filter(pl.col("pass") == "trace")
    if traced.height < 2:
        return dispatches
    measured = traced.filter(pl.col("phase") == "measure").get_column("iteration")
    counts = pl.col("iteration").is_in(measured.implode()).fill_null(False)
    if dispatches.get_column("process_id").n_unique() > 1:
        counts |= pl.col("iteration").is_null().all().over("process_id")
    return dispatches.filter(counts)


def kernel_stats(dispatches: pl.DataFrame) -> pl.DataFrame:
    """One row per kernel over its dispatches' self time; quantiles are observed values (nearest rank)."""
    total = pl.col("self_ns").sum()
    stats = dispatches.group_by("kernel_id").agg(
        dispatch_count=pl.len().cast(pl.Int64),
        total_ns=total,
        mean_ns=(total / pl.len()).round().cast(pl.Int64),
        min_ns=pl.col("self_ns").min(),
        p50_ns=_nearest_rank("self_ns", 0.50),
        p99_ns=_nearest_rank("self_ns", 0.99),
        max_ns=pl.col("self_ns").max(),
    )
    everything = stats.get_column("total_ns").sum()
    share = pl.col("total_ns") / everything if everything else pl.lit(None, pl.Float64)
    return stats.with_columns(share_ratio=share).sort("kernel_id")


def _nearest_rank(column: str, quantile: float) -> pl.Expr:
    """Return the smallest observed value that at least the fraction `quantile` of the values does not exceed."""
    rank = (pl.len() * quantile).ceil().cast(pl.Int64).clip(lower_bound=1) - 1
    return pl.col(column).sort().get(rank)


#: Tables that `recorded` reads, with the columns used: a launch may have many more.
RECORDED_FROM: Final[Mapping[str, tuple[str, ...]]] = {
    "dispatches": (
        *("dispatch_id", "process_id", "thread_id", "device_id", "queue_id", "stream_id", "kernel_id"),
        *("correlation_id", "start_ns", "end_ns", "iteration", "parent_dispatch_id", "self_ns"),
    ),
    "iterations": ("pass", "iteration", "phase"),
    "memory_copies": (
        *("copy_id", "process_id", "device_id", "queue_id", "stream_id", "correlation_id", "start_ns", "end_ns"),
    ),
    "kernels": ("kernel_id", "name", "family"),
    "api_calls": (*("call_id", "process_id", "thread_id", "domain", "name", "correlation_id", "start_ns", "end_ns"),),
    "synchronizations": (
        *("process_id", "device_id", "stream_id", "correlation_id", "waited_stream_id", "waited_correlation_id"),
    ),
}


@dataclass(frozen=True)
class Recorded:
    """The work in a session's measured iterations, or all of it if none are known.

    `dispatches` (kernel_id, iteration, self_ns) are those with times; `left_out` counts those without. `activities`,
    `calls` and `waits` are computed from them here and in `host_waits`.
    """

    dispatches: pl.DataFrame
    left_out: int
    activities: pl.DataFrame
    calls: pl.DataFrame
    waits: Waits


def counted_dispatches(dispatches: pl.DataFrame, iterations: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Return the dispatches covered by all figures of the traced pass, and the number without usable times."""
    usable = timed(dispatches)
    return measured_dispatches(usable, iterations), dispatches.height - usable.height


def everything(tables: Mapping[str, pl.DataFrame]) -> Recorded:
    """Return `recorded` including warm-up and work outside iterations, without the table `iterations`."""
    return _run(tables, timed(tables["dispatches"]), 0)


def recorded(tables: Mapping[str, pl.DataFrame]) -> Recorded:
    """Combine the tables named in `RECORDED_FROM`."""
    return _run(tables, *counted_dispatches(tables["dispatches"], tables["iterations"]))


def _run(tables: Mapping[str, pl.DataFrame], dispatches: pl.DataFrame, left_out: int) -> Recorded:
    calls = host_calls(tables["api_calls"])
    activities = device_activities(dispatches, tables["memory_copies"], tables["kernels"], calls)
    waited = waits(activities, calls, tables["synchronizations"])
    return Recorded(dispatches.select("kernel_id", "iteration", "self_ns"), left_out, activities, calls, waited)
