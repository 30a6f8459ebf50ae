"""Every nanosecond of the steady window in exactly one share: what the device did, or what it waited for.

`device` is time in which a kernel runs that is no collective, `copy` time in which copies or fills run and no kernel
does, `communication` time in which only collectives run. Idle time goes by the edge that binds the next activity:
`sync`, `launch`, `host`, or `unknown` where nothing recorded tells.
"""

from collections.abc import Mapping
from typing import Final

import polars as pl

from aaco_pipeline.analysis.sessions.iteration_gaps import Usage
from aaco_pipeline.analysis.thresholds import LAUNCH_SIZED_NS
from aaco_pipeline.analysis.timeline.activities import COMMUNICATION, COMPUTE
from aaco_pipeline.analysis.timeline.device_timeline import Coverage, covered_by

DEVICE: Final = "device"
#: In the order in which shares of equal size are named.
SHARES: Final = (DEVICE, "communication", "copy", "sync", "launch", "host", "unknown")
#: Host work between two launches that is no longer than this is the framework on its way to the next launch.
LAUNCH_PACE_NS: Final = 30_000
#: The way from a wait's end to the next launch is the wait's; what takes longer, and most of the idle time, is work of
#: the host's own.
RESTART_NS: Final = 1_000_000
#: After a wait that drained the queue, so many launches are made before the host can have run ahead of the device.
LAUNCHES_TO_RUN_AHEAD: Final = 8


def device_shares(
    activities: pl.DataFrame, gaps: pl.DataFrame, api_calls: pl.DataFrame, pieces: pl.DataFrame
) -> dict[str, int]:
    """Nanoseconds of one device's steady window by share; they add up to the window exactly. Empty without a window.

    `activities` (start_ns, end_ns, category) and `gaps` (the table's columns) are those of the device, `api_calls`
    (call_id, end_ns) hold those that waited; `pieces` (start_ns, end_ns) do not overlap and are the window. Idle time
    that no gap accounts for is `unknown`.
    """
    starts, ends = pieces.get_column("start_ns").to_numpy(), pieces.get_column("end_ns").to_numpy()
    window = int((ends - starts).sum())
    if not window:
        return {}
    category = pl.col("category").cast(pl.String)

    def covered(rows: pl.DataFrame) -> int:
        union = covered_by(rows.get_column("start_ns").to_numpy(), rows.get_column("end_ns").to_numpy())
        return int(union.between(starts, ends).sum())

    computing = covered(activities.filter(category == COMPUTE))
    without_collectives = covered(activities.filter(category != COMMUNICATION))
    busy = covered(activities)
    shares = {DEVICE: computing, "copy": without_collectives - computing, "communication": busy - without_collectives}
    idle = _idle(_with_work_after_waits(gaps, api_calls), covered_by(starts, ends))
    idle["unknown"] += window - busy - sum(idle.values())
    return {name: {**shares, **idle}[name] for name in SHARES}


def host_shares(unprofiled: Usage, traced: Usage, operators_ns: int | None) -> tuple[dict[str, int], dict[str, int]]:
    """Nanoseconds of the unprofiled iterations on the CPU provider by share, and of each what contention explains.

    The window is the iterations' length. Threads that wanted no CPU slept or waited for something else (`host`); what
    is left they ran or waited for a CPU. Of that, operators' own time in the traced pass (`operators_ns`, over all its
    iterations, without those that are as short as a call of them) is the device's, and the rest is the runtime's
    (`launch`). Run-queue delay is contention in both. Without a traced pass, or `operators_ns`, nothing tells the two
    apart: `unknown`. Empty without iterations or their CPU time.
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
    # The traced operators' time holds their own waits for a CPU, as `wanted` does.
    own_delay = _delayed(traced)
    ran = operators_ns / traced.iterations * (1 - own_delay)
    runnable = each * cpu / (cpu + delay)
    shares[DEVICE] = round(wanted * min(1.0, ran / runnable)) if runnable else 0
    shares["launch"] = wanted - shares[DEVICE]
    contended = delay / (cpu + delay) if cpu + delay else 0.0
    return shares, {name: round(shares[name] * contended) for name in (DEVICE, "launch") if shares[name]}


def operators_ns(dispatches: pl.DataFrame) -> int | None:
    """Nanoseconds in operators that take longer than it takes to start them; None without operators.

    `dispatches` has kernel_id and self_ns: control flow holds the time of what runs inside it, and self times add up.
    What an operator takes that is as short as its call is the call's: the runtime's, and the profiler's.
    """
    if dispatches.is_empty():
        return None
    longer = pl.col("self_ns").median().over("kernel_id") > LAUNCH_SIZED_NS
    return int(dispatches.filter(longer).get_column("self_ns").fill_null(0).sum())


def on_cpu_ratio(traced: Usage) -> float:
    """Share of the traced iterations' runnable time in which their threads had a CPU; 1 where it was not read."""
    return 1 - _delayed(traced)


