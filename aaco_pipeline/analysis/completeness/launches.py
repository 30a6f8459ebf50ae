"""Match host calls with device records: launches without a record, and records without a launch.

This includes waits for work launched before the recording began. `graphs` handles graph launches.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import polars as pl

from aaco_pipeline.analysis.completeness.findings import (
    ANSWER,
    BUSY,
    IDLE,
    KERNEL_SUMS,
    Finding,
    counted,
    of_total,
    whole_number,
)
from aaco_pipeline.analysis.completeness.findings import milliseconds as ms
from aaco_pipeline.analysis.timeline.host_waits import Waits

#: HIP, CUDA runtime and CUDA driver calls that launch a kernel.
_KERNEL_LAUNCH: Final = r"^(?:hip|cuda|cu)\w*Launch(?:Cooperative)?Kernel"
_GRAPH_LAUNCH: Final = r"^(?:hip|cuda|cu)GraphLaunch"
_BEGIN_CAPTURE: Final = r"^(?:hip|cuda|cu)StreamBeginCapture"
_END_CAPTURE: Final = r"^(?:hip|cuda|cu)StreamEndCapture"
_COPY: Final = r"^(?:hip|cuda|cu)Mem(?:cpy|set)"
_WAIT_EVENT: Final = r"^(?:hip|cuda|cu)StreamWaitEvent"
_THREAD: Final = ("process_id", "thread_id")
#: How to record every launch; the second part is for releases that lose records of graph replays.
RECORD_AGAIN: Final = "record fewer steps, with a warm-up step before them: {few_steps}"
_WARM_UP: Final = (
    "start recording after a wait for the device (torch.cuda.synchronize() or hipDeviceSynchronize()) and keep a "
    "warm-up step: {warm_up}"
)


def launches(calls: pl.DataFrame, activities: pl.DataFrame, aside: pl.DataFrame) -> pl.DataFrame:
    """List the outermost launching calls; a driver call inside a runtime call belongs to the latter.

    Columns: call_id, process_id, thread_id, start_ns, end_ns, kind (`kernel`, `graph` or `copy`), capture (number of
    the graph capture around it; null outside any), records (number of its activities, including those of inner calls).

    Args:
        calls: From `timeline.activities`.
        activities: From `timeline.activities`.
        aside: Dispatches that are records but not activities: without usable times, or inside another dispatch.
    """
    names = calls.get_column("name").unique().cast(pl.String)
    kind = (
        pl.when(_named(names, _GRAPH_LAUNCH))
        .then(pl.lit("graph"))
        .when(_named(names, _KERNEL_LAUNCH))
        .then(pl.lit("kernel"))
        .when(_named(names, _COPY))
        .then(pl.lit("copy"))
    )
    own = calls.with_columns(kind=kind).drop_nulls("kind").sort("process_id", "thread_id", "start_ns", "end_ns")
    reached = pl.col("end_ns").cum_max().shift(1).over(_THREAD)
    outer = (pl.col("start_ns") >= reached).fill_null(True)
    own = own.with_columns(outer=pl.when(outer).then("call_id").forward_fill().over(_THREAD))
    key = ["process_id", "correlation_id"]
    others = aside.select(key).drop_nulls().join(calls.select("call_id", *key), on=key).select("call_id")
    linked = pl.concat([activities.select("call_id").drop_nulls(), others])
    links = linked.group_by("call_id").agg(n=pl.len().cast(pl.Int64))
    records = own.join(links, on="call_id", how="left").group_by("outer").agg(records=pl.col("n").fill_null(0).sum())
    first = own.filter(pl.col("call_id") == pl.col("outer")).drop("outer")
    first = first.join(records, left_on="call_id", right_on="outer", how="left", maintain_order="left")
    return _with_captures(first, calls, names).select(
        "call_id", *_THREAD, "start_ns", "end_ns", "kind", "capture", "records"
    )


def before_recording(activities: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Find the activities launched before the recording of host calls began.

    A stream runs in order: an activity without a recorded launch that began before the stream's first activity with a
    launch was launched before it. On a stream without any recorded launch, this applies to activities that began before
    the process's first recorded call. Without recorded calls the result is empty.
    """
    lane = ["process_id", "device_id", "stream_id"]
    linked = activities.drop_nulls("call_id")
    first = linked.group_by(lane).agg(first_ns=pl.col("start_ns").min())
    recorded = calls.group_by("process_id").agg(calls_from_ns=pl.col("start_ns").min())
    unlinked = activities.filter(pl.col("call_id").is_null()).join(recorded, on="process_id")
    placed = unlinked.join(first, on=lane, how="left", nulls_equal=True)
    # On a stream without linked activities: work that began before the first recorded call.
    until = pl.coalesce("first_ns", "calls_from_ns")
    return placed.filter(pl.col("start_ns") < until).drop("first_ns", "calls_from_ns")


