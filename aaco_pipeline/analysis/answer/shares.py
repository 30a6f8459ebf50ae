"""Divide every nanosecond of the steady window into shares: device work, and the causes of idle time.

Idle time is divided by the edge that binds the next activity and by concurrent host work. `reasons` explains the
shares; `savings` bounds the saving from removing a cause.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import polars as pl

from aaco_pipeline.analysis.answer.window import allocating
from aaco_pipeline.analysis.sessions.metrics import Usage
from aaco_pipeline.analysis.thresholds import LAUNCH_SIZED_NS
from aaco_pipeline.analysis.timeline.activities import COMMUNICATION, COMPUTE, once_per_call
from aaco_pipeline.analysis.timeline.device_timeline import Coverage, bounds, coverage

#: Host work of up to this length between two launches counts as the framework's launch overhead.
LAUNCH_PACE_NS: Final = 30_000
#: A faster thread may take up to this many launch times: frameworks pause briefly between layers, other host work takes
#: longer.
_LAUNCHES_MISSED: Final = 16
#: Up to this time, the delay from a wait's end to the next launch belongs to the wait. Above it, it is the host's own
#: work if it is most of the idle time.
RESTART_NS: Final = 1_000_000
#: Launches after a wait that drained the queue, before the host can have run ahead of the device.
LAUNCHES_TO_RUN_AHEAD: Final = 8
#: Parts of idle time. `wait`: a blocking call or another stream holds the device. `restart`: the first launches after
#: it. `waited_work`: long host work after a wait, before the next launch. `copying`: the call of a late copy, and the
#: time from one copy to the next. `pace`: launching, and short host work between launches. `work`: long host work
#: between launches.
PARTS: Final = ("wait", "restart", "waited_work", "copying", "pace", "work")
_WAITS: Final = ("sync", "dependency")
#: Copies between host and device; copies within a device are launched like kernels.
_OVER_THE_LINK: Final = ("host_to_device", "device_to_host")
_COPYING_CALL: Final = r"(?i)memcpy"


@dataclass(frozen=True)
class Host:
    """Activity of the launching threads in a window.

    Attributes:
        long_ns: Length from which host work between two launches counts as the host's own.
        working_ns: All work of at least that length, including work that overlaps a busy device.
        pace_ns: Time from the previous launch, or from a wait in between, to each launch including its call, except for
            copies between host and device. After a wait it is capped at the usual time; after long work it is zero.
    """

    long_ns: int
    working_ns: int
    pace_ns: int


def host_in(
    activities: pl.DataFrame, api_calls: pl.DataFrame, waiting: pl.DataFrame, pieces: pl.DataFrame, copies: pl.DataFrame
) -> Host:
    """Measure the launching threads of `activities` (one device's, from `recorded`) within `pieces`.

    Work is the time outside the calls of all launching threads together, because a thread that waits for another one is
    not working.

    Args:
        activities: The device's activities.
        api_calls: The host calls.
        waiting: call_ids of calls that block the thread: waits, allocations.
        pieces: The window (start_ns, end_ns).
        copies: copy_id and direction.
    """
    launches = _launches(activities, api_calls, waiting, copies)
    kernels = _inside_of(launches, pieces).filter("is_kernel")
    between = kernels.drop_nulls("next_ns").filter(~pl.col("next_held") & (pl.col("next_ns") <= pl.col("until")))
    pace = between.select((pl.col("next_ns") - pl.col("at_ns")).median()).item()
    long_ns = LAUNCH_PACE_NS
    if pace is not None and pace <= LAUNCH_PACE_NS:
        long_ns = max(LAUNCH_PACE_NS, round(_LAUNCHES_MISSED * pace))
    pauses = _pauses(kernels, api_calls, pieces).filter(pl.col("end_ns") - pl.col("start_ns") > long_ns)
    return Host(
        long_ns,
        int(pauses.select((pl.col("end_ns") - pl.col("start_ns")).sum()).item() or 0),
        _pace(_inside_of(launches, pieces), pauses),
    )


def idle_parts(
    gaps: pl.DataFrame, api_calls: pl.DataFrame, window: Coverage, long_ns: int, copies: pl.DataFrame
) -> pl.DataFrame:
    """Divide each gap inside the window into nanoseconds of `PARTS`, in time order; the rest is unknown.

    `copies` is the table. Further columns: `after_copy` and `after_work` (whether the gap's wait, or the last one
    before it, was for a copy, and whether long host work followed) and `allocating` (the gap's time inside the window
    in calls that allocate or free memory). A gap that may hide unrecorded work according to a finding (`doubt`) has no
    parts.
    """
    ordered = gaps.pipe(_with_calls, api_calls).pipe(_with_copies, copies).sort("start_ns", "end_ns")
    length = pl.col("end_ns") - pl.col("start_ns")
    certain = pl.col("doubt").is_null()
    waited = pl.col("cause").is_in(_WAITS)
    drained = pl.col("cause").is_in(["host_wait", "launch_latency"])
    drained &= (pl.col("launches_since_wait") <= LAUNCHES_TO_RUN_AHEAD).fill_null(False)
    launching = ~drained & pl.col("cause").is_in(["host_wait", "launch_latency", "kernel_kernel"])
    away = (
        pl.when(~drained & (pl.col("cause") == "host_wait")).then(pl.col("outside_ns").fill_null(length)).otherwise(0)
    )
    worked = pl.coalesce("after_wait_ns", pl.when(drained).then("outside_ns")).fill_null(0)
    work = pl.when(certain & (away > long_ns)).then(away).otherwise(0)
    restarted = (waited | drained) & (worked > RESTART_NS) & (2 * worked > length)
    waited_work = pl.when(certain & restarted).then(worked).otherwise(0)
    # If the call of a copy takes longer than the idle time after it, the host waits for that copy.
    by_copy = (pl.col("cause") == "sync") & pl.col("call_copies") & (pl.col("copied_ns") < length).fill_null(False)
    between = pl.col("from_copy") & pl.col("to_copy") & (launching | drained | by_copy)
    copying = (
        pl.when(certain & between)
        .then(length - work - waited_work)
        .when(certain & launching & pl.col("to_copy"))
        .then(pl.min_horizontal("in_call_ns", length - work))
        .otherwise(0)
    )
    parts = ordered.select(
        length=length,
        wait=pl.when(certain & waited).then(length - waited_work - copying).otherwise(0),
        restart=pl.when(certain & drained).then(length - waited_work - copying).otherwise(0),
        waited_work=waited_work,
        copying=copying,
        pace=pl.when(certain & launching).then(length - work - copying).otherwise(0),
        work=work,
        after_copy=pl.when(waited).then(pl.col("previous_activity_kind").cast(pl.String) == "memory_copy"),
        after_work=pl.when(waited | (waited_work > 0)).then(waited_work > 0),
    )
    allocated = coverage(allocating(api_calls).drop_nulls(["start_ns", "end_ns"]))
    # A gap cut by the window contributes a proportional amount of each part; the rounding error stays unknown.
    own = pl.col("length").clip(lower_bound=1)
    return parts.with_columns(
        inside=pl.Series(window.between(*bounds(ordered)), dtype=pl.Int64),
        allocating=pl.Series(allocated.between(*bounds(ordered)), dtype=pl.Int64),
    ).select(
        # Two steps, because the product of two long times would overflow 64 bits.
        *(
            pl.when(pl.col("inside") == pl.col("length"))
            .then(name)
            .otherwise((pl.col(name) * (pl.col("inside") / own)).floor().cast(pl.Int64))
            .alias(name)
            for name in (*PARTS, "allocating")
        ),
        *(pl.col(name).forward_fill().fill_null(False) for name in ("after_copy", "after_work")),
    )


def _launches(
    activities: pl.DataFrame, api_calls: pl.DataFrame, waiting: pl.DataFrame, copies: pl.DataFrame
) -> pl.DataFrame:
    """List the launches in order, with the time at which the host started on each.

    Columns: process_id, thread_id, at_ns, returned_ns, next_ns, `is_kernel`, `moves` (between host and device), and
    begin_ns: the previous launch, the end of its call if it moves data, or the end of the last intervening call that
    waits or allocates (`held`). `next_held`: the next launch is also held, or is a copy, which then owns the time
    before it.
    """
    held = api_calls.join(waiting, on="call_id", how="semi").select(held_ns="start_ns", held_until_ns="end_ns")
    is_copy = pl.col("activity_kind").cast(pl.String) == "memory_copy"
    every = (
        once_per_call(activities)
        .sort("call_start_ns", "call_id")
        .select(
            "process_id",
            thread_id="call_thread_id",
            at_ns="call_start_ns",
            returned_ns="call_end_ns",
            next_ns=pl.col("call_start_ns").shift(-1),
            is_kernel=~is_copy,
            moves=is_copy & pl.col("activity_id").is_in(_over_the_link(copies).implode()),
        )
    )
    before = pl.when(pl.col("moves").shift(1)).then(pl.col("returned_ns").shift(1)).otherwise(pl.col("at_ns").shift(1))
    return (
        every.join_asof(held.sort("held_ns"), left_on="at_ns", right_on="held_ns", check_sortedness=False)
        .with_columns(held=(pl.col("held_ns") >= pl.col("at_ns").shift(1)).fill_null(False))
        .with_columns(
            next_held=(pl.col("held") | ~pl.col("is_kernel")).shift(-1).fill_null(False),
            begin_ns=pl.when("held").then("held_until_ns").otherwise(before),
        )
        .drop("held_ns", "held_until_ns")
    )


def _inside_of(launches: pl.DataFrame, pieces: pl.DataFrame) -> pl.DataFrame:
    """Return the launches that begin within a piece, with the piece's bounds `since` and `until`."""
    bounds = pieces.select(since="start_ns", until="end_ns").sort("since")
    return launches.join_asof(
        bounds, left_on="at_ns", right_on="since", strategy="backward", check_sortedness=False
    ).filter(pl.col("at_ns") <= pl.col("until"))


def _pace(launches: pl.DataFrame, pauses: pl.DataFrame) -> int:
    """Sum the time before launches, including their calls, except copies between host and device.

    The time before a launch that follows a wait is capped at the usual time, because part of it may be due to the wait.
    """
    ways = launches.join_asof(
        pauses.select(paused_ns="start_ns").sort("paused_ns"),
        left_on="at_ns",
        right_on="paused_ns",
        strategy="backward",
        check_sortedness=False,
    ).with_columns(
        way=pl.when(
            (pl.col("begin_ns") >= pl.col("since"))
            & ~(pl.col("paused_ns") >= pl.col("begin_ns")).fill_null(False)
            & ~pl.col("moves")
        ).then((pl.col("at_ns") - pl.col("begin_ns")).clip(lower_bound=0))
    )
    usual = ways.filter(~pl.col("held")).get_column("way").median() or 0
    own = pl.when("held").then(pl.min_horizontal("way", pl.lit(usual))).otherwise("way")
    # The time before a launch includes the previous launch's call, unless a wait separates them.
    in_next = (pl.col("way").is_not_null() & ~pl.col("held")).shift(-1).fill_null(False)
    call = pl.when(~pl.col("moves") & ~in_next).then(pl.col("returned_ns") - pl.col("at_ns")).otherwise(0)
    return int(ways.select((own.fill_null(0) + call).sum()).item() or 0)


def _pauses(launches: pl.DataFrame, api_calls: pl.DataFrame, pieces: pl.DataFrame) -> pl.DataFrame:
    """Return the intervals (start_ns, end_ns) of the pieces with no launching thread in a call or an operator."""
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


def _with_calls(gaps: pl.DataFrame, api_calls: pl.DataFrame) -> pl.DataFrame:
    """Join the gaps with their host calls.

    `after_wait_ns`: for gaps explained by a recorded wait, the time from the wait to the next launch that the launching
    thread spent outside launching calls and operators; otherwise null. `in_call_ns`: from the start of the call to the
    end of the gap. `call_copies`: whether the call copies.
    """
    named = gaps.select(call_id="host_call_id").drop_nulls().unique()
    calls = (
        api_calls.join(named, on="call_id", how="semi")
        .select(
            host_call_id="call_id",
            called_ns="start_ns",
            waited_until_ns="end_ns",
            call_copies=pl.col("name").cast(pl.String).str.contains(_COPYING_CALL),
        )
        .unique("host_call_id")
    )
    since = pl.max_horizontal("start_ns", "waited_until_ns")
    left = pl.col("end_ns") - since - pl.col("in_launch_calls_ns") - pl.col("in_launching_operators_ns")
    waited = (pl.col("cause") == "sync") & pl.col("waited_until_ns").is_not_null()
    in_call = pl.col("end_ns") - pl.max_horizontal("start_ns", "called_ns")
    return (
        gaps.join(calls, on="host_call_id", how="left", maintain_order="left")
        .with_columns(
            pl.col("call_copies").fill_null(False),
            after_wait_ns=pl.when(waited).then(left.clip(lower_bound=0)),
            in_call_ns=pl.when(pl.col("called_ns").is_not_null()).then(in_call.clip(lower_bound=0)).otherwise(0),
        )
        .drop("waited_until_ns", "called_ns")
    )


def _with_copies(gaps: pl.DataFrame, copies: pl.DataFrame) -> pl.DataFrame:
    """Mark gaps next to a host/device copy (`from_copy`, `to_copy`), with the previous copy's length (`copied_ns`)."""
    over = _over_the_link(copies)
    lengths = copies.select(previous_activity_id="copy_id", copied_ns=pl.col("end_ns") - pl.col("start_ns"))
    return gaps.join(
        lengths.unique("previous_activity_id"), on="previous_activity_id", how="left", maintain_order="left"
    ).with_columns(
        (
            (pl.col(f"{side}_activity_kind").cast(pl.String) == "memory_copy")
            & pl.col(f"{side}_activity_id").is_in(over.implode())
        )
        .fill_null(False)
        .alias(name)
        for side, name in (("previous", "from_copy"), ("next", "to_copy"))
    )


def _over_the_link(copies: pl.DataFrame) -> pl.Series:
    """Return the copy_ids of copies between host and device."""
    return copies.filter(pl.col("direction").cast(pl.String).is_in(_OVER_THE_LINK)).get_column("copy_id")


DEVICE: Final = "device"
#: Shares of equal size are listed in this order.
SHARES: Final = (DEVICE, "communication", "copy", "sync", "launch", "host", "unknown")
#: Shares of idle time by their parts.
_OF_PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "sync": ("wait", "restart"),
    "launch": ("pace",),
    "copy": ("copying",),
    "host": ("waited_work", "work"),
}


