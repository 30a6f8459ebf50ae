"""What is done to a measured process from outside, and what of it is proved to have been delivered.

A process that is busy on its CPU or moves memory beside it, stops, a quota, packets. What is done from inside the
process is `injected_delays/sitecustomize.py`.
"""

import mmap
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

TARGET_CPU: Final = 1
_GROUP: Final = Path("/sys/fs/cgroup/cpu/aaco_spike_causes")
_STEERING: Final = Path("/sys/class/net/lo/queues/rx-0/rps_cpus")
_LEFT_BYTES: Final = 640 << 20
_POPULATE: Final = 0x8000  # MAP_POPULATE
_HOG: Final = """
import os, sys, time
cpu, kind = int(sys.argv[1]), sys.argv[2]
os.sched_setaffinity(0, {cpu})
if kind == "memory":
    import numpy
    source = numpy.ones(1 << 24); target = source.copy()
for line in sys.stdin:
    over, before = time.monotonic_ns() + int(line), time.process_time_ns()
    start = time.monotonic_ns()
    while time.monotonic_ns() < over:
        if kind == "memory": target[:1 << 20] = source[:1 << 20]; source[1 << 23:(1 << 23) + (1 << 20)] += 1
        else:
            for _ in range(500): pass
    print(start, time.monotonic_ns(), time.process_time_ns() - before, flush=True)
"""


@dataclass
class Told:
    """What one injector tells: when it delivered something, and by which threads; it ends when it is `over`."""

    delivered: list[tuple[int, int]] = field(default_factory=list)
    injecting: list[int] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)


def from_outside(kind: str, folder: Path, chance: random.Random, told: Told) -> None:
    """Do this to the process whose number the folder has, at random instants, until it is over."""
    while not (folder / "pid").exists():
        if told.over.wait(0.005):
            return
    pid = int((folder / "pid").read_text() or 0) or int((folder / "pid").read_text())
    told.injecting.append(threading.get_native_id())
    with _MAKERS[kind](pid, told) as deliver:
        while not told.over.wait(chance.uniform(0.04, 0.14)):
            done = deliver(int(chance.uniform(3e6, 12e6)))
            told.delivered += done


Deliver = Callable[[int], list[tuple[int, int]]]


@contextmanager
def _busy(cpu: int, kind: str, told: Told) -> Iterator[Deliver]:
    """A process that is busy on one CPU when told; what counts is the CPU time that it had."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HOG, str(cpu), kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    told.injecting.append(process.pid)
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, process.pid, -10)
    taking, giving = process.stdin, process.stdout

    def deliver(length: int) -> list[tuple[int, int]]:
        taking.write(f"{length}\n")
        taking.flush()
        start, end, spent = map(int, giving.readline().split())
        return [(start, end)] if spent > length // 4 else []

    try:
        yield deliver
    finally:
        process.kill()
        process.wait()
        taking.close()
        giving.close()


@contextmanager
def _stopping(pid: int, told: Told) -> Iterator[Deliver]:
    del told

    def deliver(length: int) -> list[tuple[int, int]]:
        try:
            os.kill(pid, signal.SIGSTOP)
            start = time.monotonic_ns()
            time.sleep(length / 1e9)
            end = time.monotonic_ns()
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            return []
        return [(start, end)]

    yield deliver


@contextmanager
def _quota(pid: int, told: Told) -> Iterator[Deliver]:
    """A group whose quota is a fifth for a while; delivered are the instants at which its count of throttling rises."""
    del told
    _GROUP.mkdir(exist_ok=True)
    (_GROUP / "cpu.cfs_period_us").write_text("10000")
    (_GROUP / "cgroup.procs").write_text(str(pid))

    def throttled() -> int:
        return int((_GROUP / "cpu.stat").read_text().split()[3])

    def deliver(length: int) -> list[tuple[int, int]]:
        counted, over = throttled(), time.monotonic_ns() + length + 10_000_000
        seen = []
        (_GROUP / "cpu.cfs_quota_us").write_text("2000")
        while (at := time.monotonic_ns()) < over:
            if (now := throttled()) > counted:
                counted = now
                seen.append((at, at + 1))  # whoever is throttled at this instant is kept from ending its iteration
            time.sleep(0.0003)
        (_GROUP / "cpu.cfs_quota_us").write_text("-1")
        return seen

    try:
        yield deliver
    finally:
        with suppress(OSError):
            (_GROUP / "cpu.cfs_quota_us").write_text("-1")
        for _ in range(100):
            with suppress(OSError):
                _GROUP.rmdir()
                break
            time.sleep(0.05)


@contextmanager
def _packets(pid: int, told: Told) -> Iterator[Deliver]:
    """Packets on the loopback, sent by the other CPU, whose softirqs the kernel is told to run on the measured one."""
    del pid, told
    before = _STEERING.read_text()
    _STEERING.write_text(f"{1 << TARGET_CPU:x}")
    sender, taker = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
    taker.bind(("127.0.0.1", 0))
    sender.connect(taker.getsockname())
    content = bytes(1400)

    def deliver(length: int) -> list[tuple[int, int]]:
        os.sched_setaffinity(threading.get_native_id(), {1 - TARGET_CPU})
        start = time.monotonic_ns()
        sent = 0
        while time.monotonic_ns() < start + 2 * length:
            with suppress(OSError):
                sender.send(content)
                sent += 1
        return [(start, time.monotonic_ns())] if sent > 100 else []

    try:
        yield deliver
    finally:
        _STEERING.write_text(before)
        sender.close()
        taker.close()


_MAKERS: Final[dict[str, Callable[[int, Told], Any]]] = {
    "hog": lambda _, told: _busy(TARGET_CPU, "busy", told),
    "memory_hog": lambda _, told: _busy(1 - TARGET_CPU, "memory", told),
    "stop": _stopping,
    "quota": _quota,
    "softirq": _packets,
}


@contextmanager
def memory_held() -> Iterator[None]:
    """All memory that is free but a little is used by this process."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemFree"))
    if free <= _LEFT_BYTES:
        yield
        return
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _POPULATE
    with mmap.mmap(-1, free - _LEFT_BYTES, flags=flags):
        yield
