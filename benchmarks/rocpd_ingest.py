"""What reading a rocpd database costs, against merely fetching the same columns through Python's sqlite3.

`python benchmarks/rocpd_ingest.py` makes a database of a million dispatches and three million events, reads it and
fetches it in turn in one run, each in a fresh process, and prints medians of CPU time with the peak of memory. It exits
with 1 when the reader takes more than three times the mere fetch or more than 1.5 GB. `--database` takes one that is
there, for instance a real capture.
"""

import argparse
import gzip
import json
import resource
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Final

from generate_rocpd import generate  # type: ignore[import-not-found]  # a script beside this one

REQUIRED_RATIO: Final = 3.0
PEAK_MEGABYTES: Final = 1_500
#: The columns the reader takes, by kind of table; the kinds' lookup tables are small and left out.
COLUMNS: Final = {
    "kernel_dispatch": (
        *("pid", "tid", "start", "end", "event_id", "agent_id", "kernel_id", "dispatch_id", "queue_id", "stream_id"),
        *("workgroup_size_x", "workgroup_size_y", "workgroup_size_z", "grid_size_x", "grid_size_y", "grid_size_z"),
        *("private_segment_size", "group_segment_size"),
    ),
    "region": ("pid", "tid", "start", "end", "event_id", "name_id"),
    "event": ("id", "stack_id", "category_id"),
}


def read(path: Path) -> int:
    from aaco_pipeline.formats import rocpd

    return sum(frame.height for frame in rocpd.read(path).tables.values())


def quoted(name: str) -> str:
    return f'"{name}"'


def fetch(path: Path) -> int:
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
        rows = [
            connection.execute(f"SELECT {', '.join(map(quoted, names))} FROM rocpd_{kind}").fetchall()
            for kind, names in COLUMNS.items()
        ]
    return sum(map(len, rows))


def measure(what: str, path: Path) -> dict[str, float]:
    """CPU seconds of one pass in this process, imports excluded, and this process's peak of memory."""
    import polars as pl  # the cost of loading it is not the reader's

    from aaco_pipeline.formats import rocpd

    del pl, rocpd
    began = time.process_time()
    rows = {"read": read, "fetch": fetch}[what](path)
    taken = time.process_time() - began
    return {"cpu_s": taken, "rows": rows, "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def in_a_process(what: str, path: Path) -> dict[str, float]:
    command = [sys.executable, __file__, "--measure", what, "--database", str(path)]
    answer: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return answer


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--database", type=Path)
    parser.add_argument("--dispatches", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--measure", choices=("read", "fetch"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.measure:
        print(json.dumps(measure(asked.measure, asked.database.resolve())))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        path = asked.database
        if path is None:
            path = Path(folder, "generated_results.db")
            generate(path, asked.dispatches)
        plain = path.resolve()
        if path.suffix == ".gz":  # the mere fetch gets it unpacked, for nothing
            plain = Path(folder, "plain.db")
            with gzip.open(path) as packed, plain.open("wb") as target:
                shutil.copyfileobj(packed, target)
        print(f"{path.name}: {plain.stat().st_size / 1e6:.0f} MB")
        passes = [(in_a_process("read", path.resolve()), in_a_process("fetch", plain)) for _ in range(asked.repeats)]
    reads, fetches = [one for one, _ in passes], [one for _, one in passes]
    ratio = median(one["cpu_s"] for one in reads) / median(one["cpu_s"] for one in fetches)
    peak = max(one["peak_mb"] for one in reads)
    for title, listed in (("reader", reads), ("mere fetch", fetches)):
        times = sorted(one["cpu_s"] for one in listed)
        print(
            f"{title}: {median(times):.2f} s of CPU (median of {len(times)}, {times[0]:.2f} to {times[-1]:.2f}), "
            f"peak {max(one['peak_mb'] for one in listed):.0f} MB, {int(listed[0]['rows'])} rows"
        )
    print(f"reader / mere fetch: {ratio:.2f} (at most {REQUIRED_RATIO}); peak at most {PEAK_MEGABYTES} MB")
    return 0 if ratio <= REQUIRED_RATIO and peak <= PEAK_MEGABYTES else 1


if __name__ == "__main__":
    sys.exit(main())
