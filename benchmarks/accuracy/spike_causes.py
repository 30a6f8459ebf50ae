"""Check that latency spikes get the cause that an injector proves it delivered. Run as root.

Delays come from outside (a busy process, SIGSTOP, a quota, packets, a memory hog) or from inside the measured process
(`injected_delays/sitecustomize.py`). Free memory is held meanwhile, so that the host's reclaim does not inflate faults.
`--results FILE` is resumed. Exits with 1 when a cause is right in less than 95 % or wrong in more than 2 %.
"""

import argparse
import json
import math
import mmap
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from aaco_pipeline.analysis.delays import decomposition, grades
from aaco_pipeline.analysis.delays.interference import Costs, interrupt_cost
from aaco_pipeline.analysis.delays.thread_states import PREEMPTED, thread_states
from aaco_pipeline.capture import open_capture
from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.resources.measure.inference import capture_inference
from benchmarks.common import ROOT, resumed

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
    """Account of one injector: when it delivered something, and by which threads; it ends when it is `over`."""

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
    """Packets on the loopback, sent by the other CPU, whose softirqs the kernel runs on the measured one."""
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


SITE: Final = Path(__file__).parent / "injected_delays"
#: By what is done: the causes that are right. Who sends packets takes a CPU, too, where the measured threads have both.
RIGHT: Final = {
    "hog": ("preempted", "preempted by the injector"),
    "stop": ("stopped",),
    "major_faults": ("major_fault",),
    "minor_faults": ("minor_faults",),
    "quota": ("throttled",),
    "softirq": ("interrupts", "preempted by the injector"),
    "fsync": ("disk",),
    "own_work": ("on_cpu_longer",),
    "memory_hog": ("on_cpu_longer",),
}
#: With two threads on two CPUs there is no other core for it.
_ONE_THREAD: Final = ("memory_hog",)
#: Those that nothing outside the program or of the kernel causes: an observed cause is wrong for them.
UNOBSERVED: Final = ("own_work", "memory_hog")
INSIDE: Final = ("own_work", "minor_faults", "major_faults", "fsync")
ITERATIONS: Final = 400
_FILE_BYTES: Final = 64 << 20


def session(kind: str, threads: int, seed: int) -> dict[str, Any]:
    """One session: what was delivered, and the cause that each iteration it fell into was given."""
    chance = random.Random(f"{kind} {threads} {seed}")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        request = request_in(folder, threads, _acts_planned(kind, chance))
        if kind == "major_faults":
            (folder / "pages").write_bytes(os.urandom(1 << 20) * (_FILE_BYTES >> 20))
            os.sync()
        raw = folder / "raw"
        raw.mkdir()
        told = Told()
        outside = None
        if kind not in INSIDE:
            outside = threading.Thread(target=from_outside, args=(kind, folder, chance, told))
            outside.start()
        try:
            capture_inference(request, raw, ROOT / "configs", lambda line: None)
        finally:
            told.over.set()
            if outside is not None:
                outside.join()
        if kind in INSIDE:
            told.delivered += [(one["start_ns"], one["end_ns"]) for one in _acts(folder) if _was_done(kind, one)]
        return {"kind": kind, "threads": threads, "seed": seed, **judged(raw, told)}


def judged(raw: Path, told: Told) -> dict[str, Any]:
    """Verdicts of the rules on the iterations that something was delivered in."""
    tables = open_capture(raw).tables()
    zero = json.loads((raw / "latency.json").read_text())["clocks_before"]["monotonic_ns"]
    names = ("kernel_events", "kernel_threads", "kernel_losses", "kernel_throttling")
    states = thread_states(*(tables[name] for name in names))
    iterations = tables["iterations"].filter(pl.col("pass") == "latency")
    own = tables["kernel_threads"].filter(pl.col("process_id") == 0)
    events = tables["kernel_events"]
    fault_ns = dict(tables["kernel_costs"].iter_rows()).get("latency")
    cost = Costs(fault_ns, interrupt_cost(tables["kernel_probes"], states, events, own, "latency"))
    parts = decomposition.iteration_delays(iterations, states, own, events, cost)
    graded = grades.iteration_grades(iterations, parts)
    rows = iterations.join(graded, on=["pass", "iteration"]).filter(pl.col("phase") == "measure").sort("start_ns")
    begins, ends = rows.get_column("start_ns").to_numpy() + zero, rows.get_column("end_ns").to_numpy() + zero
    hit = np.zeros(rows.height, np.bool_)
    for start, end in told.delivered:
        hit |= (begins < end) & (ends > start)
    touched = rows.filter(pl.Series(hit))
    counted = touched.filter("is_spike")
    by = parts.select("iteration", "cause", pl.col("by_thread_id").is_in(told.injecting).alias("by_injector"))
    counted = counted.join(by, left_on=["iteration", "spike_cause"], right_on=["iteration", "cause"], how="left")
    is_sender = pl.col("by_injector") & (pl.col("spike_cause") == PREEMPTED)
    named = pl.when(is_sender).then(pl.col("spike_cause") + " by the injector").otherwise("spike_cause")
    causes: dict[str, int] = defaultdict(int)
    for cause in counted.select(named.fill_null("unexplained")).to_series():
        causes[cause] += 1
    natural = rows.filter(~pl.Series(hit) & pl.col("is_spike")).get_column("spike_cause").fill_null("unexplained")
    return {
        "delivered": len(told.delivered),
        "touched": touched.height,
        "counted": counted.height,
        "causes": dict(causes),
        "natural": dict(sorted((cause, int(count)) for cause, count in natural.value_counts().iter_rows())),
        "iterations": rows.height,
        "median_ns": int(rows.get_column("latency_ns").median() or 0),  # type: ignore[arg-type]
        "off_by_ns": _off_by(parts, iterations),
    }


