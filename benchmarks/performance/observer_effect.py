"""Cost of the kernel plane to what it observes: sessions with and without it in random order. Run as root.

Exits with 1 when an upper 95 % limit of mean wall or CPU time exceeds 1.02.
"""

import argparse
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from scipy import stats

from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.resources.kernel_plane.recording import KernelPlane
from aaco_pipeline.resources.measure.inference import capture_inference
from benchmarks.common import ROOT

MOST: Final = 1.02
_ITERATIONS: Final = 400
_ROUNDS: Final = 100_000
#: Two threads of two processes on one CPU, each of which wakes the other: two switches a round.
_PING: Final = """
import os, sys, time
os.sched_setaffinity(0, {0})
rounds, (a, b), (c, d) = int(sys.argv[1]), os.pipe(), os.pipe()
sys.stdin.readline()
if os.fork() == 0:
    for _ in range(rounds): os.read(a, 1); os.write(d, b"x")
    os._exit(0)
before = time.perf_counter_ns()
for _ in range(rounds): os.write(b, b"x"); os.read(c, 1)
print(time.perf_counter_ns() - before)
"""


def figures(on: bool, threads: int) -> dict[str, float]:
    """Mean wall and CPU time of an iteration and P99, in ns, of one session."""
    with tempfile.TemporaryDirectory() as folder:
        request = MeasurementRequest(
            model="squeezenet", threads=threads, iterations=_ITERATIONS, warmup=20, untraced=True, kernel_plane=on
        )
        capture_inference(request, Path(folder), ROOT / "configs", lambda line: None)
        told: dict[str, Any] = json.loads((Path(folder) / "latency.json").read_text())
    latency = (np.array(told["end_monotonic_ns"]) - np.array(told["start_monotonic_ns"]))[told["warmup"] :]
    blocks = told["blocks"][1:]  # the first is the warm-up's
    spent = sum(one["cpu_time_ns"] for one in blocks) / sum(one["iterations"] for one in blocks)
    return {"wall": float(latency.mean()), "cpu": spent, "p99": float(np.percentile(latency, 99))}


def ratio(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The mean ratio of pairs on/off and its upper 95 % limit, by Student's t of the logarithms."""
    logs = [math.log(on / off) for on, off in pairs]
    mean = statistics.fmean(logs)
    error = statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean + float(stats.t.ppf(0.95, len(logs) - 1)) * error)


def switch_cost() -> tuple[float, float, int]:
    """Cost of a recorded event in ns, how many switches a second there were, and how many events."""

    def run(plane: KernelPlane | None) -> int:
        command = [sys.executable, "-c", _PING, str(_ROUNDS)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            if plane is not None:
                plane.follow(process.pid, "ping")
            output, _ = process.communicate("\n")
        return int(output)

    plain = min(run(None) for _ in range(3))
    recorded, events = [], 0
    for _ in range(3):
        with tempfile.TemporaryDirectory() as folder:
            with KernelPlane(Path(folder)) as plane:
                recorded.append(run(plane))
            events = sum(one["stats"]["read events"] for one in plane.document()["buffers"])
    return (min(recorded) - plain) / events, 2 * _ROUNDS / (min(recorded) / 1e9), events


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    chance, holds = random.Random(options.seed), True
    for threads in (1, 2):
        pairs: list[dict[bool, dict[str, float]]] = []
        for _ in range(options.pairs):
            order = chance.sample([True, False], 2)
            pairs.append({on: figures(on, threads) for on in order})
        for name in ("wall", "cpu", "p99"):
            mean, upper = ratio([(one[True][name], one[False][name]) for one in pairs])
            holds &= name == "p99" or upper <= MOST
            print(f"{threads} threads, {name}: on/off {mean:.4f}, at most {upper:.4f} (95 %)", flush=True)
    cost, rate, events = switch_cost()
    print(f"an event costs {cost:.0f} ns at {rate:,.0f} switches a second ({events:,} events)")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
