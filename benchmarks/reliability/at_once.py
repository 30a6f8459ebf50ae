"""Start runs and ingests of one capture all at once in a new home and lake: no error, no duplicate, all whole."""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from aaco_pipeline.assets.stage import stages_of
from aaco_pipeline.lake.store import TraceLake
from benchmarks.common import reported
from benchmarks.reliability.kill_runs import Workplace

RUN: Final = ("run", "--model", "squeezenet", "--iterations", "2", "--warmup", "1")


def started_at_once(place: Workplace, runs: int, ingests: int) -> list[str]:
    """Start all commands, wait for them, and give every broken promise in words."""
    capture = place.drop_capture("capture-1", place.folder)
    commands = [RUN] * runs + [("ingest", str(capture))] * ingests
    processes = [(command, place.start(*command)) for command in commands]
    complaints = []
    for command, process in processes:
        _, errors = process.communicate()
        if process.returncode != 0 or errors:
            complaints.append(f"aaco {command[0]} ended with {process.returncode}: {errors.strip()}")
    return [*complaints, *doubled_or_half(place.lake, runs), *place.unwell()]


def doubled_or_half(lake: TraceLake, runs: int) -> list[str]:
    """List what is wrong with the sessions of the lake."""
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
            complaints = started_at_once(Workplace(Path(place)), options.runs, options.ingests)
        took = f"{time.monotonic() - began:.0f} s"
        print(f"{turn}: {options.runs} runs and {options.ingests} ingests, {took}")
        broken += complaints
    return reported([], broken)


if __name__ == "__main__":
    sys.exit(main())
