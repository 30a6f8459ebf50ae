"""Choose the lanes of the timeline, and the intervals in which individual activities are drawn.

All frames have the same columns (`COLUMNS`), so callers need not distinguish kinds of activity.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from aaco_pipeline.analysis.timeline.activities import timed
from aaco_pipeline.report.formatting import size

#: Maximum number of queues and streams per device with their own lanes; otherwise they share one, in several rows.
MOST_LANES_OF_A_DEVICE: Final = 8
#: Total number of kernel lanes if there are several devices; each device has at least one.
MOST_LANES_OF_KERNELS: Final = 16
#: Maximum number of threads with their own lanes, the busiest ones; the others share one.
MOST_THREADS: Final = 12
_OTHER_THREADS: Final = "Host, other threads"
#: Interpreter frames enclose everything: if a thread has other calls, those show what it did.
_FRAMES: Final = "python"
#: Columns of every activity: `kind`, row number in its table, and for kernels `kernel_id` and the enclosing dispatch.
#: Lanes and names are categorical, because there are millions of rows.
COLUMNS: Final[Mapping[str, pl.DataType]] = {
    "kind": pl.Enum(["kernel", "copy", "idle", "call"]),
    "device_id": pl.Int32(),
    "lane": pl.Categorical(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "name": pl.Categorical(),
    "number": pl.Int32(),
    "kernel_id": pl.Int32(),
    "inside": pl.Int32(),
    "iteration": pl.Int32(),
    "short": pl.Boolean(),
}


def activities(tables: Mapping[str, pl.DataFrame], *, on_cpu: bool) -> pl.DataFrame:
    """Return kernels, copies, idle intervals and host calls in the columns `COLUMNS`, each sorted by start, longest
    first.

    `tables` are `dispatches`, `memory_copies`, `gaps` and `api_calls`; rows without times are left out. An idle
    interval is named by its cause, or `unknown` if a finding suspects unrecorded work in it, as in the shares.
    """
    dispatches, copies, gaps = (timed(tables[name]) for name in ("dispatches", "memory_copies", "gaps"))
    kernels = dispatches.select(
        *("device_id", "start_ns", "end_ns", "kernel_id", "iteration"),
        kind=pl.lit("kernel"),
        lane=_placed(dispatches, ("thread_id",) if on_cpu else ("queue_id", "stream_id"), "kernels"),
        number="dispatch_id",
        inside="parent_dispatch_id",
        short=pl.col("below_resolution"),
    )
    moved = copies.join(_copies_in_words(copies), on=("direction", "size_bytes"), nulls_equal=True).select(
        *("device_id", "start_ns", "end_ns"),
        kind=pl.lit("copy"),
        lane=_placed(copies, (), "copies"),
        number="copy_id",
        name="name",
    )
    idle = gaps.select(
        *("device_id", "start_ns", "end_ns"),
        kind=pl.lit("idle"),
        lane=_placed(gaps, (), "idle"),
        name=pl.when(pl.col("doubt").is_null()).then("cause").otherwise(pl.lit("unknown")),
    )
    rows = [_whole(one) for one in (kernels, moved, idle, _of_threads(timed(tables["api_calls"])))]
    return pl.concat(rows).sort("start_ns", "end_ns", descending=[False, True], maintain_order=True)


def lanes_in_order(rows: pl.DataFrame, judged: int | None) -> pl.DataFrame:
    """Return the lanes (lane, kind, device_id) in page order: the judged device first, host threads last.

    Each device has kernels, then copies, then idle time; threads are ordered by the total time of their calls.
    """
    order = {"kernel": 0, "copy": 1, "idle": 2, "call": 3}
    lanes = rows.group_by("lane", "kind", "device_id").agg(time=(pl.col("end_ns") - pl.col("start_ns")).sum())
    lanes = lanes.with_columns(pl.col("lane", "kind").cast(pl.String))
    on_host = pl.col("kind") == "call"
    return lanes.sort(
        on_host,
        (pl.col("device_id") != judged).fill_null(True),
        pl.col("device_id").fill_null(1 << 30),
        pl.col("kind").replace_strict(order, return_dtype=pl.Int8),
        pl.col("lane").str.starts_with(_OTHER_THREADS),
        pl.when(on_host).then(-pl.col("time")).otherwise(0),
        "lane",
    ).select("lane", "kind", "device_id")


def _whole(rows: pl.DataFrame) -> pl.DataFrame:
    missing = [pl.lit(None).alias(name) for name in COLUMNS if name not in rows.columns]
    return rows.with_columns(missing).select(pl.col(name).cast(dtype) for name, dtype in COLUMNS.items())


def _placed(rows: pl.DataFrame, places: Sequence[str], what: str) -> pl.Series:
    """Name the lanes: device and, as far as it is shown, the queue or stream; unknown parts are left out."""
    told = list(places)
    devices = max(rows.get_column("device_id").n_unique(), 1)
    while told and _most_places(rows, told) > min(MOST_LANES_OF_A_DEVICE, MOST_LANES_OF_KERNELS // devices):
        told.pop()
    where = [pl.format(f"{name.removesuffix('_id')} {{}}", pl.col(name)) for name in told]
    device = pl.format("Device {}", pl.col("device_id")).fill_null("Device unknown")
    named = pl.concat_str(device, pl.lit(what), *where, separator=", ", ignore_nulls=True).cast(COLUMNS["lane"])
    there = ("device_id", *told)
    lanes = rows.select(there).unique().with_columns(lane=named)
    return rows.select(there).join(lanes, on=there, how="left", nulls_equal=True, maintain_order="left")["lane"]


def _copies_in_words(copies: pl.DataFrame) -> pl.DataFrame:
    """Return each occurring direction and size with its `name`, such as `host_to_device, 2.0 KiB`."""
    found = copies.select("direction", "size_bytes").unique(maintain_order=True)
    said = [f"{direction or 'copy'}, {size(bytes_) or 'size unknown'}" for direction, bytes_ in found.iter_rows()]
    return found.with_columns(name=pl.Series(said, dtype=pl.String))


def _most_places(rows: pl.DataFrame, places: Sequence[str]) -> int:
    counts = rows.select("device_id", *places).unique().group_by("device_id").len().get_column("len")
    return int(counts.to_numpy().max()) if counts.len() else 0


def _of_threads(calls: pl.DataFrame) -> pl.DataFrame:
    """Return each thread's calls, without interpreter frames if there are others; combine the least busy threads."""
    thread = ("process_id", "thread_id")
    frame = pl.col("domain") == _FRAMES
    kept = calls.filter(~frame | frame.all().over(thread))
    length = (pl.col("end_ns") - pl.col("start_ns")).sum()
    busiest = kept.group_by(thread).agg(time=length).sort("time", *thread, descending=[True, False, False])
    several = kept.get_column("process_id").n_unique() > 1
    named = pl.concat_str(
        *([pl.format("process {}", pl.col("process_id"))] if several else []),
        pl.format("thread {}", pl.col("thread_id")).fill_null("thread unknown"),
        separator=", ",
    )
    named_threads = busiest.head(MOST_THREADS).select(*thread, lane=pl.concat_str(pl.lit("Host "), named))
    others = f"{_OTHER_THREADS} ({busiest.height - MOST_THREADS})"
    return kept.join(named_threads, on=thread, how="left", nulls_equal=True, maintain_order="left").select(
        "start_ns", "end_ns", "name", kind=pl.lit("call"), lane=pl.col("lane").fill_null(others), number="call_id"
    )


