"""What explains a part of a share: a busy CPU, a late rank, a clock held down, work that only first calls do.

A reason never adds time: it names a part of a share that is there. It becomes the session's class when it explains more
than half of the largest share.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
import polars as pl

from aaco_pipeline.analysis.answer.shares import DEVICE
from aaco_pipeline.analysis.sessions.iteration_gaps import Usage
from aaco_pipeline.analysis.timeline.device_timeline import Coverage, covered_by

CONTENTION: Final = "contention"
IMBALANCE: Final = "imbalance"
THROTTLING: Final = "throttling"
#: Kinds of `first_calls` that cost time in a steady state, too, where they recur.
RECURRING: Final = ("allocation", "compilation", "page_faults")
#: Idle shares that the host's threads cause.
_OF_HOST: Final = ("sync", "launch", "host")
#: A sample counts as taken under load when the engine was busy for at least this share of the firmware's window.
_LOADED: Final = 0.5
#: A limit that costs less of the clock than this is none: samples of a clock scatter by as much.
_LEAST_LOSS: Final = 0.05
#: Limits whose names in `throttle_reasons` say power and current, and temperature, as the driver spells them.
#: A hardware slowdown of NVIDIA's is one of power or of temperature, whichever the board says.
_POWER: Final = (
    r"(?i)^(?:ppt\d?|spl|fppt|sppt(?:_apu)?|tdc_\w+|edc_\w+|apcc|ppm"
    r"|sw_power_cap|board_limit|hw_power_brake_slowdown|hw_slowdown)$"
)
_THERMAL: Final = r"(?i)thm|temp|therm|^vrhot|^prochot"


def contention(shares: Mapping[str, int], unprofiled: Usage) -> dict[str, int]:
    """Per share that the host causes, the part in which its threads waited for a CPU in the unprofiled pass."""
    caused = sum(shares[name] for name in _OF_HOST)
    if not unprofiled.length_ns or not unprofiled.run_delay_ns or not caused:
        return {}
    window = sum(shares.values())
    part = min(1.0, unprofiled.run_delay_ns / unprofiled.length_ns * window / caused)
    return {name: round(shares[name] * part) for name in _OF_HOST if shares[name]}


def imbalance(shares: Mapping[str, int], collectives: pl.DataFrame, dispatches: pl.DataFrame) -> dict[str, int]:
    """The part of `communication` in which the judged device's process waited for the last one to arrive.

    `collectives` (dispatch_id, wait_ns) and the judged device's `dispatches` of the window. A wait that compute hid is
    in no share, so that waits count for no more than their part of all collectives' time.
    """
    own = collectives.drop_nulls("wait_ns").join(dispatches, on="dispatch_id", how="semi")
    length = dispatches.join(collectives, on="dispatch_id", how="semi").select(pl.col("end_ns") - pl.col("start_ns"))
    spent = int(length.to_series().sum())
    if not own.height or not spent or not shares.get("communication"):
        return {}
    part = min(1.0, int(own.get_column("wait_ns").sum()) / spent)
    return {"communication": round(shares["communication"] * part)} if part else {}


def samples_of_the_run(tables: Mapping[str, pl.DataFrame], inside: pl.DataFrame) -> pl.DataFrame:
    """The samples of devices that ran the workload: a capture's may be of all cards of a host, at others' work too.

    A session that was run here has its host to itself, and its sampler numbers the devices apart from the kernels'.
    """
    samples, sessions = tables["gpu_samples"], tables["sessions"]
    if not sessions.filter(pl.col("source_kind") == "capture").height:
        return samples
    return samples.filter(pl.col("device_id").is_in(inside.get_column("device_id").unique().implode()))


def throttling(shares: Mapping[str, int], samples: pl.DataFrame, devices: pl.DataFrame) -> dict[str, int]:
    """The part of `device` that a clock held below its highest cost, where the driver's counters name such a limit.

    time x (1 - median clock / highest clock), over samples under load in which power, current or temperature limited.
    A temperature alone says nothing.
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
    """By share and kind, idle time of the steady window that allocations, compilations or page faults fill.

    `idle` has share, start_ns and end_ns of stretches without overlap, `pieces` (start_ns, end_ns) are the window: what
    lies between two of them, an interruption or what a first call did, explains nothing of it.
    """
    found: dict[tuple[str, str], int] = {}
    window = _covered(pieces)
    for kind in RECURRING:
        calls = first_calls.filter(pl.col("kind") == kind).select("start_ns", "end_ns")
        if not calls.height:
            continue
        # What two sets of intervals share is what both cover less what either does.
        during, either = _covered(calls), _covered(pl.concat([calls, pieces.select("start_ns", "end_ns")]))
        for (share,), own in idle.group_by("share", maintain_order=True):
            starts, ends = own.get_column("start_ns").to_numpy(), own.get_column("end_ns").to_numpy()
            both = during.between(starts, ends) + window.between(starts, ends) - either.between(starts, ends)
            time = int(both.sum())
            if time:
                found[str(share), kind] = time
    return found


def _covered(stretches: pl.DataFrame) -> Coverage:
    return covered_by(stretches.get_column("start_ns").to_numpy(), stretches.get_column("end_ns").to_numpy())
