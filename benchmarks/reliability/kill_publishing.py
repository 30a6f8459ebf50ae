"""Kill a publishing process at random instants: the lake always shows the old state or the new."""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import polars as pl

from aaco_pipeline.errors import AacoError
from aaco_pipeline.lake.contracts import contract, polars_dtype
from aaco_pipeline.lake.evidence import Evidence, evidence_frame
from aaco_pipeline.lake.files import TEMPORARY_PREFIX
from aaco_pipeline.lake.health import faults, mend
from aaco_pipeline.lake.store import TraceLake
from benchmarks.common import table, with_package

SESSION: Final = "20250102T000000Z-0000000b"
EARLIER_SESSION: Final = "20250101T000000Z-0000000a"
STAGE: Final = "killed_stage"
OTHER_STAGE: Final = "other_stage"
#: Every table of a generation with the column that holds the generation.
GENERATION_COLUMNS: Final[Mapping[str, str]] = {
    "session_metrics": "n",
    "iterations": "latency_ns",
    "scheduler_events": "duration_ns",
    "evidence": "rows",
}
ROWS: Final = 200
#: The child publishes without a pause, so every instant lies inside a publication or between two.
LONGEST_DELAY_SECONDS: Final = 0.15


@dataclass
class Outcome:
    """Counts of what the kills met, and every broken promise in words."""

    instants: int = 0
    generations: int = 0
    seconds: float = 0.0
    states: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)


def generation_frames(generation: int) -> dict[str, pl.DataFrame]:
    """The tables of one generation; only the generation differs between two of them."""
    numbers = list(range(ROWS))
    given: dict[str, dict[str, Any]] = {
        "session_metrics": {"metric": [f"metric_{i}" for i in numbers], "unit": "ns"},
        "iterations": {"pass": "latency", "iteration": numbers, "phase": "measure"},
        "scheduler_events": {"time_ns": numbers, "cpu": 0, "thread_id": 1, "kind": "switch"},
    }
    frames = {"evidence": evidence_frame(STAGE, [Evidence("generation", "present", rows=generation)])}
    for name, values in given.items():
        values[GENERATION_COLUMNS[name]] = generation
        frames[name] = pl.select(
            (pl.lit(pl.Series(values[c.name])) if isinstance(values.get(c.name), list) else pl.lit(values.get(c.name)))
            .cast(polars_dtype(c.dtype))
            .alias(c.name)
            for c in contract(name).columns
        )
    return frames


def publish_for_ever(lake: TraceLake, generation: int) -> None:
    """The child: publish generation after generation and tell each one that is done."""
    while True:
        lake.publish(SESSION, STAGE, generation_frames(generation))
        print(generation, flush=True)
        generation += 1


def prepare(lake: TraceLake) -> None:
    """An earlier session and another stage of the same session, neither of which a kill may touch."""
    lake.publish(EARLIER_SESSION, STAGE, generation_frames(0))
    lake.publish(
        SESSION, OTHER_STAGE, {"evidence": evidence_frame(OTHER_STAGE, [Evidence("kept", "present", rows=-1)])}
    )
    lake.publish(SESSION, STAGE, generation_frames(0))


def kill_once(lake: TraceLake, outcome: Outcome, generation: int, delay_seconds: float) -> int:
    """Start a publisher at `generation`, kill it after the delay, check everything, and mend. Returns the next one."""
    before = _bytes_of(lake, EARLIER_SESSION)
    done = _killed_publisher(lake, generation, delay_seconds)
    complaints: list[str] = []
    seen = _check_state(lake, done, complaints)
    if _bytes_of(lake, EARLIER_SESSION) != before:
        complaints.append("the earlier session changed")
    outcome.states["old state" if seen == done else "new state"] += 1
    _count_leftovers(lake, outcome)

    following = max(seen, done) + 2
    try:
        lake.publish(SESSION, STAGE, generation_frames(following))
    except AacoError as error:
        complaints.append(f"the next publication failed: {error}")
    else:
        _check_state(lake, following, complaints, exactly=True)
        complaints += [f"left after the next publication: {left}" for left in _unpublished_in_tables(lake)]
    for fault in faults(lake):
        if not fault.mendable or not mend(lake, fault):
            complaints.append(f"not mended: {fault.kind} {fault.path}")
    complaints += [f"a fault after mending: {fault.kind} {fault.path}" for fault in faults(lake)]

    outcome.instants += 1
    outcome.generations += done - generation + 1
    outcome.violations += [f"instant {outcome.instants}: {complaint}" for complaint in complaints]
    return following + 1


