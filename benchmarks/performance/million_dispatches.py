"""CPU and memory of `aaco ingest` for a million dispatches, from file to labels, as rocpd and CUPTI.

`--before CHECKOUT` takes turns with another checkout and compares answers and labels. Needs 3 GB of disk.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import polars as pl

from aaco_pipeline.lake.store import TraceLake
from benchmarks.common import ENTRY, ROOT
from benchmarks.performance import generate_cupti, generate_rocpd

REQUIRED_RATIO: Final = 0.6
MILLION: Final = 1_000_000
PEAK_BYTES: Final = 1_500_000_000
#: Of more than a million dispatches.
PEAK_BYTES_OF_MORE: Final = 16_000_000_000
FORMATS: Final = ("rocpd", "cupti")
_LABELS: Final = ("answers", "bottlenecks")


@dataclass(frozen=True)
class Taken:
    """CPU seconds of one ingest, the largest peak of its processes in bytes, and the tables that it ends in."""

    cpu: float
    peak: int
    labels: dict[str, pl.DataFrame]


def generated(kind: str, dispatches: int, folder: Path) -> Path:
    """A capture of so many dispatches."""
    if kind == "rocpd":
        path = folder / "generated_results.db"
        generate_rocpd.generate(path, dispatches)
    else:
        path = folder / "41-7.cupti"
        generate_cupti.generate(path, dispatches, 0)
    return path


def used(command: list[str], environment: dict[str, str], folder: Path) -> tuple[float, int]:
    """CPU seconds of a command with all that it started, and the largest peak of one of those processes in bytes."""
    process = subprocess.Popen(command, env=environment, cwd=folder, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command[-4:])} ended with {os.waitstatus_to_exitcode(status)}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10


def taken(capture: Path, checkout: Path) -> Taken:
    """Take a capture in with the package of a checkout."""
    with tempfile.TemporaryDirectory(dir=capture.parent) as folder:
        own = {"AACO_LAKE": f"{folder}/tracelake", "DAGSTER_HOME": f"{folder}/home", "TMPDIR": folder}
        environment = {**os.environ, **own, "PYTHONPATH": str(checkout)}
        command = [sys.executable, "-P", "-c", ENTRY, "ingest", str(capture)]
        cpu, peak = used(command, environment, Path(folder))
        lake = TraceLake(Path(own["AACO_LAKE"]))
        return Taken(cpu, peak, {name: lake.read(name).drop("session_id") for name in _LABELS})


def holds(kind: str, dispatches: int, before: Path | None, folder: Path) -> bool:
    """Return whether one format meets its limits."""
    capture = generated(kind, dispatches, folder)
    earlier = None if before is None else taken(capture, before)
    now = taken(capture, ROOT)
    capture.unlink()
    limit = PEAK_BYTES if dispatches <= MILLION else PEAK_BYTES_OF_MORE
    kernels = now.labels["bottlenecks"].filter(pl.col("scope") == "kernel").height
    bounded = now.peak <= limit
    told = f"{now.cpu:.1f} s of CPU, peak {now.peak / 1e6:.0f} MB (at most {limit / 1e6:.0f}), {kernels} kernels judged"
    print(f"{kind}: {told}", flush=True)
    if earlier is None:
        return bounded and kernels > 0
    ratio = now.cpu / earlier.cpu
    same = [name for name in _LABELS if now.labels[name].equals(earlier.labels[name])]
    print(f"{kind}: before {earlier.cpu:.1f} s of CPU, peak {earlier.peak / 1e6:.0f} MB", flush=True)
    print(f"{kind}: {ratio:.2f} times the CPU (at most {REQUIRED_RATIO}); the same: {', '.join(same)}", flush=True)
    return bounded and kernels > 0 and ratio <= REQUIRED_RATIO and len(same) == len(_LABELS)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dispatches", type=int, default=MILLION)
    parser.add_argument("--before", type=Path, help="another checkout, to be compared with")
    parser.add_argument("--format", choices=FORMATS, action="append", help="default: both")
    parser.add_argument("--folder", type=Path, help="where to work; default: the system's temporary folder")
    asked = parser.parse_args()
    before = None if asked.before is None else asked.before.resolve()
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        kept = [holds(kind, asked.dispatches, before, Path(folder)) for kind in asked.format or FORMATS]
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
