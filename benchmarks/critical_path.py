"""Time the timeline, the gaps and the critical path with slack on an invented session, by number of kernels.

For each kernel there are two operators, a launch and another call; every 50th is followed by a synchronization, and
the kernels go to four streams in turn, every sixth as a copy. Each size runs in a process of its own. Run as
`python benchmarks/critical_path.py --kernels 100000 1000000`; it prints CPU seconds after imports, peak memory, and
time per activity against the first size, and exits with 1 when a stated limit is exceeded or an invariant broken.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from aaco_pipeline.analysis.timeline.activities import device_activities, host_calls
from aaco_pipeline.analysis.timeline.critical_path import critical_path
from aaco_pipeline.analysis.timeline.dependency_graph import network
from aaco_pipeline.analysis.timeline.device_timeline import FIRST_TO_LAST, timeline
from aaco_pipeline.analysis.timeline.gap_causes import gaps
from aaco_pipeline.analysis.timeline.host_waits import waits
from aaco_pipeline.lake.contracts import contract, polars_schema

#: CPU seconds and bytes allowed, by number of kernels.
LIMITS: Final = {100_000: (1.0, None), 1_000_000: (6.0, 1_500_000_000)}
#: How much more an activity may take at a larger size than at the first one.
FLATNESS: Final = 2.0
_STREAMS: Final = 4
_SYNC_EVERY: Final = 50
_KERNELS: Final = 40
_STEPS: Final = ("activities", "timeline", "waits", "gaps", "network", "critical path")
Numbers = npt.NDArray[np.int64]


def invented(kernels: int) -> dict[str, pl.DataFrame]:
    """Canonical frames of a session with that many kernels; every sixth is a copy instead."""
    random = np.random.default_rng(7)
    blocks = kernels // _SYNC_EVERY
    shape = (blocks, _SYNC_EVERY)
    called = np.arange(_SYNC_EVERY) * 9_000 + random.integers(0, 2_000, shape)
    returned = called + random.integers(3_000, 5_000, shape)
    length = random.integers(2_000, 40_000, shape)
    start = np.empty(shape, np.int64)
    for first in range(_STREAMS):
        own = np.s_[:, first::_STREAMS]
        # On one stream an activity starts when it has arrived and the one before is over.
        before = np.cumsum(length[own], axis=1) - length[own]
        start[own] = np.maximum.accumulate(called[own] + 5_500 - before, axis=1) + before
    done = np.maximum((start + length).max(axis=1), returned[:, -1] + 1_000) + 2_500
    offset = np.concatenate([[0], np.cumsum(done[:-1] + 4_000)])
    called, returned, start = (part + offset[:, None] + 10_000 for part in (called, returned, start))
    return _frames(called, returned, (start, start + length), done + offset + 10_000)


def _frames(called: Numbers, returned: Numbers, ran: tuple[Numbers, Numbers], done: Numbers) -> dict[str, pl.DataFrame]:
    last = returned[:, -1]
    called, returned, start, end = (part.ravel() for part in (called, returned, *ran))
    count = len(called)
    stream = np.arange(count) % _STREAMS
    everything = pl.DataFrame(
        {
            "queue_id": stream % 2,
            "stream_id": stream,
            "correlation_id": np.arange(1, count + 1, dtype=np.uint64),
            "start_ns": start,
            "end_ns": end,
        }
    ).with_columns(
        pl.col("queue_id", "stream_id").cast(pl.Int32),
        process_id=pl.lit(0, pl.Int32),
        device_id=pl.lit(0, pl.Int32),
    )
    copied = np.arange(count) % 6 == 5
    dispatches = everything.filter(~copied).with_columns(
        dispatch_id=pl.int_range(pl.len(), dtype=pl.Int32),
        thread_id=pl.lit(1, pl.Int64),
        kernel_id=pl.int_range(pl.len(), dtype=pl.Int32) % _KERNELS,
        iteration=pl.lit(None, pl.Int32),
        parent_dispatch_id=pl.lit(None, pl.Int32),
    )
    calls = [
        _calls(called, returned, "hip_runtime", "hipLaunchKernel", np.arange(1, count + 1)),
        _calls(called - 900, called - 600, "hip_runtime", "hipGetDevice", None),
        _calls(called - 1_500, returned + 300, "operator", "aten::mul_", None),
        _calls(called - 2_000, returned + 500, "operator", "aten::mul", None),
        _calls(last + 1_000, done, "hip_runtime", "hipDeviceSynchronize", None),
    ]
    names = [f"kernel_{one}" for one in range(_KERNELS)]
    kernels = pl.DataFrame({"kernel_id": range(_KERNELS), "name": names, "family": ["gemm"] * _KERNELS})
    return {
        "dispatches": dispatches,
        "memory_copies": everything.filter(copied).with_columns(copy_id=pl.int_range(pl.len(), dtype=pl.Int32)),
        "api_calls": pl.concat(calls).sort("start_ns").with_columns(call_id=pl.int_range(pl.len(), dtype=pl.Int32)),
        "kernels": kernels.cast({"kernel_id": pl.Int32}),
        "synchronizations": pl.DataFrame(schema=polars_schema(contract("synchronizations"))),
        "iterations": pl.DataFrame(schema=polars_schema(contract("iterations"))),
    }


def _calls(start: Numbers, end: Numbers, domain: str, name: str, correlation: Numbers | None) -> pl.DataFrame:
    shared = pl.DataFrame({"start_ns": start, "end_ns": end})
    return shared.with_columns(
        process_id=pl.lit(0, pl.Int32),
        thread_id=pl.lit(1, pl.Int64),
        domain=pl.lit(domain),
        name=pl.lit(name),
        correlation_id=pl.lit(None, pl.UInt64) if correlation is None else pl.Series(correlation).cast(pl.UInt64),
    )


def timed(folder: Path) -> dict[str, float]:
    """CPU seconds of each step in this process, the peak memory, and whether the invariants hold."""
    tables = {path.stem: pl.read_parquet(path) for path in folder.glob("*.parquet")}
    made = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    steps: dict[str, float] = {}
    clock = time.process_time()

    def lap(name: str) -> None:
        nonlocal clock
        now = time.process_time()
        steps[name] = now - clock
        clock = now

    calls = host_calls(tables["api_calls"])
    activities = device_activities(tables["dispatches"], tables["memory_copies"], tables["kernels"], calls)
    lap("activities")
    rows = timeline(activities, tables["api_calls"], tables["iterations"])
    lap("timeline")
    waiting = waits(activities, calls, tables["synchronizations"])
    lap("waits")
    idle_ns = gaps(activities, tables["api_calls"], waiting).select(pl.col("end_ns") - pl.col("start_ns")).sum().item()
    lap("gaps")
    # The network is made from what was taken out of the tables; its stage does not hold them.
    rows_in = sum(tables[name].height for name in ("dispatches", "memory_copies", "api_calls"))
    tables.clear()
    net = network(activities, calls, waiting)
    lap("network")
    path = critical_path(net)
    lap("critical path")
    window = rows.filter(pl.col("window_rule") == FIRST_TO_LAST).row(0, named=True)
    kept = window["busy_ns"] + idle_ns == window["window_end_ns"] - window["window_start_ns"]
    summary = path.summary.row(0, named=True)
    kept &= summary["path_ns"] + summary["unexplained_ns"] == summary["window_ns"]
    total = sum(steps.values())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {**steps, "total": total, "peak": peak, "frames": made, "activities in": rows_in, "kept": float(kept)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", type=int, nargs="+", default=list(LIMITS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--generate", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.generate:
        for name, frame in invented(options.generate).items():
            frame.write_parquet(options.folder / f"{name}.parquet")
        return 0
    if options.folder:
        print(json.dumps(timed(options.folder)))
        return 0
    return compared(options.kernels, options.repeats)


def runs_of(kernels: int, repeats: int) -> list[dict[str, float]]:
    """The results of several runs on the same session, each in a process that only reads and analyses it."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--folder", folder]
        subprocess.run([*command, "--generate", str(kernels)], check=True)
        outputs = (subprocess.run(command, check=True, capture_output=True, text=True).stdout for _ in range(repeats))
        return [json.loads(output) for output in outputs]


def compared(sizes: list[int], repeats: int) -> int:
    """Print each size's best run against the first size's; 1 when a limit is exceeded or an invariant broken."""
    failed = False
    first = 0.0
    for kernels in sizes:
        runs = runs_of(kernels, repeats)
        best = min(runs, key=lambda run: run["total"])
        each = best["total"] / best["activities in"]
        first = first or each
        seconds, memory = LIMITS.get(kernels, (None, None))
        failed |= not all(run["kept"] for run in runs) or each > FLATNESS * first
        failed |= (seconds is not None and best["total"] > seconds) or (memory is not None and best["peak"] > memory)
        print(
            f"{kernels} kernels, {best['activities in']:.0f} activities and calls: {best['total']:.2f} s CPU, "
            f"{each * 1e6:.2f} us each ({each / first:.2f} of the first), peak {best['peak'] / 1e9:.2f} GB "
            f"(input frames {best['frames'] / 1e9:.2f})"
        )
        print("   " + ", ".join(f"{name} {best[name]:.2f}" for name in _STEPS))
    print("failed" if failed else "kept")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