def run(lake: TraceLake, *, instants: int, seed: int) -> Outcome:
    """Kill `instants` publishers one after another on one lake."""
    rng = random.Random(seed)
    outcome = Outcome()
    started = time.monotonic()
    prepare(lake)
    generation = 1
    for _ in range(instants):
        generation = kill_once(lake, outcome, generation, rng.uniform(0, LONGEST_DELAY_SECONDS))
    outcome.seconds = time.monotonic() - started
    return outcome


def summary(outcome: Outcome) -> str:
    """The outcome as a table of text."""
    rows = [("instants", outcome.instants), ("generations published before a kill", outcome.generations)]
    rows += [*sorted(outcome.states.items()), ("broken promises", len(outcome.violations))]
    return table([*rows, ("seconds", f"{outcome.seconds:.1f}")])


def main(arguments: Sequence[str] | None = None) -> int:
    """Kill publishers and print what was found; 1 when a promise was broken."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--instants", type=int, default=200)
    parser.add_argument("--seed", type=int, default=20250102)
    parser.add_argument("--child", nargs=2, metavar=("LAKE", "GENERATION"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        publish_for_ever(TraceLake(options.child[0]), int(options.child[1]))
    with tempfile.TemporaryDirectory() as folder:
        outcome = run(TraceLake(Path(folder) / "lake"), instants=options.instants, seed=options.seed)
    print(summary(outcome))
    for violation in outcome.violations:
        print(violation, file=sys.stderr)
    return 1 if outcome.violations else 0


def _killed_publisher(lake: TraceLake, generation: int, delay_seconds: float) -> int:
    """The last generation that a publisher told as done before it was killed; it has told at least one."""
    command = [sys.executable, str(Path(__file__).resolve()), "--child", str(lake.path), str(generation)]
    with subprocess.Popen(command, env=with_package(), stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        first = child.stdout.readline()
        time.sleep(delay_seconds)
        child.kill()
        rest = child.stdout.read()
    told = [int(line) for line in (first + rest).split("\n")[:-1]]
    if not told:
        raise RuntimeError("the publisher ended before its first generation was done")
    return told[-1]


def _check_state(lake: TraceLake, done: int, complaints: list[str], *, exactly: bool = False) -> int:
    """The generation that every table shows: the last one told as done, or the one under way when it was killed."""
    try:
        manifests = list(lake.manifests("session"))
    except AacoError as error:
        complaints.append(f"a manifest cannot be read: {error}")
        return done
    for manifest in manifests:
        for entry in manifest.entries:
            file = lake.path / entry.file
            if not file.is_file():
                complaints.append(f"published but missing: {entry.file}")
            elif sha256(file.read_bytes()).hexdigest() != entry.sha256:
                complaints.append(f"published but torn: {entry.file}")
    shown: set[int] = set()
    for name, column in GENERATION_COLUMNS.items():
        try:
            frame = lake.read(name, SESSION)
        except AacoError as error:
            complaints.append(f"{name} cannot be read: {error}")
            continue
        if name == "evidence":
            if frame.filter(stage=OTHER_STAGE).height != 1:
                complaints.append("the other stage's evidence is lost")
            frame = frame.filter(stage=STAGE)
        if frame.height != (1 if name == "evidence" else ROWS):
            complaints.append(f"{name} shows {frame.height} rows")
        shown.update(frame.get_column(column).to_list())
    if len(shown) != 1:
        complaints.append(f"the tables show the generations {sorted(shown)}")
        return done
    seen = shown.pop()
    if seen != done and (exactly or seen != done + 1):
        complaints.append(f"the tables show generation {seen}, and {done} was done")
    return seen


def _count_leftovers(lake: TraceLake, outcome: Outcome) -> None:
    left = _unpublished_in_tables(lake)
    temporary = [file for file in left if file.name.startswith(TEMPORARY_PREFIX)]
    if temporary:
        outcome.states["kills that left a temporary table file"] += 1
    if len(left) > len(temporary):
        outcome.states["kills that left an unpublished table file"] += 1
    if any((lake.path / "manifests").glob(f"{TEMPORARY_PREFIX}*")):
        outcome.states["kills that left a temporary manifest"] += 1


def _unpublished_in_tables(lake: TraceLake) -> list[Path]:
    published = {lake.path / entry.file for manifest in lake.manifests("session") for entry in manifest.entries}
    found = (file for table in GENERATION_COLUMNS for file in (lake.path / table).glob("*/*"))
    return sorted(file for file in found if file not in published)


def _bytes_of(lake: TraceLake, session: str) -> dict[str, bytes]:
    files = [
        lake.path / "manifests" / f"{session}.json",
        *(file for table in GENERATION_COLUMNS for file in (lake.path / table / f"session_id={session}").glob("*")),
    ]
    return {str(file): file.read_bytes() for file in files}


if __name__ == "__main__":
    sys.exit(main())