def largest(shares: Mapping[str, int]) -> list[str]:
    """The shares that there are, largest first; equal ones in the order of `SHARES`."""
    return sorted((name for name in shares if shares[name]), key=lambda name: (-shares[name], SHARES.index(name)))


# ---- inside ----------------------------------------------------------------------------------------------------------


def _delayed(traced: Usage) -> float:
    cpu, delay = traced.cpu_time_ns, traced.run_delay_ns
    return delay / (cpu + delay) if cpu and delay else 0.0


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


def _idle(gaps: pl.DataFrame, window: Coverage) -> dict[str, int]:
    """Idle nanoseconds inside the window by the edge that binds what comes next.

    After a wait that drained the queue the next few launches cannot be ahead of the device: what they leave idle is the
    wait's, not the launches'; but where the host works for long before it launches again, that is its own. Host work in
    short pieces between launches is the way to the next launch. A gap of which a finding says that work may have run
    there unrecorded (`doubt`) is unknown whatever its cause.
    """
    length = pl.col("end_ns") - pl.col("start_ns")
    told = pl.col("doubt").is_null()
    drained = pl.col("cause").is_in(["host_wait", "launch_latency"])
    drained &= (pl.col("launches_since_wait") <= LAUNCHES_TO_RUN_AHEAD).fill_null(False)
    late = (pl.col("cause") == "host_wait") & ~drained
    away = pl.when(late).then(pl.col("outside_ns").fill_null(length)).otherwise(0)
    worked = pl.coalesce("after_wait_ns", pl.when(drained).then("outside_ns")).fill_null(0)
    restarted = (worked > RESTART_NS) & (2 * worked > length)
    host = pl.when(told & (away > LAUNCH_PACE_NS)).then(away).when(told & restarted).then(worked).otherwise(0)
    waits = drained | pl.col("cause").is_in(["sync", "dependency"])
    launching = ~waits & pl.col("cause").is_in(["host_wait", "launch_latency", "kernel_kernel"])
    parts = gaps.select(
        length=length,
        sync=pl.when(told & waits).then(length - host).otherwise(0),
        host=host,
        launch=pl.when(told & launching).then(length - host).otherwise(0),
    )
    inside = window.between(gaps.get_column("start_ns").to_numpy(), gaps.get_column("end_ns").to_numpy())
    # A gap that the window cuts gives each of its parts in proportion; what rounding leaves is unknown's.
    own = pl.col("length").clip(lower_bound=1)
    cut = parts.with_columns(inside=pl.Series(inside, dtype=pl.Int64)).select(
        # In two steps, for the product of two long times is beyond 64 bits.
        pl.when(pl.col("inside") == pl.col("length"))
        .then(name)
        .otherwise((pl.col(name) * (pl.col("inside") / own)).floor().cast(pl.Int64))
        .sum()
        .alias(name)
        for name in ("sync", "launch", "host")
    )
    return {**{name: int(cut.item(0, name) or 0) for name in cut.columns}, "unknown": 0}
