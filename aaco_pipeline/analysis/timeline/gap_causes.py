"""Assign one cause to each gap of device idle time, and compute the cost of launching.

`device_timeline` computes how busy the device was.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from aaco_pipeline.analysis.thresholds import LAUNCH_SIZED_NS
from aaco_pipeline.analysis.timeline.activities import OPERATOR_DOMAIN, launching, once_per_call, row_before
from aaco_pipeline.analysis.timeline.device_timeline import FIRST_TO_LAST, Coverage, bounds, coverage
from aaco_pipeline.analysis.timeline.host_waits import Waits

SYNC: Final = "sync"
HOST_WAIT: Final = "host_wait"
LAUNCH_LATENCY: Final = "launch_latency"
DEPENDENCY: Final = "dependency"
KERNEL_KERNEL: Final = "kernel_kernel"
UNKNOWN: Final = "unknown"
Numbers = npt.NDArray[np.int64]
_THREAD: Final = ("process_id", "thread_id")


def gaps(activities: pl.DataFrame, api_calls: pl.DataFrame, waits: Waits) -> pl.DataFrame:
    """Return the gaps between each device's first and last activity, each with the first cause that applies.

    P is the end of the work before, L the call that launched the next activity. `sync`: L's thread was in a blocking
    call at P. `host_wait`: L began after P. `launch_latency`: L had begun, but was still open at P or had begun less
    before P than a launch onto an empty stream takes to arrive. `dependency`: the activity waited, through an event
    or a shared hardware queue, for work that ended at P or later. `kernel_kernel`: the gap is no longer than those
    between activities launched in time. `unknown`: none of these, or no launch is known. `activities` and `waits` come
    from `activities` and `host_waits`. Gaps and busy time together are the window, exactly.

    In addition to the columns of the table `gaps`: in_launch_calls_ns, in_launching_operators_ns and outside_ns divide
    the gap by the launching thread's location; null if no launch is known. launches_since_wait counts the thread's
    launches between the blocking calls around the gap's own launch; null if the launch is unknown or its thread never
    waits.
    """
    idle = _idle(activities)
    found = (
        idle.hstack(_facts(activities, waits)[idle.get_column("next_activity")].drop("activity"))
        .pipe(_with_blocking_call, waits)
        .pipe(_with_thresholds, _thresholds(activities))
        .with_columns(cause=_CAUSE)
        .pipe(_with_host, activities, api_calls)
        .join(_launches_since_wait(activities, waits), on="call_id", how="left")
    )
    named = activities.select("activity", kind=pl.col("activity_kind").cast(pl.String), number="activity_id")
    for side in ("previous", "next"):
        columns = {"kind": f"{side}_activity_kind", "number": f"{side}_activity_id", "activity": f"{side}_activity"}
        found = found.join(named.rename(columns), on=f"{side}_activity", how="left")
    call = pl.when(pl.col("cause") == SYNC).then("blocking_call_id").when(pl.col("cause") != UNKNOWN).then("call_id")
    return found.sort("device_id", "start_ns").select(*_GAPS, call.alias("host_call_id"), *_MORE)


def _idle(activities: pl.DataFrame) -> pl.DataFrame:
    """Return the gaps with their adjacent activities: the last one to end opens a gap, the next one closes it."""
    reached = pl.col("end_ns").cum_max().shift(1).over("device_id")
    latest = pl.when((pl.col("end_ns") > reached).fill_null(True)).then("activity")
    return (
        activities.drop_nulls("device_id")
        .with_columns(reached=reached, latest=latest)
        .with_columns(pl.col("latest").forward_fill().shift(1).over("device_id"))
        .filter(pl.col("start_ns") > pl.col("reached"))
        .select(
            "device_id", start_ns="reached", end_ns="start_ns", previous_activity="latest", next_activity="activity"
        )
    )


def _facts(activities: pl.DataFrame, waits: Waits) -> pl.DataFrame:
    """Each activity's launch, whether it is the launch's first one, and until when other streams delayed it."""
    ended = activities.select("end_ns", source="activity")
    by_event = (
        waits.handed_over.join(ended, on="source").group_by(activity="target").agg(by_event=pl.col("end_ns").max())
    )
    before = row_before(activities, ("process_id", "device_id", "queue_id"))
    own = pl.col("stream_id"), pl.col("stream_id").gather(before)
    other = own[0].ne_missing(own[1]) & pl.col("queue_id").is_not_null()
    by_queue = pl.when(other).then(pl.col("end_ns").gather(before))
    # Activities of a device are sorted by start.
    first = pl.col("call_id").is_first_distinct()
    facts = activities.select("activity", *_LAUNCH, first_of_call=first, by_queue=by_queue)
    facts = facts.join(by_event, on="activity", how="left", maintain_order="left")
    return facts.with_columns(held_until_ns=pl.max_horizontal("by_event", "by_queue")).rename(
        {"call_thread_id": "thread_id"}
    )


def _with_blocking_call(found: pl.DataFrame, waits: Waits) -> pl.DataFrame:
    """Add the blocking call of the launching thread that was active when the device became idle."""
    calls = waits.calls.select(
        pl.col(_THREAD).fill_null(-1), opened_ns="start_ns", closed_ns="end_ns", blocking_call_id="call_id"
    ).sort("opened_ns")
    left = found.with_columns(pl.col(_THREAD).fill_null(-1)).sort("start_ns")
    joined = left.join_asof(
        calls, left_on="start_ns", right_on="opened_ns", by=list(_THREAD), strategy="backward", check_sortedness=False
    )
    open_then = pl.col("closed_ns") >= pl.col("start_ns")
    return joined.with_columns(pl.when(open_then).then("blocking_call_id"))


def _thresholds(activities: pl.DataFrame) -> pl.DataFrame:
    """Typical times on each device, from its own launches.

    The typical launch latency is the median over launches that found their stream empty. A gap between activities
    launched in time is typical up to the upper outer fence of these gaps (Tukey 1977), Q3 + 3 (Q3 - Q1). Quartiles by
    nearest rank; null below two observations.
    """
    before = row_before(activities, ("process_id", "device_id", "stream_id"))
    own = activities.with_columns(before_ns=pl.col("end_ns").gather(before)).drop_nulls("device_id")
    distance = pl.col("start_ns") - pl.col("before_ns")
    empty = (pl.col("before_ns") <= pl.col("call_start_ns")).fill_null(True) & pl.col("call_id").is_not_null()
    latency = pl.col("start_ns") - pl.col("call_start_ns")
    queued = (pl.col("call_end_ns") <= pl.col("before_ns")) & (distance >= 0)
    low, high = (_nearest_rank(distance, share) for share in (0.25, 0.75))
    middle = _nearest_rank(latency, 0.5)
    chosen = (
        (LAUNCH_LATENCY, own.filter(empty & (latency >= 0)), middle),
        (KERNEL_KERNEL, own.filter(queued), high + 3 * (high - low)),
    )
    return pl.concat(
        observed.group_by("device_id", maintain_order=True).agg(
            which=pl.lit(which), value_ns=pl.when(pl.len() >= 2).then(value)
        )
        for which, observed, value in chosen
    )


def _nearest_rank(value: pl.Expr, share: float) -> pl.Expr:
    return value.sort().get((pl.len() * share).ceil().cast(pl.Int64).clip(lower_bound=1) - 1)


def _with_thresholds(found: pl.DataFrame, thresholds: pl.DataFrame) -> pl.DataFrame:
    for which, column in ((LAUNCH_LATENCY, "ordinary_launch_ns"), (KERNEL_KERNEL, "ordinary_gap_ns")):
        own = thresholds.filter(pl.col("which") == which).select("device_id", pl.col("value_ns").alias(column))
        found = found.join(own, on="device_id", how="left", maintain_order="left")
    return found


def _with_host(found: pl.DataFrame, activities: pl.DataFrame, api_calls: pl.DataFrame) -> pl.DataFrame:
    """Add the launching thread's time in calls that launch, in their operators, and elsewhere."""
    calls = launching(api_calls, activities)
    operators = api_calls.filter(pl.col("domain") == OPERATOR_DOMAIN)
    parts = [
        found.filter(pl.col("call_id").is_null()).with_columns(pl.lit(None, pl.Int64).alias(name) for name in _HOST)
    ]
    threads = found.drop_nulls("call_id").partition_by(_THREAD, as_dict=True)
    for (process, thread), own in threads.items():
        there = (pl.col("process_id") == process) & (pl.col("thread_id").fill_null(-1) == thread)
        in_calls, in_either = _coverages(calls.filter(there), operators.filter(there))
        starts, ends = bounds(own)
        called, either = in_calls.between(starts, ends), in_either.between(starts, ends)
        columns = dict(zip(_HOST, (called, either - called, ends - starts - either), strict=True))
        parts.append(own.with_columns(pl.Series(name, values, pl.Int64) for name, values in columns.items()))
    return pl.concat(parts)


