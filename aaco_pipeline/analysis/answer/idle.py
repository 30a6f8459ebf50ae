"""Idle time in parts, by the edge that binds what comes next and by what the host did meanwhile.

`shares` puts the parts together into shares; `savings` asks of each part whether it goes with a cause.
"""

from dataclasses import dataclass
from typing import Final

import polars as pl

from aaco_pipeline.analysis.timeline.device_timeline import Coverage

#: Host work between two launches that is no longer than this is the framework on its way to the next launch.
LAUNCH_PACE_NS: Final = 30_000
#: So is longer work of a thread that gets on faster than that, up to the time of so many of its launches: what a
#: framework does between its layers is a few of them, what a program does beside launching is many.
_LAUNCHES_MISSED: Final = 16
#: The way from a wait's end to the next launch is the wait's; what takes longer, and most of the idle time, is work of
#: the host's own.
RESTART_NS: Final = 1_000_000
#: After a wait that drained the queue, so many launches are made before the host can have run ahead of the device.
LAUNCHES_TO_RUN_AHEAD: Final = 8
#: Parts of idle time. `wait`: a blocking call or another stream holds the device. `restart`: the first launches after
#: it. `waited_work`: the host's own long work behind a wait, before it launches again. `pace`: launching, and short
#: work of the host between two launches. `work`: the host's own long work between launches.
PARTS: Final = ("wait", "restart", "waited_work", "pace", "work")
_WAITS: Final = ("sync", "dependency")


@dataclass(frozen=True)
class Host:
    """What the threads that launch do in a window.

    `long_ns`: from which length on host work between two launches is its own. `working_ns`: all work that long, also
    beside a busy device. `pace_ns`: all time from one kernel's launch to the next with no wait or long work between,
    and of launches with one the call alone.
    """

    long_ns: int
    working_ns: int
    pace_ns: int


def host_in(activities: pl.DataFrame, api_calls: pl.DataFrame, waiting: pl.DataFrame, pieces: pl.DataFrame) -> Host:
    """What the launching threads of `activities` (one device's, as `recorded` has them) do within `pieces`.

    `waiting` are call_ids of calls that hold the thread: waits, allocations. Work is what lies between calls of all
    launching threads together, for a thread that waits for another one does not work.
    """
    launches = _launches(activities, api_calls, waiting, pieces)
    between = launches.drop_nulls("next_ns").filter(~pl.col("held"))
    pace = between.select((pl.col("next_ns") - pl.col("at_ns")).median()).item()
    long_ns = LAUNCH_PACE_NS
    if pace is not None and pace <= LAUNCH_PACE_NS:
        long_ns = max(LAUNCH_PACE_NS, round(_LAUNCHES_MISSED * pace))
    pauses = _pauses(launches, api_calls, pieces).filter(pl.col("end_ns") - pl.col("start_ns") > long_ns)
    worked = between.sort("at_ns").join_asof(
        pauses.select(paused_ns="start_ns").sort("paused_ns"),
        left_on="at_ns",
        right_on="paused_ns",
        strategy="forward",
        check_sortedness=False,
    )
    on_its_way = worked.filter(pl.col("paused_ns").is_null() | (pl.col("paused_ns") >= pl.col("next_ns")))
    paced = launches.join(on_its_way.select("at_ns", paced="next_ns"), on="at_ns", how="left")
    return Host(
        long_ns,
        int(pauses.select((pl.col("end_ns") - pl.col("start_ns")).sum()).item() or 0),
        int(paced.select((pl.coalesce("paced", "returned_ns") - pl.col("at_ns")).sum()).item() or 0),
    )


def idle_parts(gaps: pl.DataFrame, api_calls: pl.DataFrame, window: Coverage, long_ns: int) -> pl.DataFrame:
    """Per gap, in order of time, the nanoseconds of each of `PARTS` inside the window; what is left is unknown.

    With `after_copy` and `after_work`: whether the wait that the gap begins with, or the last one before it, was for a
    copy, and whether the host then worked for long. A gap of which a finding says that work may have run there
    unrecorded (`doubt`) has no parts.
    """
    ordered = _with_work_after_waits(gaps, api_calls).sort("start_ns", "end_ns")
    length = pl.col("end_ns") - pl.col("start_ns")
    told = pl.col("doubt").is_null()
    waited = pl.col("cause").is_in(_WAITS)
    drained = pl.col("cause").is_in(["host_wait", "launch_latency"])
    drained &= (pl.col("launches_since_wait") <= LAUNCHES_TO_RUN_AHEAD).fill_null(False)
    launching = ~drained & pl.col("cause").is_in(["host_wait", "launch_latency", "kernel_kernel"])
    away = (
        pl.when(~drained & (pl.col("cause") == "host_wait")).then(pl.col("outside_ns").fill_null(length)).otherwise(0)
    )
    worked = pl.coalesce("after_wait_ns", pl.when(drained).then("outside_ns")).fill_null(0)
    work = pl.when(told & (away > long_ns)).then(away).otherwise(0)
    restarted = (waited | drained) & (worked > RESTART_NS) & (2 * worked > length)
    waited_work = pl.when(told & restarted).then(worked).otherwise(0)
    parts = ordered.select(
        length=length,
        wait=pl.when(told & waited).then(length - waited_work).otherwise(0),
        restart=pl.when(told & drained).then(length - waited_work).otherwise(0),
        waited_work=waited_work,
        pace=pl.when(told & launching).then(length - work).otherwise(0),
        work=work,
        after_copy=pl.when(waited).then(pl.col("previous_activity_kind").cast(pl.String) == "memory_copy"),
        after_work=pl.when(waited | (waited_work > 0)).then(waited_work > 0),
    )
    inside = window.between(ordered.get_column("start_ns").to_numpy(), ordered.get_column("end_ns").to_numpy())
    # A gap that the window cuts gives each of its parts in proportion; what rounding leaves is unknown's.
    own = pl.col("length").clip(lower_bound=1)
    return parts.with_columns(inside=pl.Series(inside, dtype=pl.Int64)).select(
        # In two steps, for the product of two long times is beyond 64 bits.
        *(
            pl.when(pl.col("inside") == pl.col("length"))
            .then(name)
            .otherwise((pl.col(name) * (pl.col("inside") / own)).floor().cast(pl.Int64))
            .alias(name)
            for name in PARTS
        ),
        *(pl.col(name).forward_fill().fill_null(False) for name in ("after_copy", "after_work")),
    )


