"""Take every shared capture into a fresh lake and account for its rows; then time a database from file to tables.

For each run: records in its files, records taken, records not taken with the reason stated in evidence, and records
lost, of which there must be none. Then the CPU time of ingesting one database of 43,915 dispatches: copying it minus
secrets, reading it and publishing all tables (reports and traces are drawn later). Run as
`python benchmarks/reliability/ingest_captures.py`; it exits with 1 when a record is lost or the median is above 1.5 s.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from aaco_pipeline.assets.stage import Session, materialize
from aaco_pipeline.capture import ingested
from aaco_pipeline.capture.discovery import Run, discover_runs
from aaco_pipeline.capture.merging import row_accounts
from aaco_pipeline.lake.identity import new_session_id
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.ingestion import copy_capture

SHARED: Final = Path(os.environ.get("AACO_SHARED") or Path(__file__).parents[3] / "shared")
FOLDERS: Final = ("captures", "kineto", "counters", "gpu_sessions")
TIMED: Final = "captures/mi350x_rocpd_43915_dispatches"
ACCEPTED_SECONDS: Final = 1.5
CONFIGS: Final = Path(__file__).parents[2] / "configs"
STAGES: Final = (
    *("capture", "session_environment", "inference_run", "kernel_trace", "telemetry", "timeline", "model_graph"),
    "att_enrichment",
)


def ingest(lake: TraceLake, run: Run) -> str:
    """Take the run in and publish all tables, as the command does without Dagster around it."""
    session = new_session_id()
    with lake.receive_raw(session) as folder:
        copy_capture(run, folder, run.folder.name)
    materialize(Session(lake, session, CONFIGS), STAGES)
    return session


def account(lake: TraceLake) -> int:
    """Print one line for each run; the number of records lost over all of them."""
    print(f"{'run':<58}{'parts':>6}{'records in':>12}{'taken':>10}{'explained':>11}{'lost':>6}")
    lost_in_all = runs = 0
    refused: list[str] = []
    for name in FOLDERS:
        found = discover_runs(SHARED / name)
        refused += [f"{one.path.relative_to(SHARED)}: {one.reason}" for one in found.unread]
        for run in found.runs:
            session = ingest(lake, run)
            rows = row_accounts(ingested.read(lake.raw(session)).contents)
            total, taken = (sum(int(str(row[key])) for row in rows) for key in ("rows_in", "rows_out"))
            told = sum(int(str(row["rows_in"])) - int(str(row["rows_out"])) for row in rows if row["reason"])
            lost = total - taken - told
            lost_in_all += lost
            runs += 1
            place = run.folder.relative_to(SHARED).as_posix()
            print(f"{place[-57:]:<58}{len(run.parts):6}{total:12,}{taken:10,}{told:11,}{lost:6,}")
    print(f"{runs} runs, {lost_in_all} records lost; files that belong to no run:")
    known: dict[str, list[str]] = {}
    for line in refused:
        known.setdefault(line.partition(": ")[2], []).append(line.partition(": ")[0])
    for reason, files in known.items():
        print(f"  {len(files)} × {reason} ({files[0]}{', …' if len(files) > 1 else ''})")
    return lost_in_all


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        lost = account(TraceLake(Path(folder) / "lake"))
        (run,) = discover_runs(SHARED / TIMED).runs
        seconds = []
        for number in range(arguments.repeats):
            before = time.process_time()
            ingest(TraceLake(Path(folder) / f"timed_{number}"), run)
            seconds.append(time.process_time() - before)
    median = statistics.median(seconds)
    print(
        f"{TIMED}, file to tables: median {median:.2f} s of CPU over {len(seconds)} "
        f"({min(seconds):.2f} … {max(seconds):.2f}), accepted {ACCEPTED_SECONDS} s"
    )
    return 0 if lost == 0 and median <= ACCEPTED_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