def of_before_recording(early: pl.DataFrame) -> Iterator[Finding]:
    """Find work that was launched before the recording of host calls began, per process."""
    for (process,), own in early.group_by("process_id", maintain_order=True):
        length = int((own.get_column("end_ns") - own.get_column("start_ns")).sum())
        yield Finding(
            "launched_before_recording",
            "bound",
            f"process {process}",
            f"{counted(own.height, 'device activity', 'device activities')} of {ms(length)} in all "
            f"{'was' if own.height == 1 else 'were'} launched before the first host call that was recorded: no "
            "launch is known of them, and they begin before every activity of their stream that has one.",
            _WARM_UP,
            process_id=whole_number(process),
            start_ns=whole_number(own.get_column("start_ns").min()),
            end_ns=whole_number(own.get_column("end_ns").max()),
            records=own.height,
            at_least=("session_metrics.exposed_launch", "session_metrics.exposed_launch_ratio"),
        )


def of_calls_missing(activities: pl.DataFrame, early: pl.DataFrame, launched: pl.DataFrame) -> Iterator[Finding]:
    """Find records in mid-recording without a launching call, for processes whose launches are recorded."""
    processes = launched.filter(pl.col("kind") != "copy").get_column("process_id").unique()
    key = ["activity_kind", "activity_id"]
    unlinked = activities.filter(pl.col("call_id").is_null() & pl.col("process_id").is_in(processes.implode()))
    for (process,), own in unlinked.join(early, on=key, how="anti").group_by("process_id", maintain_order=True):
        total = activities.filter(pl.col("process_id") == process).height
        yield Finding(
            "launch_calls_missing",
            "bound",
            f"process {process}",
            f"{of_total(own.height, total)} device activities have no launching call in the recording, though it holds "
            "launches from before they began.",
            RECORD_AGAIN,
            process_id=whole_number(process),
            records=own.height,
            at_least=("session_metrics.exposed_launch", "session_metrics.exposed_launch_ratio"),
        )


def of_unrecorded(
    launched: pl.DataFrame,
    activities: pl.DataFrame,
    calls: pl.DataFrame,
    synchronizations: pl.DataFrame,
    nameless: Mapping[int, int],
) -> Iterator[Finding]:
    """Interpret launches without a record, per process: nothing recorded, the first ones lost, one stream, or some.

    `nameless` counts, by process, the records without a launch, which some tracers write for collectives. That many
    launches may have left one; only the rest are certainly lost.
    """
    run = launched.filter((pl.col("kind") != "copy") & pl.col("capture").is_null())
    for (process,), own in run.group_by("process_id", maintain_order=True):
        number = whole_number(process)
        there = activities.filter(pl.col("process_id") == number)
        plain = own.filter(pl.col("kind") == "kernel").sort("start_ns")
        if not there.height:
            yield _nothing_recorded(own, number, others=activities.height > 0)
            continue
        lost = plain.filter(pl.col("records") == 0)
        if lost.height <= nameless.get(number if number is not None else -1, 0):
            continue
        own_calls, own_waits = (one.filter(pl.col("process_id") == number) for one in (calls, synchronizations))
        yield from _lost(number, plain, lost, there, calls=own_calls, synchronizations=own_waits)