def _launches_since_wait(activities: pl.DataFrame, waits: Waits) -> pl.DataFrame:
    """Number of launches between the same two waits, by call_id, for launches of threads that ever wait.

    A copy that waits is also a launch, and counts before its own wait.
    """
    thread = pl.col(_THREAD).fill_null(-1)
    waiting = waits.calls.select(thread, waited_ns="start_ns").sort("waited_ns").partition_by(_THREAD, as_dict=True)
    launched = once_per_call(activities).select(
        "call_id", pl.col("process_id").fill_null(-1), pl.col("call_thread_id").fill_null(-1), at_ns="call_start_ns"
    )
    found = [pl.DataFrame(schema={"call_id": launched.schema["call_id"], "launches_since_wait": pl.Int64})]
    for (process, on_thread), own in waiting.items():
        there = launched.filter((pl.col("process_id") == process) & (pl.col("call_thread_id") == on_thread))
        interval = np.searchsorted(own.get_column("waited_ns").to_numpy(), there.get_column("at_ns").to_numpy())
        number = np.bincount(interval, minlength=1)[interval]
        found.append(there.select("call_id", launches_since_wait=pl.Series(number, dtype=pl.Int64)))
    return pl.concat(found)


def _coverages(calls: pl.DataFrame, operators: pl.DataFrame) -> tuple[Coverage, Coverage]:
    """Return a thread's time in launching calls, and in these or in an operator that contains one."""
    begun = np.sort(calls.get_column("start_ns").to_numpy())
    starts, ends = bounds(operators)
    launching = np.searchsorted(begun, ends, side="left") > np.searchsorted(begun, starts, side="left")
    times = ["start_ns", "end_ns"]
    either = pl.concat([calls.select(times), operators.filter(pl.Series(launching)).select(times)])
    return coverage(calls), coverage(either)