# ---- inside ----------------------------------------------------------------------------------------------------------


def _launches(
    activities: pl.DataFrame, api_calls: pl.DataFrame, waiting: pl.DataFrame, pieces: pl.DataFrame
) -> pl.DataFrame:
    """The kernels' launches within the pieces: process_id, thread_id, at_ns, returned_ns, next_ns (the next launch of
    anything), and `held`.

    That says that a call that waits or allocates began between the two, or that the next launch is a copy: the way to
    it is the copy's, and goes with it.
    """
    every = (
        activities.drop_nulls("call_id")
        .unique("call_id")
        .sort("call_start_ns", "call_id")
        .with_columns(
            next_ns=pl.col("call_start_ns").shift(-1),
            copies_next=(pl.col("activity_kind").cast(pl.String).shift(-1) == "memory_copy").fill_null(False),
        )
    )
    bounds = pieces.select(since="start_ns", until="end_ns").sort("since")
    kernels = every.filter(pl.col("activity_kind").cast(pl.String) == "dispatch")
    within = kernels.join_asof(
        bounds, left_on="call_start_ns", right_on="since", strategy="backward", check_sortedness=False
    ).filter(pl.col("next_ns").fill_null(pl.col("call_start_ns")) <= pl.col("until"))
    held = api_calls.join(waiting, on="call_id", how="semi").select(held_ns="start_ns").sort("held_ns")
    return within.join_asof(
        held, left_on="call_start_ns", right_on="held_ns", strategy="forward", check_sortedness=False
    ).select(
        "process_id",
        "next_ns",
        thread_id="call_thread_id",
        at_ns="call_start_ns",
        returned_ns="call_end_ns",
        held=pl.col("copies_next") | (pl.col("held_ns") < pl.col("next_ns")).fill_null(False),
    )


def _pauses(launches: pl.DataFrame, api_calls: pl.DataFrame, pieces: pl.DataFrame) -> pl.DataFrame:
    """The stretches (start_ns, end_ns) of the pieces in which no launching thread is in a call or an operator."""
    threads = launches.select("process_id", "thread_id").unique()
    own = api_calls.join(threads, on=["process_id", "thread_id"], how="semi", nulls_equal=True)
    low, high = (pieces.get_column(name) for name in ("start_ns", "end_ns"))
    calls = own.select("start_ns", "end_ns").filter((pl.col("end_ns") > low.min()) & (pl.col("start_ns") < high.max()))
    if calls.is_empty():
        return pieces.clear()
    return (
        calls.sort("start_ns")
        .select(start_ns=pl.col("end_ns").cum_max().shift(1), end_ns="start_ns")
        .filter(pl.col("end_ns") > pl.col("start_ns"))
        .join_asof(
            pieces.select(since="start_ns", until="end_ns").sort("since"),
            left_on="end_ns",
            right_on="since",
            check_sortedness=False,
        )
        .select(pl.max_horizontal("start_ns", "since"), pl.min_horizontal("end_ns", "until"))
        .filter(pl.col("end_ns") > pl.col("start_ns"))
    )


def _with_work_after_waits(gaps: pl.DataFrame, api_calls: pl.DataFrame) -> pl.DataFrame:
    """The gaps with `after_wait_ns`: of those that a recorded wait explains, the time between it and the next launch
    in which the launching thread was in no launching call or operator; null for all others."""
    ended = api_calls.select(host_call_id="call_id", waited_until_ns="end_ns")
    since = pl.max_horizontal("start_ns", "waited_until_ns")
    left = pl.col("end_ns") - since - pl.col("in_launch_calls_ns") - pl.col("in_launching_operators_ns")
    waited = (pl.col("cause") == "sync") & pl.col("waited_until_ns").is_not_null()
    return (
        gaps.join(ended, on="host_call_id", how="left", maintain_order="left")
        .with_columns(after_wait_ns=pl.when(waited).then(left.clip(lower_bound=0)))
        .drop("waited_until_ns")
    )
