"""How a session's time is shared out among causes: each signal a share of one window, so that shares compare.

A device that is launched onto is judged by its own window: busy by what its kernels are limited by, idle by the causes
of its gaps. On the CPU provider, where host and device are one, the window is the iterations without a profiler.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
import polars as pl

from aaco_pipeline.analysis.bottlenecks.rules import Signal
from aaco_pipeline.analysis.sessions.iteration_gaps import Usage
from aaco_pipeline.analysis.timeline.device_timeline import FIRST_TO_LAST

#: Host work between two launches that is no longer than this is the framework on its way to the next launch.
LAUNCH_PACE_NS: Final = 30_000
#: After a wait that drained the queue, so many launches are made before the host can have run ahead of the device.
LAUNCHES_TO_RUN_AHEAD: Final = 8
#: Limits whose names in `throttle_reasons` say power and current, and temperature, as the driver spells them.
_POWER: Final = r"(?i)^(?:ppt\d?|spl|fppt|sppt(?:_apu)?|tdc_\w+|edc_\w+|apcc|ppm)$"
_THERMAL: Final = r"(?i)thm|temp|therm|^vrhot|^prochot"
#: A sample counts as taken under load when the engine was busy for at least this share of the firmware's window.
_LOADED: Final = 0.5
#: Causes that a device's window, or an iteration, is shared out among, beside the kernels' labels.
_WINDOW_CAUSES: Final = (
    *("sync", "launch", "host", "copy", "communication", "host_contention"),
    *("idle_unexplained", "idle_unrecorded", "busy_unexplained"),
)


def shares_of_busy_time(kernels: pl.DataFrame) -> dict[str, float]:
    """Per label its share of all kernels' time (label, total_ns); of those without one under `busy_unexplained`."""
    total = kernels.get_column("total_ns").sum()
    if not total:
        return {}
    named = kernels.with_columns(pl.col("label").fill_null("busy_unexplained"))
    sums = named.group_by("label").agg(pl.col("total_ns").sum()).sort("label")
    return {label: float(time / total) for label, time in sums.iter_rows()}


def device_shares(
    timeline: pl.DataFrame, gaps: pl.DataFrame, unprofiled: Usage, busy: Mapping[str, float]
) -> dict[str, float]:
    """Shares of the devices' first-to-last windows, by cause; they add up to 1. Empty without a window.

    `gaps` is the table, of which cause, start_ns, end_ns, outside_ns, launches_since_wait and doubt are read; `busy`
    shares out the time of compute kernels. Device overlap counts once. Idle time for which the host was waiting for a
    CPU in the `unprofiled` pass, as far as the host caused it at all, is contention's.
    """
    windows = timeline.filter(pl.col("window_rule") == FIRST_TO_LAST)
    length = int((windows.get_column("window_end_ns") - windows.get_column("window_start_ns")).sum())
    if not length or windows.get_column("busy_ns").null_count():
        return {}
    shares = dict.fromkeys(_WINDOW_CAUSES, 0.0)
    measured = {name: int(windows.get_column(name).fill_null(0).sum()) for name in _BUSY}
    shares["copy"] = measured["exposed_copy_ns"] / length
    shares["communication"] = measured["exposed_communication_ns"] / length
    computing = measured["busy_ns"] / length - shares["copy"] - shares["communication"]
    for label, share in (busy or {"busy_unexplained": 1.0}).items():
        shares[label] = shares.get(label, 0.0) + share * computing
    for cause, time in _idle(gaps).items():
        shares[cause] += time / length
    return _with_contention(shares, unprofiled)


def host_shares(unprofiled: Usage, traced: Usage, self_ns: int, busy: Mapping[str, float]) -> dict[str, float]:
    """Shares of the unprofiled iterations on the CPU provider, by cause; they add up to 1. Empty without iterations.

    Threads that wanted a CPU waited for one (`host_contention`, from run-queue delay), or none wanted one (`host`: it
    slept or waited for something else); what is left ran. Of that, operators' own time in the traced pass (`self_ns`)
    is `busy`'s, and the rest is the runtime between operators (`launch`).
    """
    length, cpu, delay = unprofiled.length_ns, unprofiled.cpu_time_ns, unprofiled.run_delay_ns
    if not length or cpu is None:
        return {}
    wanted = cpu + (delay or 0)
    asleep = min(1.0, max(0.0, 1 - wanted / length))
    contended = (1 - asleep) * (delay or 0) / wanted if wanted else 0.0
    running = 1 - asleep - contended
    shares = dict.fromkeys(_WINDOW_CAUSES, 0.0)
    shares["host"], shares["host_contention"] = asleep, contended
    if not busy or not traced.iterations:
        shares["busy_unexplained"] = running
        return shares
    own = self_ns / traced.iterations * on_cpu_ratio(traced)
    in_operators = min(1.0, own / (running * length / unprofiled.iterations)) if running else 0.0
    for label, share in busy.items():
        shares[label] = shares.get(label, 0.0) + running * in_operators * share
    shares["launch"] += running * (1 - in_operators)
    return shares


def on_cpu_ratio(traced: Usage) -> float:
    """Share of the traced iterations' runnable time in which their threads had a CPU; 1 where it was not read."""
    cpu, delay = traced.cpu_time_ns, traced.run_delay_ns
    return cpu / (cpu + delay) if cpu and delay else 1.0