def device_shares(
    activities: pl.DataFrame,
    gaps: pl.DataFrame,
    api_calls: pl.DataFrame,
    pieces: pl.DataFrame,
    copies: pl.DataFrame,
    *,
    long_ns: int,
) -> dict[str, int]:
    """Divide one device's steady window into shares in ns that sum to it exactly; empty without a window.

    Idle time that no gap accounts for is `unknown`.

    Args:
        activities: start_ns, end_ns and category of the device's activities.
        gaps: The device's rows of the table.
        api_calls: The host calls, at least those to which the gaps refer.
        pieces: Disjoint intervals (start_ns, end_ns): the window.
        copies: The copies, at least those to which the gaps refer.
        long_ns: Longer host work between two launches counts as the host's own.
    """
    window = int(pieces.select((pl.col("end_ns") - pl.col("start_ns")).sum()).item())
    if not window:
        return {}
    category = pl.col("category").cast(pl.String)
    computing = coverage(activities.filter(category == COMPUTE)).within(pieces)
    without_collectives = coverage(activities.filter(category != COMMUNICATION)).within(pieces)
    busy = coverage(activities).within(pieces)
    shares = {DEVICE: computing, "copy": without_collectives - computing, "communication": busy - without_collectives}
    parts = idle_parts(gaps, api_calls, coverage(pieces), long_ns, copies)
    idle = {share: sum(int(parts.get_column(name).sum()) for name in names) for share, names in _OF_PARTS.items()}
    idle["unknown"] = window - busy - sum(idle.values())
    return {name: shares.get(name, 0) + idle.get(name, 0) for name in SHARES}


