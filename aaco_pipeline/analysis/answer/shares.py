"""Every nanosecond of the steady window in exactly one share: what the device did, or what it waited for.

`device` is time in which a kernel runs that is no collective, `copy` time in which copies or fills run and no kernel
does, `communication` time in which only collectives run. Idle time goes by the edge that binds the next activity:
`sync`, `launch`, `host`, `copy` on the way to a copy from the host or to it, or `unknown` where nothing recorded
tells.
"""

from collections.abc import Mapping
from typing import Final

import polars as pl

from aaco_pipeline.analysis.answer.idle import LAUNCH_PACE_NS, idle_parts
from aaco_pipeline.analysis.sessions.iteration_gaps import Usage
from aaco_pipeline.analysis.thresholds import LAUNCH_SIZED_NS
from aaco_pipeline.analysis.timeline.activities import COMMUNICATION, COMPUTE
from aaco_pipeline.analysis.timeline.device_timeline import covered_by

DEVICE: Final = "device"
#: In the order in which shares of equal size are named.
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
    *,
    long_ns: int = LAUNCH_PACE_NS,
    copies: pl.DataFrame | None = None,
) -> dict[str, int]:
    """Nanoseconds of one device's steady window by share; they add up to the window exactly. Empty without a window.

    `activities` (start_ns, end_ns, category) and `gaps` (the table's columns) are those of the device, `api_calls` and
    `copies` hold those that the gaps name; `pieces` (start_ns, end_ns) do not overlap and are the
    window. Host work between two launches that is longer than `long_ns` is its own. Idle time that no gap accounts for
    is `unknown`.
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
    parts = idle_parts(gaps, api_calls, covered_by(starts, ends), long_ns, copies)
    idle = {share: sum(int(parts.get_column(name).sum()) for name in names) for share, names in _OF_PARTS.items()}
    idle["unknown"] = window - busy - sum(idle.values())
    return {name: shares.get(name, 0) + idle.get(name, 0) for name in SHARES}


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
