"""Flip one byte in each file of two sessions in turn: every road notices it at its first read, and doctor mends it.

One session is measured (squeezenet, 5 iterations), one is a real capture taken in, where `$AACO_SHARED` has it. After
each flip every road is asked as by a process that has read nothing before. Those that read the file must refuse it in
one line; those that do not must answer as before. Then what `aaco doctor --mend` does is done, and all tables must be
the very bytes they were; a raw file cannot be mended, and is said so. Run as `python -m benchmarks.flip_bytes`; it
exits with 1 when a flip went unnoticed, an answer was wrong or a table came back otherwise.
"""

import argparse
import gzip
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from aaco_pipeline.assets.stage import Session, materialize, stages
from aaco_pipeline.automation.doctor import examine
from aaco_pipeline.capture import digests, identity
from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake import verified
from aaco_pipeline.lake.manifest import Manifest
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.report.document.session import path_document, session_document, session_summary
from aaco_pipeline.report.trace import TABLES, write_session_trace
from aaco_pipeline.resources.confinement.doors import copy_capture, discover_runs
from aaco_pipeline.resources.dagster_resources import InferenceRunner
from tests.places import CONFIGS, SHARED

CAPTURE: Final = SHARED / "gpu_sessions/traces/two_streams_overlap.json.gz"
#: What a road said: its answer, or the error that it ended with.
Answer = object
Roads = Mapping[str, Callable[[], Answer]]


@dataclass
class Outcome:
    """What was flipped and what came of it, counted, and every broken promise in words."""

    counts: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)


def measured(lake: TraceLake) -> str:
    """A session that was measured here and is whole."""
    session = lake.new_session("squeezenet")
    lake.request(session, MeasurementRequest(model="squeezenet", iterations=5, warmup=2).to_json())
    materialize(Session(lake, session, CONFIGS, InferenceRunner(configs=str(CONFIGS)).measure))
    return session


def ingested(lake: TraceLake, capture: Path) -> str:
    """A session of a capture that was made elsewhere."""
    (run,) = discover_runs(capture).runs
    session = lake.new_session("ingested")
    with lake.receive_raw(session) as folder:
        copy_capture(run, folder, None)
    materialize(Session(lake, session, CONFIGS))
    return session


def roads(lake: TraceLake, session: str, scratch: Path) -> Roads:
    """Every way to a session's bytes, each with an answer that can be compared."""
    tables = sorted({entry.table for entry in lake.manifest(session).entries})

    def exported() -> bytes:
        path = scratch / "export.pftrace.gz"
        write_session_trace(session, Session(lake, session, CONFIGS).tables(*TABLES), path)
        return gzip.decompress(path.read_bytes())

    every: dict[str, Callable[[], Answer]] = {
        "summary": lambda: session_summary(lake, session),
        "report": lambda: session_document(lake, session),
        "critical path": lambda: path_document(lake, session),
        "export": exported,
        "trace": lambda: lake.artifact(session, lake.trace(session)),
        "page": lambda: lake.artifact(session, lake.report(session)),
        "raw": lambda: identity(lake.raw(session)),
    }
    for table in tables:
        every[f"read {table}"] = lambda table=table: lake.read(table, session).to_dicts()  # type: ignore[misc]
        statement = f"SELECT * FROM {table} WHERE session_id = '{session}' ORDER BY ALL"
        every[f"sql {table}"] = lambda statement=statement: lake.sql(statement).to_dicts()  # type: ignore[misc]
    return every


def forget() -> None:
    """Be as a process that has read nothing of the lake."""
    verified._DIGESTS.clear()
    digests._DIGESTS.clear()
    Manifest.from_bytes.cache_clear()


def must_refuse(lake: TraceLake, session: str, file: Path) -> Callable[[str], bool]:
    """Whether a road is one that reads the file."""
    if file == lake.manifest_path(session, "session"):
        return lambda road: road != "raw"
    if lake.raw(session) in file.parents:
        return lambda road: road == "raw"
    if file.suffix != ".parquet":
        return lambda road: road == ("trace" if file == lake.trace(session) else "page")
    table = file.parent.parent.name
    return lambda road: road in (f"read {table}", f"sql {table}")


@dataclass(frozen=True)
class Flipped:
    """A file with one byte changed: what it held, and its session's manifest, before."""

    lake: TraceLake
    whole: Manifest
    file: Path
    before: bytes
    at: int


