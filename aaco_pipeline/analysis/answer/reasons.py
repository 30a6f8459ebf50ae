"""Explain part of a share: a busy CPU, a late rank, a lowered clock, one-time work.

`shares` computes the shares themselves; `inferred_waits` finds waits that the trace did not record.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import polars as pl

from aaco_pipeline.analysis.answer.shares import DEVICE
from aaco_pipeline.analysis.sessions.metrics import Usage
from aaco_pipeline.analysis.timeline.activities import COMMUNICATION_FAMILY
from aaco_pipeline.analysis.timeline.device_timeline import bounds, coverage

CONTENTION: Final = "contention"
IMBALANCE: Final = "imbalance"
THROTTLING: Final = "throttling"
#: Kinds of `first_calls` that also cost time in a steady state if they recur.
RECURRING: Final = ("allocation", "compilation", "page_faults")
#: Idle shares caused by the host's threads.
_OF_HOST: Final = ("sync", "launch", "host")
#: A sample counts as under load if the engine was busy for at least this fraction of the firmware's window.
_LOADED: Final = 0.5
#: A limit that lowers the clock by less than this is ignored: clock samples vary by as much.
_LEAST_LOSS: Final = 0.05
#: Driver names in `throttle_reasons` for power and current limits, and for temperature limits. NVIDIA's hardware
#: slowdown is due to power or temperature, whichever the board reports.
_POWER: Final = (
    r"(?i)^(?:ppt\d?|spl|fppt|sppt(?:_apu)?|tdc_\w+|edc_\w+|apcc|ppm"
    r"|sw_power_cap|board_limit|hw_power_brake_slowdown|hw_slowdown)$"
)
_THERMAL: Final = r"(?i)thm|temp|therm|^vrhot|^prochot"


def contention(shares: Mapping[str, int], unprofiled: Usage) -> dict[str, int]:
    """For each host-caused share, the part in which its threads waited for a CPU in the unprofiled pass."""
    caused = sum(shares[name] for name in _OF_HOST)
    if not unprofiled.length_ns or not unprofiled.run_delay_ns or not caused:
        return {}
    window = sum(shares.values())
    part = min(1.0, unprofiled.run_delay_ns / unprofiled.length_ns * window / caused)
    return {name: round(shares[name] * part) for name in _OF_HOST if shares[name]}


def imbalance(shares: Mapping[str, int], collectives: pl.DataFrame, dispatches: pl.DataFrame) -> dict[str, int]:
    """Return the part of `communication` in which the device's process waited for the last one to arrive.

    `collectives` has dispatch_id and wait_ns; `dispatches` are the device's in the window. A wait hidden by compute
    belongs to no share, so waits count only in proportion to the exposed time of all collectives.
    """
    own = collectives.drop_nulls("wait_ns").join(dispatches, on="dispatch_id", how="semi")
    length = dispatches.join(collectives, on="dispatch_id", how="semi").select(pl.col("end_ns") - pl.col("start_ns"))
    spent = int(length.to_series().sum())
    if not own.height or not spent or not shares.get("communication"):
        return {}
    part = min(1.0, int(own.get_column("wait_ns").sum()) / spent)
    return {"communication": round(shares["communication"] * part)} if part else {}


def samples_of_the_run(tables: Mapping[str, pl.DataFrame], inside: pl.DataFrame) -> pl.DataFrame:
    """Return the samples of devices that ran the workload; a capture may also sample other cards of the host.

    A session recorded here has the host to itself, and its sampler's device numbers differ from the kernels'.
    """
    samples, sessions = tables["gpu_samples"], tables["sessions"]
    if not sessions.filter(pl.col("source_kind") == "capture").height:
        return samples
    return samples.filter(pl.col("device_id").is_in(inside.get_column("device_id").unique().implode()))


def throttling(shares: Mapping[str, int], samples: pl.DataFrame, devices: pl.DataFrame) -> dict[str, int]:
    """Return the part of `device` lost to a lowered clock, if the driver's counters name a limit.

    time x (1 - median clock / highest clock), over samples under load that are limited by power, current or
    temperature. A high temperature alone proves nothing.
    """
    loaded = samples.filter(pl.col("gfx_activity_ratio").fill_null(1.0) >= _LOADED)
    named = loaded.drop_nulls("throttle_reasons").filter(
        pl.col("throttle_reasons").list.eval(pl.element().str.contains(f"{_POWER}|{_THERMAL}")).list.any()
    )
    if not named.height or not shares.get(DEVICE):
        return {}
    clocks = named.join(devices.select("device_id", "max_clock_mhz"), on="device_id", how="left")
    loss = (1 - clocks.get_column("gfx_clock_mhz") / clocks.get_column("max_clock_mhz")).drop_nulls().to_numpy()
    cost = float(np.median(loss)) if len(loss) else 0.0
    if cost < _LEAST_LOSS:
        return {}
    held = named.height / loaded.drop_nulls("throttle_reasons").height
    return {DEVICE: round(shares[DEVICE] * min(1.0, cost * held))}


def recurring(idle: pl.DataFrame, first_calls: pl.DataFrame, pieces: pl.DataFrame) -> dict[tuple[str, str], int]:
    """Idle time of the steady window filled by allocations, compilations or page faults, by share and kind.

    `idle` has share, start_ns and end_ns of disjoint intervals; `pieces` (start_ns, end_ns) form the window. Time
    between two pieces (an interruption or a first call) is ignored.
    """
    found: dict[tuple[str, str], int] = {}
    window = coverage(pieces)
    for kind in RECURRING:
        calls = first_calls.filter(pl.col("kind") == kind).select("start_ns", "end_ns")
        if not calls.height:
            continue
        # The intersection of two sets is the sum of their times minus the time of their union.
        during, either = coverage(calls), coverage(pl.concat([calls, pieces.select("start_ns", "end_ns")]))
        for (share,), own in idle.group_by("share", maintain_order=True):
            at = bounds(own)
            time = int((during.between(*at) + window.between(*at) - either.between(*at)).sum())
            if time:
                found[str(share), kind] = time
    return found


Cause = Literal["work", "device", "host", "data"]
#: A rank is late if it arrives last at this fraction or more of the collectives that have a late rank.
_MOSTLY: Final = 0.5
#: The cause of its lateness is named if it explains at least this fraction of the others' shorter time.
_EXPLAINS: Final = 0.5
#: Lateness below this fraction of the time is not reported: one of two ranks always arrives last.
_WORTH_TELLING: Final = 0.01
#: A slowdown of kernels below this factor is reported as a percentage.
_IN_PERCENT: Final = 1.1
_MS: Final = 1e6
#: Dispatch columns that identify equivalent launches of a kernel.
GRID: Final = ("grid_x", "grid_y", "grid_z", "workgroup_x", "workgroup_y", "workgroup_z")


@dataclass(frozen=True)
class LateRank:
    """The late rank and the cause of its lateness.

    Attributes:
        process_id: Its process.
        rank: Its number; None if the capture does not number it.
        late_ns: Its delay after the first rank in the collectives where it arrives last: the median of the sums per
            iteration, or of each collective unless `in_iterations`.
        cause: `work` (more or different kernels), `device` (the same kernels and grids take longer), `data` (the same
            kernels on other grids) or `host` (its device is idle before the collective); None if none explains most of
            it.
        times: Factor by which its kernels take longer if the device is the cause; otherwise None.
        operation: The collective with the most waiting time.
    """

    process_id: int
    rank: int | None
    late_ns: int
    cause: Cause | None
    times: float | None
    in_iterations: bool = False
    operation: str | None = None


def late_rank(tables: Mapping[str, pl.DataFrame]) -> LateRank | None:
    """Find the late rank from the tables collectives, dispatches, kernels and processes; None without a single one.

    Its excess time between collectives over the others' median is divided into idle time, slower calls of the same
    kernels and grids, calls on grids that only it has, and the rest, which is additional work.
    """
    known = tables["collectives"].drop_nulls("wait_ns")
    behind = known.filter(pl.col("is_straggler").fill_null(False))
    if behind.is_empty():
        return None
    counts = behind.group_by("process_id").agg(n=pl.len()).sort("n", "process_id", descending=[True, False])
    process, times = counts.row(0)
    if times < _MOSTLY * behind.get_column("collective_id").n_unique():
        return None
    late = _lateness(int(process), known, tables["dispatches"])
    in_iterations = late.get_column("iteration").is_not_null().any()
    late = late.drop_nulls("iteration") if in_iterations else late.filter("is_last")
    each = late.group_by("iteration" if in_iterations else "collective_id").agg(pl.col("late_ns").sum())
    late_ns = _median(each.get_column("late_ns").to_list())
    lasted = int(late.select(pl.col("end_ns").max() - pl.col("start_ns").min()).item())
    if late_ns * each.height < _WORTH_TELLING * lasted:
        return None
    named = late.drop_nulls("name").group_by("name").agg(pl.col("late_ns").sum())
    most = named.sort("late_ns", "name", descending=[True, False]).get_column("name").to_list()
    cause, longer = _cause(int(process), tables)
    return LateRank(
        int(process),
        _rank(int(process), tables),
        round(late_ns),
        cause,
        longer,
        in_iterations=in_iterations,
        operation=most[0] if most else None,
    )


def in_words(late: LateRank) -> str:
    """Describe the late rank, without a full stop: `rank 1 is late by 2.1 ms an iteration (median), because it runs
    more kernels: the others wait for it in all_reduce`."""
    name = f"rank {late.rank}" if late.rank is not None else f"process {late.process_id}"
    by = f"{late.late_ns / 1e6:.3g} ms" if late.late_ns >= _MS else f"{late.late_ns / 1e3:,.0f} µs"
    one = "an iteration" if late.in_iterations else "a collective"
    where = f" in {late.operation}" if late.operation is not None else ""
    times = late.times or 0.0
    longer = f"{times:.2g} times as long" if times >= _IN_PERCENT else f"{100 * (times - 1):.0f} % longer"
    because = {
        "work": "because it runs more kernels",
        "device": f"because its same kernels take {longer}",
        "data": "because its kernels run on other grids",
        "host": "because its device waits for its host",
        None: "and nothing recorded says why",
    }[late.cause]
    return f"{name} is late by {by} {one} (median), {because}: the others wait for it{where}"


def _cause(process: int, tables: Mapping[str, pl.DataFrame]) -> tuple[Cause | None, float | None]:
    spans = _between(tables["collectives"], tables["dispatches"])
    communicating = tables["kernels"].filter(pl.col("family").cast(pl.String) == COMMUNICATION_FAMILY)
    computing = (
        tables["dispatches"]
        .drop_nulls(["start_ns", "end_ns"])
        .join(tables["collectives"].select("dispatch_id"), on="dispatch_id", how="anti")
        .join(communicating.select("kernel_id"), on="kernel_id", how="anti")
    )
    busy = {
        one: coverage(computing.filter(pl.col("process_id") == one)).within(spans.filter(pl.col("process_id") == one))
        for one in spans.get_column("process_id").unique()
    }
    lengths = dict(spans.group_by("process_id").agg((pl.col("end_ns") - pl.col("start_ns")).sum()).iter_rows())
    others = [one for one in busy if one != process]
    if process not in busy or not others:
        return None, None
    idle = {one: lengths[one] - busy[one] for one in busy}
    excess = lengths[process] - _median([lengths[one] for one in others])
    if excess <= 0:
        return None, None
    longer, times, elsewhere = _of_kernels(process, computing, spans, len(others))
    waiting = idle[process] - _median([idle[one] for one in others])
    working = excess - waiting - longer - elsewhere
    parts: list[tuple[float, Cause]] = [(waiting, "host"), (longer, "device"), (elsewhere, "data"), (working, "work")]
    most, cause = max(parts)
    if most < _EXPLAINS * excess:
        return None, None
    return cause, times if cause == "device" else None


def _rank(process: int, tables: Mapping[str, pl.DataFrame]) -> int | None:
    """Return the process's rank; None if none is stated or another participating process has the same.

    All processes that inherit one launcher's environment variable report its value.
    """
    ranked = tables["processes"].join(tables["collectives"].select("process_id").unique(), on="process_id", how="semi")
    ranks = dict(ranked.drop_nulls("rank").select("process_id", "rank").iter_rows())
    own = ranks.get(process)
    return own if list(ranks.values()).count(own) == 1 else None


def _lateness(process: int, known: pl.DataFrame, dispatches: pl.DataFrame) -> pl.DataFrame:
    """Times of each of the process's collectives, whether it arrived last, and its delay after the first (else 0)."""
    own = known.filter(pl.col("process_id") == process).join(
        dispatches.select("dispatch_id", "iteration", "start_ns", "end_ns"), on="dispatch_id"
    )
    longest = known.group_by("collective_id").agg(longest_ns=pl.col("wait_ns").max())
    last = pl.col("is_straggler").fill_null(False)
    return own.join(longest, on="collective_id").select(
        *("collective_id", pl.col("name").cast(pl.String), "iteration", "start_ns", "end_ns"),
        is_last=last,
        late_ns=pl.when(last).then("longest_ns").otherwise(0),
    )