_LAUNCH: Final = ("call_id", "process_id", "call_thread_id", "call_start_ns", "call_end_ns")
_HOST: Final = ("in_launch_calls_ns", "in_launching_operators_ns", "outside_ns")
_MORE: Final = (*_HOST, "launches_since_wait")
_GAPS: Final = (
    *("device_id", "start_ns", "end_ns", "cause", "previous_activity_kind", "previous_activity_id"),
    *("next_activity_kind", "next_activity_id"),
)
_LATE: Final = pl.col("call_start_ns") > pl.col("start_ns")
_FRESH: Final = (pl.col("call_end_ns") > pl.col("start_ns")) | (
    pl.col("start_ns") - pl.col("call_start_ns") < pl.col("ordinary_launch_ns")
)
_CAUSE: Final = (
    pl.when(_LATE & pl.col("blocking_call_id").is_not_null())
    .then(pl.lit(SYNC))
    .when(_LATE)
    .then(pl.lit(HOST_WAIT))
    .when(pl.col("first_of_call") & _FRESH & pl.col("call_id").is_not_null())
    .then(pl.lit(LAUNCH_LATENCY))
    .when((pl.col("held_until_ns") >= pl.col("start_ns")) & pl.col("call_id").is_not_null())
    .then(pl.lit(DEPENDENCY))
    .when((pl.col("end_ns") - pl.col("start_ns") <= pl.col("ordinary_gap_ns")) & pl.col("call_id").is_not_null())
    .then(pl.lit(KERNEL_KERNEL))
    .otherwise(pl.lit(UNKNOWN))
)