def _off_by(parts: pl.DataFrame, iterations: pl.DataFrame) -> int:
    summed = parts.group_by("iteration").agg(pl.col("duration_ns").sum()).join(iterations, on="iteration")
    length = pl.col("end_ns") - pl.col("start_ns")
    return int(summed.select((pl.col("duration_ns") - length).abs().max()).item() or 0)


def request_in(folder: Path, threads: int, acts: dict[str, Any]) -> MeasurementRequest:
    """A session without a trace whose process keeps to its CPUs and does `acts`, by the number of the call."""
    plan = {"cpus": [TARGET_CPU] if threads == 1 else [0, 1], "acts": acts}
    (folder / "plan.json").write_text(json.dumps(plan))
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={SITE}:{ROOT} AACO_INJECTED={folder} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return MeasurementRequest(
        model="squeezenet",
        threads=threads,
        iterations=ITERATIONS,
        warmup=20,
        kernel_plane=True,
        untraced=True,
        interpreter=str(python),
    )


def _acts_planned(kind: str, chance: random.Random) -> dict[str, Any]:
    acts, call = {}, 25
    while kind in INSIDE and call < ITERATIONS:
        acts[str(call)] = {"kind": kind, "amount": chance.uniform(1.5, 8.0)}
        call += chance.randint(8, 30)
    return acts


def _acts(folder: Path) -> list[dict[str, Any]]:
    file = folder / "acts.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def _was_done(kind: str, act: dict[str, Any]) -> bool:
    return bool({"minor_faults": act["minor"] > 100, "major_faults": act["major"] > 0}.get(kind, True))


def wilson(right: int, of: int) -> tuple[float, float]:
    """The 95 % interval of a share, by Wilson's score."""
    if not of:
        return 0.0, 1.0
    z, share = 1.96, right / of
    middle = (share + z * z / (2 * of)) / (1 + z * z / of)
    half = z * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of)) / (1 + z * z / of)
    return max(0.0, middle - half), min(1.0, middle + half)


def print_table(rows: Sequence[dict[str, Any]]) -> bool:
    """Print the table; whether everything that is requested holds."""
    holds = True
    pooled = [0, 0, 0]
    print(f"{'injected':13} threads sessions delivered counted  right  95 % interval    wrong  causes")
    for kind, right_ones in RIGHT.items():
        for threads in (1, 2):
            some = [row for row in rows if row["kind"] == kind and row["threads"] == threads]
            if not some:
                continue
            causes: dict[str, int] = defaultdict(int)
            for row in some:
                for cause, count in row["causes"].items():
                    causes[cause] += count
            counted = sum(causes.values())
            right = sum(causes[cause] for cause in right_ones)
            missing = causes["unexplained"]
            wrong = counted - right - missing
            low, high = wilson(right, counted)
            shares = (right / counted, wrong / counted) if counted else (0.0, 0.0)
            if kind in UNOBSERVED:
                holds &= not counted or shares[1] <= 0.02
            else:
                holds &= shares[0] >= 0.95 and shares[1] <= 0.02
                pooled = [pooled[0] + right, pooled[1] + wrong, pooled[2] + counted]
            listed = ", ".join(f"{cause} {count}" for cause, count in sorted(causes.items(), key=lambda o: -o[1]))
            touched = sum(row["touched"] for row in some)
            print(
                f"{kind:13} {threads:7} {len(some):8} {touched:9} {counted:7} {shares[0]:6.1%}  "
                f"{low:6.1%} to {high:6.1%} {shares[1]:6.1%}  {listed}"
            )
    if pooled[2]:
        low, high = wilson(pooled[0], pooled[2])
        print(f"pooled: right {pooled[0] / pooled[2]:.1%} ({low:.1%} to {high:.1%}), wrong {pooled[1] / pooled[2]:.1%}")
    natural: dict[str, int] = defaultdict(int)
    for row in rows:
        for cause, count in row["natural"].items():
            natural[cause] += count
    print(f"natural spikes: {dict(sorted(natural.items(), key=lambda one: -one[1]))}")
    print(f"parts off the latency by at most {max((row['off_by_ns'] for row in rows), default=0)} ns")
    return holds


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sessions", type=int, default=10)
    parser.add_argument("--kind", choices=tuple(RIGHT), action="append")
    parser.add_argument("--tuning", action="store_true", help="sessions that rules may be tuned on")
    parser.add_argument("--results", type=Path, required=True)
    options = parser.parse_args(arguments)
    first = 10_000 if options.tuning else 0
    with resumed(options.results) as (rows, done, keep), memory_held():
        for seed in range(first, first + options.sessions):
            for kind in options.kind or RIGHT:
                for threads in (1, 2):
                    if threads > 1 and kind in _ONE_THREAD:
                        continue
                    if (kind, threads, seed) not in done:
                        keep(session(kind, threads, seed))
    return 0 if print_table(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