def flip(lake: TraceLake, whole: Manifest, file: Path, rng: random.Random) -> Flipped:
    """Change one byte of a file."""
    before = file.read_bytes()
    at = rng.randrange(len(before))
    file.write_bytes(before[:at] + bytes([before[at] ^ (1 << rng.randrange(8))]) + before[at + 1 :])
    return Flipped(lake, whole, file, before, at)


def try_file(flipped: Flipped, every: Roads, known: Mapping[str, Answer], outcome: Outcome) -> None:
    """With a byte of one file flipped, ask every road, mend, and compare."""
    lake, session, file = flipped.lake, flipped.whole.id, flipped.file
    reads = must_refuse(lake, session, file)
    complaints = []
    for road, ask in every.items():
        forget()
        try:
            answer = ask()
        except LakeError as error:
            outcome.counts["refusals in one line"] += 1
            if "\n" in str(error) or session not in str(error):
                complaints.append(f"{road}: not one line naming the session: {error}")
        else:
            if reads(road):
                complaints.append(f"{road}: not noticed")
            elif answer != known[road]:
                complaints.append(f"{road}: answers otherwise")
            else:
                outcome.counts["right answers of roads that do not read the file"] += 1
    forget()
    kinds = mended(lake)
    if lake.raw(session) in file.parents:
        file.write_bytes(flipped.before)
        if kinds != ["torn capture"]:
            complaints.append(f"doctor says {kinds} of a raw file")
    elif lake.manifest(session).entries != flipped.whole.entries:
        complaints.append("the tables came back otherwise")
    else:
        outcome.counts["files mended, all tables equal"] += 1
    complaints += [f"doctor still says: {problem.kind}" for problem in examine(lake, None)]
    outcome.counts["files flipped"] += 1
    name = file.relative_to(lake.path).as_posix()
    outcome.violations += [f"{name}, byte {flipped.at}: {complaint}" for complaint in complaints]


def mended(lake: TraceLake) -> list[str]:
    """What `aaco doctor --mend` finds, and mends with stages that run without Dagster."""

    def analyse(session: str) -> None:
        done = {state.stage for state in lake.progress(session).published}
        materialize(Session(lake, session, CONFIGS), [name for name in stages() if name not in done])

    found = examine(lake, None, analyse)
    for problem in found:
        if problem.mend is not None:
            problem.mend()
    return [problem.kind for problem in found]


def run(lake: TraceLake, session: str, outcome: Outcome, rng: random.Random, scratch: Path) -> None:
    """Every file of one session, one after the other."""
    whole, path = lake.manifest(session), lake.manifest_path(session, "session")
    files = [lake.path / one.file for one in whole.on_disk]
    files += [path, *(file for file in sorted(lake.raw(session).rglob("*")) if file.is_file())]
    every = roads(lake, session, scratch)
    known = {road: ask() for road, ask in every.items()}
    for file in files:
        # A manifest is on every road; of a table, the others' own roads are left out.
        wide = {road: ask for road, ask in every.items() if not road.startswith(("read ", "sql "))}
        own = {road: ask for road, ask in every.items() if road.endswith(f" {file.parent.parent.name}")}
        asked = every if file == path else {**wide, **own}
        known |= {road: ask() for road, ask in wide.items()}  # a report that was written again has another size
        try_file(flip(lake, whole, file, rng), asked, known, outcome)


def main(arguments: Sequence[str] | None = None) -> int:
    """Flip bytes and print what was found; 1 when a promise was broken."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seed", type=int, default=20260101)
    options = parser.parse_args(arguments)
    rng, outcome, began = random.Random(options.seed), Outcome(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="aaco-flips-") as folder:
        lake = TraceLake(Path(folder) / "lake")
        sessions = [measured(lake), *([ingested(lake, CAPTURE)] if CAPTURE.exists() else [])]
        for session in sessions:
            run(lake, session, outcome, rng, Path(folder))
    print(f"{len(sessions)} sessions, {time.monotonic() - began:.0f} s")
    for name, count in sorted(outcome.counts.items()):
        print(f"{name}: {count}")
    print(f"broken promises: {len(outcome.violations)}")
    for violation in outcome.violations:
        print(violation, file=sys.stderr)
    return 1 if outcome.violations else 0


if __name__ == "__main__":
    sys.exit(main())