def _lost(
    process: int | None,
    plain: pl.DataFrame,
    lost: pl.DataFrame,
    there: pl.DataFrame,
    *,
    calls: pl.DataFrame,
    synchronizations: pl.DataFrame,
) -> Iterator[Finding]:
    """Interpret the `lost` ones among a process's `plain` launches, given its activities `there`."""
    device = _only(there.get_column("device_id"))
    kept = plain.filter(pl.col("records") > 0)
    leading, trailing = _edges(lost, kept)
    share = of_total(lost.height, plain.height)
    yield Finding(
        "launches_unrecorded",
        "fault",
        f"process {process}",
        f"{share} kernel launches left no record: their host calls are there, and no device activity names them.",
        RECORD_AGAIN,
        start_ns=whole_number(lost.get_column("start_ns").min()),
        end_ns=whole_number(lost.get_column("end_ns").max()),
        records=lost.height,
        at_least=(*BUSY, *KERNEL_SUMS),
        at_most=IDLE,
        process_id=process,
        device_id=device,
    )
    if leading.height:
        yield Finding(
            "first_kernels_dropped",
            "fault",
            f"process {process}",
            f"the first {counted(leading.height, 'kernel launch', 'kernel launches')} of {plain.height:,} left no "
            "record, and later ones did: the recording of device work began late.",
            _WARM_UP,
            start_ns=whole_number(leading.get_column("start_ns").min()),
            end_ns=whole_number(kept.get_column("start_ns").min()),
            records=leading.height,
            at_least=(*BUSY, *KERNEL_SUMS),
            at_most=IDLE,
            process_id=process,
            device_id=device,
        )
    if leading.height or trailing.height:
        where = " and ".join(
            words for words, edge in (("before the first", leading), ("after the last", trailing)) if edge.height
        )
        first, last = (whole_number(value) for value in (there["start_ns"].min(), there["end_ns"].max()))
        yield Finding(
            "false_idle_at_edges",
            "bound",
            f"process {process}",
            f"{counted(leading.height + trailing.height, 'kernel launch', 'kernel launches')} {where} launch that has "
            f"a record: idle time before {first} ns or after {last} ns may be work that was not recorded.",
            _WARM_UP,
            records=leading.height + trailing.height,
            at_least=("timeline.active_ratio",),
            process_id=process,
            device_id=device,
        )
    if why := _why_a_stream(lost, kept, there, calls, synchronizations):
        yield Finding(
            "stream_missing",
            "fault",
            f"process {process}",
            f"{why}; {share} kernel launches left no record.",
            "upgrade the profiler (of ROCm 7.0.2 or later), or record with one stream and compare: {everything}",
            records=lost.height,
            voids=ANSWER,
            at_least=(*BUSY, *KERNEL_SUMS, "timeline.overlapped_ns"),
            at_most=IDLE,
            process_id=process,
            device_id=device,
        )


def _nothing_recorded(own: pl.DataFrame, process: int | None, *, others: bool) -> Finding:
    """Report a process without device activity; with activities of `others`, the known busy time is a lower bound."""
    return Finding(
        "no_device_events",
        "fault",
        f"process {process}",
        f"{counted(own.height, 'launch', 'launches')} of kernels or graphs {'was' if own.height == 1 else 'were'} "
        "recorded, and no device activity at all.",
        "record the device, too: {everything}",
        process_id=process,
        records=own.height,
        voids=ANSWER if others else (*ANSWER, *BUSY, "kernel_stats.share_ratio"),
        at_least=(*BUSY, *KERNEL_SUMS) if others else (),
        at_most=IDLE if others else (),
    )