def launch_cost(activities: pl.DataFrame, timeline: pl.DataFrame) -> "LaunchCost":
    """Compute the launch cost of each device over its first-to-last window.

    Columns of `devices`: device_id, window_ns, busy_ns, api_ns (time inside the calls that launched, summed, calls of
    several activities once), launch_latency_ns (from the call to the start, summed over launches that found their
    stream empty), exposed_launch_ns (the part of those intervals in which the device was idle, overlap counted once)
    and exposed_launch_ratio (of the window), launches, unlinked (activities without a known launch), dispatches; and
    for comparison with other tools micro_kernel_ratio (dispatches below 10 us over all), dispatch_rate_per_s
    (dispatches over last end minus first start) and launch_tax_score (micro_kernel_ratio times dispatch_rate_per_s /
    1000: unbounded, in kHz, and independent of whether anything waited for a launch). Launch costs and the score are
    null on a device without any known launch; where only some are known, the costs are a lower bound.

    Args:
        activities: From `activities.device_activities`.
        timeline: From `device_timeline.timeline`.
    """
    first = _first_of_empty(activities)
    windows = timeline.filter(pl.col("window_rule") == FIRST_TO_LAST).select(
        "device_id",
        "window_start_ns",
        "window_end_ns",
        "busy_ns",
        window_ns=pl.col("window_end_ns") - pl.col("window_start_ns"),
    )
    latency = first.group_by("device_id").agg(launch_latency_ns=(pl.col("start_ns") - pl.col("call_start_ns")).sum())
    linked = activities.group_by("device_id").agg(unlinked=pl.col("call_id").null_count().cast(pl.Int64))
    calls = _launches(activities)
    called = calls.group_by("device_id").agg(
        api_ns=(pl.col("call_end_ns") - pl.col("call_start_ns")).sum(), launches=pl.len().cast(pl.Int64)
    )
    devices = windows.with_columns(exposed_launch_ns=_exposed(activities, first, windows))
    for frame in (latency, called, linked, _predecessors(activities)):
        devices = devices.join(frame, on="device_id", how="left")
    ratio = pl.when(pl.col("window_ns") > 0).then(pl.col("exposed_launch_ns") / pl.col("window_ns"))
    devices = devices.with_columns(pl.col("launches", "dispatches").fill_null(0))
    known = pl.when(pl.col("launches") > 0)
    devices = devices.with_columns(
        known.then(pl.col("launch_latency_ns").fill_null(0)),
        *(known.then(name).alias(name) for name in ("exposed_launch_ns", "launch_tax_score")),
    )
    devices = devices.with_columns(exposed_launch_ratio=ratio).drop("window_start_ns", "window_end_ns")
    return LaunchCost(devices.sort("device_id"))


@dataclass(frozen=True)
class LaunchCost:
    """Return the launch cost, one row per device."""

    devices: pl.DataFrame

    @property
    def busiest(self) -> Mapping[str, Any] | None:
        """Return the row of the device with the most busy time (ties: the first); None without devices.

        A session's figures are this device's: a sum over devices would not be elapsed time.
        """
        ordered = self.devices.sort("busy_ns", "device_id", descending=[True, False], nulls_last=True)
        return ordered.row(0, named=True) if ordered.height else None


def _launches(activities: pl.DataFrame) -> pl.DataFrame:
    """Return one activity of each launching call, for every device onto which it launched."""
    linked = activities.select("device_id", "call_id", "call_start_ns", "call_end_ns").drop_nulls("call_id")
    if once_per_call(linked).height == linked.height:
        return linked
    return linked.unique(["device_id", "call_id"])


def _first_of_empty(activities: pl.DataFrame) -> pl.DataFrame:
    """Return the first activity of each call that found its stream empty."""
    ended = pl.col("end_ns").gather(row_before(activities, ("process_id", "device_id", "stream_id")))
    empty = (ended <= pl.col("call_start_ns")).fill_null(True)
    found = activities.with_columns(empty=empty, first=pl.col("call_id").is_first_distinct()).drop_nulls(
        ["device_id", "call_id"]
    )
    return found.filter(pl.col("empty") & pl.col("first") & (pl.col("start_ns") >= pl.col("call_start_ns")))


def _exposed(activities: pl.DataFrame, first: pl.DataFrame, windows: pl.DataFrame) -> pl.Series:
    """|launches and busy| - |busy| within each window: the time of launches without device work."""
    exposed = []
    for window in windows.partition_by("device_id"):
        at, device = window.select(start_ns="window_start_ns", end_ns="window_end_ns"), window.item(0, "device_id")
        own = activities.filter(device_id=device).select("start_ns", "end_ns")
        launches = first.filter(device_id=device).select(start_ns="call_start_ns", end_ns="start_ns")
        exposed.append(coverage(pl.concat([own, launches])).within(at) - coverage(own).within(at))
    return pl.Series("exposed_launch_ns", exposed, pl.Int64)


def _predecessors(activities: pl.DataFrame) -> pl.DataFrame:
    """Figures that earlier tools reported per device; null without dispatches or time."""
    micro = (pl.col("end_ns") - pl.col("start_ns") < LAUNCH_SIZED_NS).mean()
    span = pl.col("end_ns").max() - pl.col("start_ns").min()
    rate = pl.when(span > 0).then(pl.len() / (span / 1e9))
    return (
        activities.filter(pl.col("activity_kind") == "dispatch")
        .group_by("device_id")
        .agg(
            micro_kernel_ratio=micro,
            dispatch_rate_per_s=rate,
            launch_tax_score=micro * rate / 1000,
            dispatches=pl.len().cast(pl.Int64),
        )
    )
