"""What it costs that every file of the lake is hashed when a process first reads it.

A lake of 100 sessions (one, really measured, under 100 names) is read by processes of their own, in turns with the
check and without it: the list of `aaco ls`, six tables of all sessions as frames, and a statement of SQL. Compared is
the CPU time after imports, the least of each side. Run as `python benchmarks/performance/verified_reads.py`; it exits with 1 when
the check costs more than 5 % over all three together.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from operator import truediv
from pathlib import Path
from typing import Final
from unittest import mock

import aaco_pipeline
from aaco_pipeline.assets.stage import Session, materialize
from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.lake import reading
from aaco_pipeline.lake.identity import new_session_id
from aaco_pipeline.lake.manifest import Entry
from aaco_pipeline.lake.sql import select_rows
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.measure.runner import InferenceRunner

MOST_COST: Final = 1.05
CONFIGS: Final = Path(aaco_pipeline.__file__).parent / "defaults" / "configs"
TABLES: Final = ("sessions", "iterations", "dispatches", "kernels", "kernel_stats", "gaps")
STATEMENT: Final = """
SELECT k.name, count(*), sum(d.end_ns - d.start_ns), avg(i.latency_ns)
FROM dispatches AS d JOIN kernels AS k USING (session_id, kernel_id) JOIN iterations AS i USING (session_id, iteration)
GROUP BY ALL ORDER BY ALL
"""
LIST: Final = "SELECT * FROM sessions LEFT JOIN latest_sessions USING (session_id)"


def make_lake(path: Path, sessions: int) -> None:
    """A lake with one measured session under many names."""
    lake = TraceLake(path)
    first = new_session_id("squeezenet", datetime.now(UTC) - timedelta(days=1))
    lake.request(first, MeasurementRequest(model="squeezenet", iterations=5, warmup=2).to_json())
    materialize(Session(lake, first, CONFIGS, InferenceRunner(configs=str(CONFIGS)).measure))
    manifest = lake.manifest(first)
    for _ in range(sessions - 1):
        name = lake.new_session("squeezenet")

        def moved(one: Entry, name: str = name) -> str:
            target = lake.path / one.file.replace(first, name)
            if one.file:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(lake.path / one.file, target)
            return one.file.replace(first, name)

        copied = replace(
            manifest, id=name, entries=tuple(sorted(one._replace(file=moved(one)) for one in manifest.entries))
        )
        lake.manifest_path(name, "session").write_bytes(copied.to_bytes())


def read_everything(path: Path, *, verified: bool) -> dict[str, float]:
    """CPU seconds of each road in this process, which has read nothing of the lake before."""
    import duckdb
    import polars as pl

    duckdb.connect(":memory:").sql("SELECT 1").fetchall()
    pl.DataFrame({"a": [1]}).select(pl.col("a") + 1)
    lake = TraceLake(path)
    roads: dict[str, Callable[[], object]] = {
        "ls": lambda: select_rows(lake, LIST),
        "read": lambda: [lake.read(table) for table in TABLES],
        "sql": lambda: select_rows(lake, STATEMENT),
    }
    spent = {}
    without = mock.patch.object(reading, "require_intact", lambda lake, published: lake / published.file)
    with nullcontext() if verified else without:
        for name, road in roads.items():
            began = time.process_time()
            road()
            spent[name] = time.process_time() - began
    return spent


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the lake in turns with the check and without; 1 when it costs too much."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--sessions", type=int, default=100)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--child", nargs=2, metavar=("LAKE", "VERIFIED"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        print(json.dumps(read_everything(Path(options.child[0]), verified=options.child[1] == "yes")))
        return 0
    with tempfile.TemporaryDirectory(prefix="aaco-verified-") as folder:
        path = Path(folder) / "lake"
        make_lake(path, options.sessions)
        _child(path, "yes")  # the files are in the cache from here on
        pairs = [_pair(path, number) for number in range(options.pairs)]
    print(f"{options.sessions} sessions, {options.pairs} pairs; CPU seconds without the check and with it")
    cost = 0.0
    for name in ("ls", "read", "sql", "all"):
        sides = [
            [sum(one.values()) if name == "all" else one[name] for one in side] for side in zip(*pairs, strict=True)
        ]
        plain, verified = map(min, sides)  # what disturbs a process only ever adds
        cost = verified / plain
        halves = statistics.median(map(truediv, sides[1], sides[0]))
        print(f"{name:<5} {plain:.3f} {verified:.3f}  ratio {cost:.3f} (median of pairs {halves:.3f})")
    return 1 if cost > MOST_COST else 0


def _pair(path: Path, number: int) -> tuple[dict[str, float], dict[str, float]]:
    """One process without the check and one with it; which goes first changes from pair to pair."""
    order = ("no", "yes") if number % 2 else ("yes", "no")
    found = {verified: _child(path, verified) for verified in order}
    return found["no"], found["yes"]


def _child(path: Path, verified: str) -> dict[str, float]:
    root = Path(aaco_pipeline.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, str(Path(__file__).resolve()), "--child", str(path), verified]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    spent: dict[str, float] = json.loads(done.stdout)
    return spent


if __name__ == "__main__":
    sys.exit(main())
