"""Read this host's clocks together, check PID and time namespaces, and pace the sampling threads.

The other modules of this package decide what is sampled at these times.
"""

import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

#: Two clocks that are read in succession differ by less.
_LEAST_SUSPENDED_NS: Final = 1_000_000


def clock_readings() -> dict[str, int]:
    """Relate CLOCK_MONOTONIC to CLOCK_REALTIME and CLOCK_BOOTTIME: the tightest of several bracketed readings.

    `uncertainty_ns` is half the bracket that contains both other readings.
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
    """Return how long the host was suspended between two readings, while CLOCK_MONOTONIC stopped; 0 below 1 ms."""
    apart = (after["boottime_ns"] - after["monotonic_ns"]) - (before["boottime_ns"] - before["monotonic_ns"])
    return apart if apart > _LEAST_SUSPENDED_NS else 0


def which_clock(event_ns: int, before: dict[str, int], after: dict[str, int]) -> dict[str, Any]:
    """Return the clock that timed an event between two clock readings, and its offset to CLOCK_MONOTONIC.

    A tool's documentation does not settle this (it changed between versions), so the event's time does. ValueError if
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
        # Not suspended since boot, or for less time than the tool took to start: both clocks are equally good.
        return {"name": "CLOCK_MONOTONIC", "to_monotonic_ns": 0, "uncertainty_ns": max(uncertainty, abs(apart))}
    if fits["monotonic"]:
        return {"name": "CLOCK_MONOTONIC", "to_monotonic_ns": 0, "uncertainty_ns": 0}
    if fits["boottime"]:
        return {"name": "CLOCK_BOOTTIME", "to_monotonic_ns": -apart, "uncertainty_ns": uncertainty}
    raise ValueError("its times are of neither CLOCK_MONOTONIC nor CLOCK_BOOTTIME")


#: The kernel's initial namespaces have fixed numbers (`include/uapi/linux/nsfs.h`); all others differ.
_FIRST: Final = {"pid": 0xEFFFFFFC, "time": 0xEFFFFFFA}
_NAMESPACES: Final = Path("/proc/self/ns")


class NotPossible(Exception):
    """The kernel's events cannot be recorded here: the reason and the remedy."""

    def __init__(self, reason: str, fix: str) -> None:
        super().__init__(reason)
        self.fix = fix


def why_apart() -> tuple[str, str] | None:
    """Explain why kernel events cannot be matched to this process, and the remedy; None if they can.

    Events use thread numbers of the first PID namespace and clocks of the first time namespace: in any other namespace
    they would silently be attributed to wrong threads or times.
    """
    if _is_apart("pid"):
        return (
            "this container numbers its threads otherwise than the kernel's events do",
            "start the container with the host's PID namespace (--pid=host)",
        )
    if _is_apart("time"):
        return (
            "this container's clocks are set otherwise than those of the kernel's events",
            "start it without a time namespace",
        )
    return None


def _is_apart(kind: str) -> bool:
    try:
        return (_NAMESPACES / kind).stat().st_ino != _FIRST[kind]
    except FileNotFoundError:
        return False  # a kernel without such namespaces has a single one for all


def name_this_thread(name: str) -> None:
    """Name the calling thread (the kernel keeps 15 bytes); without /proc its name is unchanged.

    `top` and recordings then show which of our threads had the CPU.
    """
    with suppress(OSError):
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name)


def give_way() -> None:
    """Never let this thread preempt a running one: a late reading costs less than taking the measured process's CPU."""
    with suppress(OSError):
        os.sched_setscheduler(threading.get_native_id(), os.SCHED_BATCH, os.sched_param(0))


def next_instant(now_ns: int, period_ns: int) -> int:
    """Return the next multiple of the period on CLOCK_MONOTONIC after `now_ns`.

    Threads whose periods divide one another wake together and thus disturb one measured iteration instead of several.
    """
    return now_ns - now_ns % period_ns + period_ns
