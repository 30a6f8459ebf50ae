"""Read this host's clocks together, return whether the kernel counts threads and time as we do, and pace our threads.

What is sampled at these times is decided in the modules beside this one.
"""

import os
import threading
import time
from contextlib import suppress
from pathlib import Path
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


#: The kernel's own namespaces have fixed numbers (`include/uapi/linux/nsfs.h`); every other one has another.
_FIRST: Final = {"pid": 0xEFFFFFFC, "time": 0xEFFFFFFA}
_NAMESPACES: Final = Path("/proc/self/ns")


class NotPossible(Exception):
    """The kernel's events cannot be recorded here: the reason, and what to do about it."""

    def __init__(self, reason: str, fix: str) -> None:
        super().__init__(reason)
        self.fix = fix


def why_apart() -> tuple[str, str] | None:
    """Explain why the kernel's events cannot be matched with this process's view, and what to do; None where they can.

    Events name threads by the first PID namespace, and their clocks are those of the first time namespace: from
    another one they would be of other threads, or of other times, and nothing in them would say so.
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
        return False  # a kernel without such namespaces has one for all


def name_this_thread(name: str) -> None:
    """Name the calling thread (the kernel keeps 15 bytes); without /proc it keeps its name.

    Whoever reads `top` or a recording sees which of ours had the CPU.
    """
    with suppress(OSError):
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name)


def give_way() -> None:
    """Have the kernel never interrupt a running thread for this one: a reading that waits costs less than one that
    takes the CPU from the measured process. On a host with a CPU to spare it makes no difference.
    """
    with suppress(OSError):
        os.sched_setscheduler(threading.get_native_id(), os.SCHED_BATCH, os.sched_param(0))


def next_instant(now_ns: int, period_ns: int) -> int:
    """The next whole multiple of the period on CLOCK_MONOTONIC after `now_ns`.

    Threads of periods that divide one another wake together: one iteration of what is measured is hit, not several.
    """
    return now_ns - now_ns % period_ns + period_ns