def clock_signals(samples: pl.DataFrame, devices: pl.DataFrame, busy: float | None) -> dict[str, Signal]:
    """What held a device's clock down while it was loaded, as shares of the window; `busy` is the device's busy share.

    By the throttle counters alone: a temperature says nothing of whether it limited anything.
    """
    loaded = samples.filter(pl.col("gfx_activity_ratio").fill_null(1.0) >= _LOADED)
    reasons = loaded.drop_nulls("throttle_reasons").get_column("throttle_reasons")
    known = busy is not None and len(reasons) > 0
    signals = {}
    for name, pattern in (("power_throttled", _POWER), ("thermally_throttled", _THERMAL)):
        held = reasons.list.eval(pl.element().str.contains(pattern)).list.any().mean() if known else None
        share = float(held) * (busy or 0.0) if isinstance(held, float) else None
        signals[name] = Signal(share, "ratio", "gpu_samples", None if known else _NO_THROTTLE)
    highest = loaded.join(devices.select("device_id", "max_clock_mhz"), on="device_id", how="left")
    loss = 1 - (highest.get_column("gfx_clock_mhz") / highest.get_column("max_clock_mhz")).drop_nulls()
    value = float(np.median(loss.to_numpy())) if len(loss) and busy is not None else None
    below = None if value is None else min(1.0, max(0.0, value))
    signals["clock_below_highest"] = Signal(
        below, "ratio", "gpu_samples", None if below is not None else "no clock was sampled under load"
    )
    lost = None if below is None else below * (busy or 0.0)
    signals["share_frequency_scaling"] = Signal(
        lost, "ratio", "gpu_samples", None if lost is not None else "no clock was sampled under load"
    )
    return signals


def steadiness_signals(metrics: pl.DataFrame, iterations: pl.DataFrame) -> dict[str, Signal]:
    """Whether measured iterations ran at one level, and how much of their time was above their last third's median."""
    judged = metrics.filter((pl.col("metric") == "steady_state") & (pl.col("pass") == "latency")).drop_nulls("value")
    steady = float(judged.item(0, "value")) if judged.height else None
    own = iterations.filter((pl.col("pass") == "latency") & (pl.col("phase") == "measure")).sort("iteration")
    latency = own.get_column("latency_ns").drop_nulls().cast(pl.Float64).to_numpy()
    excess = None
    if len(latency) and steady is not None and latency.sum() > 0:
        level = float(np.median(latency[-max(1, len(latency) // 3) :]))
        excess = float(np.maximum(latency - level, 0.0).sum() / latency.sum())
    why = "too few measured iterations to judge their level"
    return {
        "steady_state": Signal(steady, "flag", "session_metrics", None if steady is not None else why),
        "share_warmup_instability": Signal(excess, "ratio", "iterations", None if excess is not None else why),
    }


def _idle(gaps: pl.DataFrame) -> dict[str, int]:
    """Idle nanoseconds by cause: how the causes of single gaps become those of a session.

    After a wait that drained the queue the next few launches cannot be ahead of the device: what they leave idle is the
    wait's, not the launches'. Gaps with a `doubt` have no other cause. Host work in short pieces between launches is
    the way to the next launch.
    """
    length = pl.col("end_ns") - pl.col("start_ns")
    drained = pl.col("cause").is_in(["host_wait", "launch_latency"])
    drained &= (pl.col("launches_since_wait") <= LAUNCHES_TO_RUN_AHEAD).fill_null(False)
    late = (pl.col("cause") == "host_wait") & ~drained
    outside = pl.when(late).then(pl.col("outside_ns").fill_null(length))
    away = pl.when(outside > LAUNCH_PACE_NS).then(outside).otherwise(0)
    rows = gaps.select(
        sync=pl.when(drained | pl.col("cause").is_in(["sync", "dependency"])).then(length),
        host=away,
        launch=pl.when(late)
        .then(length - away)
        .when(~drained & pl.col("cause").is_in(["launch_latency", "kernel_kernel"]))
        .then(length),
        idle_unexplained=pl.when((pl.col("cause") == "unknown") & pl.col("doubt").is_null()).then(length),
        # It looks idle, and a finding says that work may have run there of which there is no record.
        idle_unrecorded=pl.when(pl.col("doubt").is_not_null()).then(length),
    ).sum()
    return {name: int(rows.item(0, name) or 0) for name in rows.columns}


def _with_contention(shares: dict[str, float], unprofiled: Usage) -> dict[str, float]:
    """Takes from the host's idle time what its threads spent waiting for a CPU."""
    hosts = ("sync", "launch", "host")
    caused = sum(shares[name] for name in hosts)
    if not unprofiled.length_ns or not unprofiled.run_delay_ns or not caused:
        return shares
    taken = min(caused, unprofiled.run_delay_ns / unprofiled.length_ns)
    for name in hosts:
        shares[name] *= 1 - taken / caused
    shares["host_contention"] = taken
    return shares


_BUSY: Final = ("busy_ns", "exposed_copy_ns", "exposed_communication_ns")
_NO_THROTTLE: Final = "the driver's throttle counters were not sampled under load"
