"""Measure what the sampler beside a run costs the measured process, in interleaved blocks with and without it.

Each block runs squeezenet in one fresh process twice, once sampled and once not, in alternating order; the ratio of
CPU time per iteration within a block says what the sampler cost, whatever else the host does meanwhile. Run as
`python benchmarks/sampler_cost.py --blocks 24`; it exits with 1 when the upper 95 % limit of the cost is above 2 %.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from scipy import stats

from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.resources.measure import inference, inference_worker
from aaco_pipeline.resources.telemetry.sampler import DEFAULT_INTERVAL_NS, SystemSampler

ROOT: Final = Path(__file__).parents[1]
WORKER: Final = Path(inference_worker.__file__)
#: What the sampler may cost the measured process, as a share of its CPU time.
ACCEPTED_COST_RATIO: Final = 0.02


@dataclass(frozen=True)
class Run:
    """CPU and wall time per iteration of one process, in nanoseconds, and the sampler's own document if it ran."""

    cpu_ns: float
    wall_ns: float
    telemetry: dict[str, Any] | None


def run_once(job: dict[str, Any], interval_ns: int | None) -> Run:
    """One fresh process of the measured kind; sampled every `interval_ns`, or not at all."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "job.json").write_text(json.dumps(job))
        command = [sys.executable, "-P", str(WORKER), str(folder / "job.json"), name, str(os.getpid())]
        sampler = None if interval_ns is None else SystemSampler(interval_ns)
        with sampler or nullcontext():
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
            if sampler is not None:
                sampler.watch(process.pid, "latency")
            assert process.stdout is not None
            for _ in process.stdout:  # as the runner waits: in a blocking read
                pass
            status = process.wait()
        if status != 0:
            raise SystemExit(f"the measured process ended with {status}: {(folder / 'error.json').read_text()}")
        outcome = json.loads((folder / "pass.json").read_text())
    first = outcome["warmup"]
    walls = [
        end - start
        for start, end in zip(outcome["start_monotonic_ns"][first:], outcome["end_monotonic_ns"][first:], strict=True)
    ]
    cpu_ns = sum(block["cpu_time_ns"] for block in outcome["blocks"][1:]) / outcome["iterations"]  # without the warm-up
    documents = None if sampler is None else sampler.samples()
    return Run(cpu_ns, statistics.fmean(walls), documents)


def ratio_with_limits(pairs: list[tuple[float, float]]) -> tuple[float, float, float]:
    """Geometric mean of sampled over unsampled, and its two-sided 95 % t-interval over the blocks' log-ratios.

    Taken at the logarithm, because times are positive and costs multiply; each block counts once.
    """
    logs = [math.log(sampled / unsampled) for sampled, unsampled in pairs]
    mean = statistics.fmean(logs)
    half = stats.t.ppf(0.975, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--blocks", type=int, default=24)
    parser.add_argument("--iterations", type=int, default=400)
    parser.add_argument("--interval-ms", type=float, default=DEFAULT_INTERVAL_NS / 1e6)
    chosen = parser.parse_args()
    interval_ns = int(chosen.interval_ms * 1e6)
    request = MeasurementRequest(model="squeezenet", iterations=chosen.iterations, warmup=20)
    model, backend = inference.plan(request, ROOT / "configs")
    job = {**inference._job(request, model, backend), "pass": "latency"}
    run_once(job, None)  # the model's file and the runtime's libraries are in memory from here on
    blocks: list[tuple[Run, Run]] = []
    for number in range(chosen.blocks):
        first_sampled = number % 2 == 0
        one = run_once(job, interval_ns if first_sampled else None)
        other = run_once(job, None if first_sampled else interval_ns)
        blocks.append((one, other) if first_sampled else (other, one))
        sampled, unsampled = blocks[-1]
        print(
            f"block {number + 1:3}: CPU {sampled.cpu_ns / 1e6:.3f} ms sampled, {unsampled.cpu_ns / 1e6:.3f} ms not, "
            f"ratio {sampled.cpu_ns / unsampled.cpu_ns:.4f}",
            flush=True,
        )
    cpu = ratio_with_limits([(sampled.cpu_ns, unsampled.cpu_ns) for sampled, unsampled in blocks])
    wall = ratio_with_limits([(sampled.wall_ns, unsampled.wall_ns) for sampled, unsampled in blocks])
    documents = [sampled.telemetry for sampled, _ in blocks if sampled.telemetry is not None]
    rows = sum(len(document["columns"]["time_ns"]) for document in documents)
    overruns = sum(document["overruns"] for document in documents)
    used = sum(document["sampler_cpu_ns"] for document in documents)
    seconds = sum(
        (document["clocks_after"]["monotonic_ns"] - document["clocks_before"]["monotonic_ns"]) / 1e9
        for document in documents
    )
    print(f"{len(blocks)} blocks, every {interval_ns / 1e6:g} ms, load {os.getloadavg()[0]:.2f}")
    for name, (ratio, low, high) in (("CPU time", cpu), ("wall time", wall)):
        print(f"{name} of an iteration, sampled over not: {ratio:.4f} (95 %: {low:.4f} to {high:.4f})")
    print(
        f"the sampler used {used / seconds / 1e6:.2f} ms of CPU a second: {used / rows / 1e3:.0f} us a row, "
        f"{rows} rows, {overruns} missed"
    )
    accepted = cpu[2] - 1 <= ACCEPTED_COST_RATIO
    verdict = "accepted" if accepted else "NOT ACCEPTED"
    print(f"upper limit of the cost in CPU time {cpu[2] - 1:+.2%}: {verdict} (limit {ACCEPTED_COST_RATIO:.0%})")
    return 0 if accepted else 1


if __name__ == "__main__":
    sys.exit(main())