def _between(collectives: pl.DataFrame, dispatches: pl.DataFrame) -> pl.DataFrame:
    """Intervals from the end of one collective to the start of the next, per process, on its own clock."""
    own = dispatches.join(collectives.select("dispatch_id").unique(), on="dispatch_id", how="semi")
    ordered = own.drop_nulls(["start_ns", "end_ns"]).sort("process_id", "start_ns")
    starts = pl.col("end_ns").shift(1).over("process_id")
    return ordered.select("process_id", start_ns=starts, end_ns="start_ns").filter(
        pl.col("start_ns") < pl.col("end_ns")
    )


def _of_kernels(
    process: int, computing: pl.DataFrame, spans: pl.DataFrame, others: int
) -> tuple[float, float | None, float]:
    """Return the excess time of launches shared with others, the corresponding factor, and the time on its own grids.

    The last value is the time beyond the others' in the same kernels, on grids that they do not have.
    """
    bounds = spans.group_by("process_id").agg(first=pl.col("start_ns").min(), last=pl.col("end_ns").max())
    within = computing.join(bounds, on="process_id").filter(
        (pl.col("start_ns") >= pl.col("first")) & (pl.col("end_ns") <= pl.col("last"))
    )
    is_late = pl.col("process_id") == process
    time = pl.col("end_ns") - pl.col("start_ns")
    by_grid = within.group_by("kernel_id", *GRID).agg(
        own=time.filter(is_late).sum(),
        count=is_late.sum(),
        theirs=time.filter(~is_late).sum(),
        their_count=(~is_late).sum(),
    )
    same = by_grid.filter((pl.col("count") > 0) & (pl.col("their_count") > 0))
    usual = pl.col("theirs") / pl.col("their_count") * pl.col("count")
    took, expected = same.select(pl.col("own").sum(), usual.sum()).row(0)
    longer = float(took - expected)
    by_kernel = by_grid.group_by("kernel_id").agg(
        only_own=pl.col("own").filter(pl.col("their_count") == 0).sum(),
        only_theirs=pl.col("theirs").filter(pl.col("count") == 0).sum() / others,
        shared=pl.col("theirs").sum() > 0,
    )
    moved = by_kernel.filter("shared").select((pl.col("only_own") - pl.col("only_theirs")).sum()).item()
    return longer, float(took / expected) if expected else None, float(moved or 0.0)


def _median(values: list[int]) -> float:
    return float(pl.Series(values).median() or 0.0)  # type: ignore[arg-type]
