"""Time the search for the steady part of a generated recording, by number of kernels, and check its borders.

Steps of 400 kernels, some with an extra one, follow a set-up that does not repeat. Each size runs in its own process.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from typing import Final

import numpy as np
import polars as pl

from aaco_pipeline.analysis.steady.parts import STEADY, steady_part
from aaco_pipeline.lake.validation import to_contract

#: CPU seconds and bytes allowed, by number of kernels.
LIMITS: Final = {100_000: (1.0, None), 1_000_000: (5.0, 2_000_000_000)}
#: How much more a kernel may take at a larger size than at the first one.
FLATNESS: Final = 2.0
_STEP: Final = 400
_EXTRA_EVERY: Final = 200
_KERNELS: Final = 60
_PACE_NS: Final = 10_000


def invented(kernels: int) -> tuple[dict[str, pl.DataFrame], int, int]:
    """Canonical tables with that many kernels, and where the steps begin and end."""
    random = np.random.default_rng(7)
    before = kernels // 20
    steps = (kernels - 2 * before) // (_STEP + _STEP // _EXTRA_EVERY)
    repeated = np.tile(random.integers(0, _KERNELS, _STEP), steps)
    places = np.sort(random.integers(0, len(repeated), steps * _STEP // _EXTRA_EVERY))
    repeated = np.insert(repeated, places, _KERNELS)
    around = [_KERNELS + 1 + random.integers(0, 1_000, before) for _ in range(2)]
    kernel = np.concatenate([around[0], repeated, around[1]])
    start = np.arange(len(kernel)) * _PACE_NS + random.integers(0, 1_000, len(kernel))
    number = pl.Series(np.arange(len(kernel)))
    dispatches = pl.DataFrame(
        {
            "dispatch_id": number,
            "kernel_id": kernel,
            "correlation_id": number + 1,
            "start_ns": start,
            "end_ns": start + random.integers(5_000, 9_000, len(kernel)),
            "grid_work_items": 64 * (1 + number // 5_000),
        }
    ).with_columns(process_id=0, thread_id=1, device_id=0, queue_id=0, stream_id=0, workgroup_work_items=64)
    launches = dispatches.select(
        "correlation_id", start_ns=pl.col("start_ns") - 5_000, end_ns=pl.col("start_ns") - 2_000
    ).with_columns(name=pl.lit("hipLaunchKernel"))
    loads = dispatches[:before:100].select(
        correlation_id=pl.lit(None, pl.Int64), start_ns=pl.col("start_ns") - 2_000, end_ns=pl.col("start_ns") + 500_000
    )
    calls = pl.concat([launches, loads.with_columns(name=pl.lit("hipModuleLoadData"))]).with_columns(
        process_id=0, thread_id=1, domain=pl.lit("hip_runtime"), call_id=pl.int_range(pl.len())
    )
    named = pl.DataFrame({"kernel_id": np.unique(kernel)}).with_columns(
        name=pl.format("kernel_{}", "kernel_id"), short_name=pl.lit("kernel"), family=pl.lit("gemm")
    )
    tables = {"dispatches": dispatches, "api_calls": calls, "kernels": named}
    whole = {name: to_contract(name, frame) for name, frame in tables.items()}
    empty = {name: to_contract(name, pl.DataFrame()) for name in ("memory_copies", "iterations")}
    return {**whole, **empty}, int(start[before]), int(start[before + len(repeated)])


def timed(kernels: int) -> dict[str, float]:
    """CPU seconds in this process, the peak memory, and whether the borders are found within a step."""
    tables, first_ns, last_ns = invented(kernels)
    made = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    clock = time.process_time()
    found = steady_part(tables)
    total = time.process_time() - clock
    steady = found.parts.filter(pl.col("part") == STEADY)
    borders = [steady.get_column(name).to_numpy() for name in ("start_ns", "end_ns")]
    step_ns = (_STEP + _STEP // _EXTRA_EVERY) * _PACE_NS
    kept = (
        steady.height > 0 and abs(borders[0].min() - first_ns) <= step_ns and abs(borders[1].max() - last_ns) <= step_ns
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"total": total, "peak": peak, "frames": made, "kept": float(kept)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", type=int, nargs="+", default=list(LIMITS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(timed(options.one)))
        return 0
    failed = False
    first = 0.0
    for kernels in options.kernels:
        command = [sys.executable, __file__, "--one", str(kernels)]
        outputs = (subprocess.run(command, check=True, capture_output=True, text=True) for _ in range(options.repeats))
        runs = [json.loads(output.stdout) for output in outputs]
        best = min(runs, key=lambda run: float(run["total"]))
        each = best["total"] / kernels
        first = first or each
        seconds, memory = LIMITS.get(kernels, (None, None))
        failed |= not all(run["kept"] for run in runs) or each > FLATNESS * first
        failed |= (seconds is not None and best["total"] > seconds) or (memory is not None and best["peak"] > memory)
        print(
            f"{kernels} kernels: {best['total']:.2f} s CPU, {each * 1e6:.2f} us ({each / first:.2f} of the first), "
            f"peak {best['peak'] / 1e9:.2f} GB (input {best['frames'] / 1e9:.2f})"
        )
    print("failed" if failed else "kept")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
