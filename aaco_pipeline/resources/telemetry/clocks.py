"""The clocks of this host read together, so that a time on one can be moved to another.

What is timed by them is the business of the modules around this one.
"""

import time
from typing import Any, Final

#: Two clocks that are read after one another differ by less.
_LEAST_SUSPENDED_NS: Final = 1_000_000


def clock_readings() -> dict[str, int]:
    """CLOCK_MONOTONIC against CLOCK_REALTIME and CLOCK_BOOTTIME: the tightest of several bracketed readings.

    `uncertainty_ns` is half the bracket within which both others were read.
    """
    readings = []
    for _ in range(9):
        before = time.monotonic_ns()
        real = time.time_ns()
        boot = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        readings.append((time.monotonic_ns() - before, before, real, boot))
    bracket, before, real, boot = min(readings)
    return {
        "monotonic_ns": before + bracket // 2,
        "realtime_ns": real,
        "boottime_ns": boot,
        "uncertainty_ns": (bracket + 1) // 2,
    }


def suspended_ns(before: dict[str, int], after: dict[str, int]) -> int:
    """For how long the host was suspended between two readings: CLOCK_MONOTONIC stands still then. 0 when it was not,
    or for less than a millisecond.
    """
    apart = (after["boottime_ns"] - after["monotonic_ns"]) - (before["boottime_ns"] - before["monotonic_ns"])
    return apart if apart > _LEAST_SUSPENDED_NS else 0


def which_clock(event_ns: int, before: dict[str, int], after: dict[str, int]) -> dict[str, Any]:
    """By which clock an event between two readings of the clocks was timed, and how to come to CLOCK_MONOTONIC.

    A tool's documentation does not settle it (it changed between versions), so the event's time does. ValueError when
    it fits neither clock.
    """
    apart = before["boottime_ns"] - before["monotonic_ns"]
    bracket = before["uncertainty_ns"] + after["uncertainty_ns"] + 1
    fits = {
        name: before[f"{name}_ns"] - bracket <= event_ns <= after[f"{name}_ns"] + bracket
        for name in ("monotonic", "boottime")
    }
    uncertainty = before["uncertainty_ns"]
    if fits["monotonic"] and fits["boottime"]:
        # Never suspended since boot, or for less than the tool took to start: one clock is as good as the other.
        return {"name": "CLOCK_MONOTONIC", "to_monotonic_ns": 0, "uncertainty_ns": max(uncertainty, abs(apart))}
    if fits["monotonic"]:
        return {"name": "CLOCK_MONOTONIC", "to_monotonic_ns": 0, "uncertainty_ns": 0}
    if fits["boottime"]:
        return {"name": "CLOCK_BOOTTIME", "to_monotonic_ns": -apart, "uncertainty_ns": uncertainty}
    raise ValueError("its times are of neither CLOCK_MONOTONIC nor CLOCK_BOOTTIME")
