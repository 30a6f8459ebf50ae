"""What reading captures in a confined process costs, in CPU time of the command, its reader server and its children.

Three promises, each a ratio within one run. More than in the same process the first capture of a command, with the
start of its server, costs at most 0.8 of `import dagster`, each further one 0.05, and a database of 43,915 dispatches
10 % of itself. Taking in is all of it: imports, looking, digest, copy, reading every table. Rounds with and without
confinement alternate, and of the ratios the median counts.
Run as `python -m benchmarks.performance.confinement_cost`; it exits with 1 when a promise is not kept.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
DISPATCHES: Final = 43_915
MOST_FIRST: Final = 0.8
MOST_FURTHER: Final = 0.05
MOST_OF_READING: Final = 1.1
#: Small captures after the first one: the clock of another process ticks in hundredths of a second.
_FURTHER: Final = 20
_TICK: Final = os.sysconf("SC_CLK_TCK")


def worker(kind: str, captures: list[Path]) -> None:
    """Take in captures one after the other, and print the CPU seconds of each as JSON."""
    taken = []
    for capture in captures:
        with tempfile.TemporaryDirectory() as raw:
            before = _used()
            (_confined if kind == "confined" else _plain)(capture, Path(raw))
            taken.append(_used() - before)
    print(json.dumps(taken))


def _confined(capture: Path, raw: Path) -> None:
    from aaco_pipeline.resources.confinement import doors

    (run,) = doors.discover_runs(capture).runs
    doors.capture_digest(run)
    doors.copy_capture(run, raw, None)
    tables = doors.open_capture(raw).tables()
    assert sum(tables[name].height for name in tables)


def _plain(capture: Path, raw: Path) -> None:
    from aaco_pipeline import capture as opening
    from aaco_pipeline.capture.discovery import discover_runs
    from aaco_pipeline.resources import ingestion

    (run,) = discover_runs(capture).runs
    ingestion.capture_digest(run)
    ingestion.copy_capture(run, raw, None)
    tables = opening.open_capture(raw).tables()
    assert sum(tables[name].height for name in tables)


def _used() -> float:
    """CPU seconds of this process, and of its reader server with the children that have ended."""
    used = time.process_time()
    server = sys.modules.get("aaco_pipeline.resources.confinement.server")
    for one in getattr(server, "_STARTED", ()):
        fields = Path(f"/proc/{one.process.pid}/stat").read_text().rpartition(")")[2].split()
        used += sum(map(int, fields[11:15])) / _TICK
    return used


def taken(kind: str, captures: list[Path]) -> list[float]:
    """CPU seconds of taking in each of the captures by a process of their own."""
    command = [sys.executable, "-m", "benchmarks.performance.confinement_cost", "--worker", kind, *map(str, captures)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    answer = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    seconds: list[float] = json.loads(answer.stdout)
    return seconds


def import_seconds(module: str) -> float:
    """CPU seconds of a process that imports a module and ends."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", f"import {module}"], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="rounds of each kind (default: %(default)s)")
    parser.add_argument("--worker", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments.worker[0], [Path(one) for one in arguments.worker[1:]])
        return 0
    from benchmarks.performance.generate_rocpd import generate

    first, further, reading = list[float](), list[float](), list[float]()
    with tempfile.TemporaryDirectory(prefix="aaco_confinement_") as name:
        small = [Path(name) / f"{number}_results.db" for number in range(_FURTHER + 1)]
        for number, path in enumerate(small):
            generate(path, 5 + number)
        large = Path(name) / "large_results.db"
        generate(large, DISPATCHES)
        for number in range(arguments.rounds):
            dagster = import_seconds("dagster")
            confined, plain = taken("confined", small), taken("plain", small)
            first.append((confined[0] - plain[0]) / dagster)
            further.append((sum(confined[1:]) - sum(plain[1:])) / _FURTHER / dagster)
            with_it, without = taken("confined", [small[0], large])[1], taken("plain", [small[0], large])[1]
            reading.append(with_it / without)
            told = f"first {first[-1]:.2f} (in all {confined[0] / dagster:.2f}), further {further[-1]:.3f}"
            told += f" of import dagster ({dagster:.2f} s); large {reading[-1]:.3f} ({without:.2f} s without)"
            print(f"round {number + 1}: {told}", flush=True)
    failed = 0
    for what, ratios, most in (
        ("first capture of a command, of import dagster", first, MOST_FIRST),
        ("each further one, of import dagster", further, MOST_FURTHER),
        (f"{DISPATCHES:,} dispatches, confined against not", reading, MOST_OF_READING),
    ):
        found = statistics.median(ratios)
        failed += found > most
        print(f"{what}: {found:.3f} (at most {most}); {'kept' if found <= most else 'NOT KEPT'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
