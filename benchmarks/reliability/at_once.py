"""Start runs and ingests of one capture all at once in a new home and lake: no error, no duplicate, all whole."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from aaco_pipeline.assets.stage import stages_of
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.project import HOME_VARIABLE, LAKE_VARIABLE
from benchmarks.common import ENTRY, ROOT, reported

RUN: Final = ("run", "--model", "squeezenet", "--iterations", "2", "--warmup", "1")
CAPTURE: Final = (
    '"Kind","Agent_Id","Queue_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name","Correlation_Id",'
    '"Start_Timestamp","End_Timestamp","Workgroup_Size_X","Grid_Size_X"\n'
    '"KERNEL_DISPATCH","Agent 1",1,77,1,5,"scale",3,1000,2000,64,640\n'
)


def start(place: Path, *arguments: str) -> "subprocess.Popen[str]":
    """`aaco` with `arguments` on the lake and the home in `place`, in a process of its own."""
    places = {LAKE_VARIABLE: str(place / "lake"), HOME_VARIABLE: str(place / "home"), "TMPDIR": str(place / "tmp")}
    return subprocess.Popen(
        [sys.executable, "-P", "-c", ENTRY, *arguments],
        cwd=ROOT,
        env={**os.environ, **places},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def started_at_once(place: Path, runs: int, ingests: int) -> list[str]:
    """Start all commands, wait for them, and give every broken promise in words."""
    capture = place / "capture"
    for folder in (capture, place / "tmp"):
        folder.mkdir()
    (capture / "out_kernel_trace.csv").write_text(CAPTURE)
    commands = [RUN] * runs + [("ingest", str(capture))] * ingests
    processes = [(command, start(place, *command)) for command in commands]
    complaints = []
    for command, process in processes:
        _, errors = process.communicate()
        if process.returncode != 0 or errors:
            complaints.append(f"aaco {command[0]} ended with {process.returncode}: {errors.strip()}")
    return [*complaints, *(doubled_or_half(TraceLake(place / "lake"), runs)), *ailments(place)]


def doubled_or_half(lake: TraceLake, runs: int) -> list[str]:
    """What is wrong with the sessions that the lake holds now."""
    kinds: dict[str, list[str]] = {"capture": [], "run": []}
    complaints = []
    for session in lake.captured():
        kind = "capture" if (lake.raw(session) / "ingest.json").is_file() else "run"
        kinds[kind].append(session)
        published = {entry.stage for entry in lake.manifest(session).entries}
        missing = set(stages_of("ingested" if kind == "capture" else "measured")) - published
        if missing:
            complaints.append(f"{kind} {session} lacks {', '.join(sorted(missing))}")
    if len(kinds["capture"]) != 1 or len(kinds["run"]) != runs:
        complaints.append(f"{len(kinds['capture'])} sessions of one capture, {len(kinds['run'])} of {runs} runs")
    return complaints


def ailments(place: Path) -> list[str]:
    """What `aaco doctor` finds."""
    out, errors = (doctor := start(place, "doctor", "--json")).communicate()
    if doctor.returncode != 0:
        return [f"aaco doctor ended with {doctor.returncode}: {errors.strip() or out.strip()}"]
    return [f"aaco doctor: {row['kind']} {row['subject']}" for row in json.loads(out)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Start everything at once and print what was found; 1 when a promise was broken."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--runs", type=int, default=8, help="how many `aaco run` are started")
    parser.add_argument("--ingests", type=int, default=8, help="how many `aaco ingest` of one capture are started")
    parser.add_argument("--times", type=int, default=1, help="how often, each time in a new home and a new lake")
    options = parser.parse_args(arguments)
    broken: list[str] = []
    for turn in range(1, options.times + 1):
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as place:
            complaints = started_at_once(Path(place), options.runs, options.ingests)
        took = f"{time.monotonic() - began:.0f} s"
        print(f"{turn}: {options.runs} runs and {options.ingests} ingests, {took}")
        broken += complaints
    return reported([], broken)


if __name__ == "__main__":
    sys.exit(main())