Times = npt.NDArray[np.int64]
#: Maximum number of individually drawn kernels and copies, and of host calls. Idle intervals lie between kernels.
DRAWN_ACTIVITIES: Final = 4500
DRAWN_CALLS: Final = 4000
#: Maximum number of activities for a single notable iteration.
_OF_AN_ITERATION: Final = 800


def drawn_windows(
    rows: pl.DataFrame, span: tuple[int, int], steady: int, iterations: Iterable[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return disjoint intervals [start, end) in order: the complete recording (`span`) if it is small enough.

    Otherwise the notable `iterations`, and the recording from `steady` on, each cut at its maximum number of
    activities. `rows` are those of `lanes.activities`.
    """
    running = rows.filter(pl.col("kind").is_in(["kernel", "copy"])).get_column("start_ns").to_numpy()
    calls = top_calls(rows).get_column("start_ns").to_numpy()
    if len(running) <= DRAWN_ACTIVITIES and len(calls) <= DRAWN_CALLS:
        return [span]
    wanted = [_as_far(running, calls, one, _OF_AN_ITERATION) for one in iterations]
    left = DRAWN_ACTIVITIES - sum(_begun(running, one) for one in wanted)
    wanted.append(_as_far(running, calls, (steady, span[1]), left))
    return _joined(wanted)


def top_calls(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the outermost calls of each thread, which cover all of its calls' time."""
    calls = rows.filter(pl.col("kind") == "call")
    before = pl.col("end_ns").cum_max().shift(1).over("lane")
    return calls.filter((pl.col("end_ns") > before).fill_null(True))


def inside_windows(rows: pl.DataFrame, windows: Sequence[tuple[int, int]]) -> pl.DataFrame:
    """Return the rows that overlap a window, or, without duration, begin in one; in their order."""
    start, end = pl.col("start_ns"), pl.col("end_ns")
    touches = [(start < last) & ((end > first) | (start >= first)) for first, last in windows]
    return rows.filter(pl.any_horizontal(touches))


# ---- inside ----------------------------------------------------------------------------------------------------------


def _as_far(running: Times, calls: Times, wanted: tuple[int, int], limit: int) -> tuple[int, int]:
    """Return the interval, cut so that at most `limit` activities, or the same fraction of calls, begin in it."""
    start, end = wanted
    for starts, most in ((running, limit), (calls, limit * DRAWN_CALLS // DRAWN_ACTIVITIES)):
        beyond = int(np.searchsorted(starts, start)) + most
        if beyond < len(starts):
            end = min(end, int(starts[beyond]))
    return start, max(end, start)


def _begun(starts: Times, window: tuple[int, int]) -> int:
    return int(np.diff(np.searchsorted(starts, window))[0])


def _joined(windows: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for start, end in sorted(one for one in windows if one[1] > one[0]):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return joined
