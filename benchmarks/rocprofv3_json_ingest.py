"""Time the reader of rocprofv3's results files on a real one, each run in a process of its own.

Run as `python benchmarks/rocprofv3_json_ingest.py <file>_results.json.gz`; it exits with 1 when the median run, imports
included, needs more than 3 s of processor time or 400 MB.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Final

CPU_LIMIT_S: Final = 3.0
MEMORY_LIMIT: Final = 400 * 10**6


def timed(path: Path) -> dict[str, float]:
    """Wall seconds of the reading; processor seconds and peak memory of the whole process."""
    from aaco_pipeline.formats import rocprofv3_json

    wall = time.perf_counter()
    reading = rocprofv3_json.read(path)
    wall = time.perf_counter() - wall
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    dispatches = float(reading.tables["dispatches"].height)
    return {"wall": wall, "cpu": time.process_time(), "peak": peak, "dispatches": dispatches}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(timed(options.file)))
        return 0
    command = [sys.executable, __file__, "--child", str(options.file)]
    runs = [
        json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        for _ in range(options.repeats)
    ]
    figure = {key: median(run[key] for run in runs) for key in runs[0]}
    print(f"{figure['dispatches']:.0f} dispatches: wall {figure['wall']:.2f} s  cpu {figure['cpu']:.2f} s", end="  ")
    print(f"peak {figure['peak'] / 1e6:.0f} MB")
    return 0 if figure["cpu"] <= CPU_LIMIT_S and figure["peak"] <= MEMORY_LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