def _edges(lost: pl.DataFrame, kept: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the lost launches before the first and after the last one with a record."""
    if not kept.height:
        return lost.clear(), lost.clear()
    first, last = kept.get_column("start_ns").min(), kept.get_column("start_ns").max()
    return lost.filter(pl.col("start_ns") < first), lost.filter(pl.col("start_ns") > last)


def _why_a_stream(
    lost: pl.DataFrame, kept: pl.DataFrame, there: pl.DataFrame, calls: pl.DataFrame, synchronizations: pl.DataFrame
) -> str | None:
    """Return evidence that the lost launches belong to one stream; None without any."""
    streams = there.get_column("stream_id").drop_nulls().unique()
    named = pl.concat([synchronizations.get_column(name) for name in ("stream_id", "waited_stream_id")])
    silent = named.drop_nulls().unique().filter(~named.drop_nulls().unique().is_in(streams.implode()))
    if len(silent):
        return f"waits name {counted(len(silent), 'stream')} on which nothing is recorded"
    threads = [frame.get_column("thread_id").unique().drop_nulls() for frame in (lost, kept)]
    alone = threads[0].filter(~threads[0].is_in(threads[1].implode()))
    if len(alone) and kept.height:
        return f"no launch of {counted(len(alone), 'thread')} left a record, while those of other threads did"
    names = calls.get_column("name").unique().cast(pl.String)
    if len(streams) == 1 and names.str.contains(_WAIT_EVENT).any():
        return "streams wait for events of one another, and records are of one stream alone"
    return None


def _with_captures(first: pl.DataFrame, calls: pl.DataFrame, names: pl.Series) -> pl.DataFrame:
    """Add the number of the graph capture on the launching thread that contains each launch."""
    begun = calls.filter(_named(names, _BEGIN_CAPTURE)).select(*_THREAD, begun_ns="start_ns", capture="call_id")
    over = calls.filter(_named(names, _END_CAPTURE)).select(*_THREAD, over_ns="end_ns")
    if not begun.height:
        return first.with_columns(capture=pl.lit(None, pl.Int32))
    spans = begun.sort("begun_ns").join_asof(
        over.sort("over_ns"),
        left_on="begun_ns",
        right_on="over_ns",
        by=list(_THREAD),
        strategy="forward",
        check_sortedness=False,
    )
    placed = first.sort("start_ns").join_asof(
        spans, left_on="start_ns", right_on="begun_ns", by=list(_THREAD), strategy="backward", check_sortedness=False
    )
    inside = (pl.col("start_ns") < pl.col("over_ns")).fill_null(True) & pl.col("begun_ns").is_not_null()
    return placed.with_columns(capture=pl.when(inside).then("capture"))


def _named(names: pl.Series, pattern: str) -> pl.Expr:
    """Return whether a call's name matches; few names, many calls."""
    return pl.col("name").cast(pl.String).is_in(names.filter(names.str.contains(pattern)).implode())


def _only(values: pl.Series) -> int | None:
    """Return the only value; None if there are several or none."""
    known = values.drop_nulls().unique()
    return whole_number(known.item()) if len(known) == 1 else None


#: A shorter wait may be the runtime's own work between a call and its copy.
_LONG_NS: Final = 1_000_000
#: A copy call takes at most this multiple of the copy's time to prepare it, as with pageable memory.
_PREPARING: Final = 10
_MEND: Final = (
    "wait for the device (torch.cuda.synchronize() or hipDeviceSynchronize()) right before recording begins, with a "
    "warm-up step: {warm_up}"
)


def of_first_waits(activities: pl.DataFrame, waits: Waits) -> Iterator[Finding]:
    """Find each process's first blocking call if it waited long without any recorded cause.

    Every later wait finds older work finished. The runtime must have run something earlier, because a process's first
    call initializes it. If a call waited for its copy to begin, whatever delayed the copy had run before, since a
    stream runs in order. This is inferred: no record shows the work.
    """
    first = waits.calls.sort("start_ns", "call_id").unique("process_id", keep="first", maintain_order=True)
    for process, call, start, end in first.select("process_id", "call_id", "start_ns", "end_ns").iter_rows():
        there = activities.filter(pl.col("process_id") == process)
        own = there.filter((pl.col("call_id") == call) & (pl.col("activity_kind") == "memory_copy"))
        until = own.get_column("start_ns").min() if own.height else end
        before = there.filter(pl.col("start_ns") < start)
        if not isinstance(until, int) or not before.height:
            continue
        # The wait may be for work that began before it; nothing is recorded between its end and the next work.
        reached = before.get_column("end_ns").max()
        since = max(start, reached) if isinstance(reached, int) else start
        following = there.filter(pl.col("start_ns") >= since).sort("start_ns").head(1)
        if following.height and following.item(0, "start_ns") < until:
            if (following.item(0, "call_start_ns") or start) > start:
                continue  # launched by another thread during the wait: no evidence of earlier work
            until = following.item(0, "start_ns")
        length = (own.get_column("end_ns") - own.get_column("start_ns")).sum() if own.height else 0
        if until - since <= max(_LONG_NS, _PREPARING * int(length)):
            continue
        what = f"a copy that takes {ms(int(length))}" if own.height else "a wait"
        yield Finding(
            "wait_for_unrecorded_work",
            "bound",
            f"process {process}",
            f"the first blocking call of the recording, {what}, took {ms(end - start)}, and for {ms(until - since)} of "
            "it no device activity is recorded, though nothing recorded was left to wait for: most likely it waited "
            "for work launched before the recording began.",
            _MEND,
            "inferred",
            process_id=process,
            device_id=_only(there.get_column("device_id")),
            start_ns=since,
            end_ns=until,
            records=1,
            at_least=("timeline.busy_ns", "timeline.active_ratio", "session_metrics.active_ratio"),
            at_most=IDLE,
        )
