"""How our own threads behave beside what is measured: seen by name, in nobody's way, and all awake at one instant."""

import os
import threading
from contextlib import suppress
from pathlib import Path


def name_this_thread(name: str) -> None:
    """Have the kernel call the calling thread `name`, of which it keeps 15 bytes; without /proc it stays as it was.

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