def host_shares(unprofiled: Usage, traced: Usage, operators_ns: int | None) -> tuple[dict[str, int], dict[str, int]]:
    """Divide the unprofiled iterations on the CPU provider into shares, with the part of each caused by contention.

    The window is the total length of the iterations. The time in which threads needed no CPU is `host`: they slept or
    waited. The rest they spent running or waiting for a CPU. The operators' own time in the traced pass
    (`operators_ns`, over all its iterations, without operators as short as a call) belongs to the device, the remainder
    to the runtime (`launch`). Run-queue delay is contention in both. Without a traced pass or `operators_ns` the two
    cannot be separated: `unknown`. Empty without iterations or their CPU time.
    """
    length, cpu, delay = unprofiled.length_ns, unprofiled.cpu_time_ns, unprofiled.run_delay_ns or 0
    if not length or cpu is None:
        return {}, {}
    wanted = min(length, cpu + delay)
    shares = dict.fromkeys(SHARES, 0) | {"host": length - wanted}
    if not traced.iterations or operators_ns is None:
        shares["unknown"] = wanted
        return shares, {}
    each = wanted / unprofiled.iterations
    # Like `wanted`, the traced operators' time includes their own waits for a CPU.
    own_delay = _delayed(traced)
    ran = operators_ns / traced.iterations * (1 - own_delay)
    runnable = each * cpu / (cpu + delay)
    shares[DEVICE] = round(wanted * min(1.0, ran / runnable)) if runnable else 0
    shares["launch"] = wanted - shares[DEVICE]
    contended = delay / (cpu + delay) if cpu + delay else 0.0
    return shares, {name: round(shares[name] * contended) for name in (DEVICE, "launch") if shares[name]}


def operators_ns(dispatches: pl.DataFrame) -> int | None:
    """Sum the time of operators that take longer than their launch, in ns; None without operators.

    `dispatches` has kernel_id and self_ns. Control flow includes the time of nested operators, but self times add up.
    An operator as short as its call is attributed to the call, that is, to the runtime and the profiler.
    """
    if dispatches.is_empty():
        return None
    longer = pl.col("self_ns").median().over("kernel_id") > LAUNCH_SIZED_NS
    return int(dispatches.filter(longer).get_column("self_ns").fill_null(0).sum())


def on_cpu_ratio(traced: Usage) -> float:
    """Fraction of the traced iterations' runnable time in which their threads had a CPU; 1 if not recorded."""
    return 1 - _delayed(traced)


def largest(shares: Mapping[str, int]) -> list[str]:
    """Return the nonzero shares, largest first; ties in the order of `SHARES`."""
    return sorted((name for name in shares if shares[name]), key=lambda name: (-shares[name], SHARES.index(name)))


def _delayed(traced: Usage) -> float:
    cpu, delay = traced.cpu_time_ns, traced.run_delay_ns
    return delay / (cpu + delay) if cpu and delay else 0.0
