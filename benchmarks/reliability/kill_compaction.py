"""Kill compaction at random instants, with readers and writers beside it: no row is lost, doubled or torn."""

import json
import multiprocessing
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import polars as pl

from aaco_pipeline.errors import AacoError
from aaco_pipeline.lake.contracts import contract, polars_dtype
from aaco_pipeline.lake.health import faults, mend
from aaco_pipeline.lake.segments.compaction import GRACE, compact
from aaco_pipeline.lake.store import TraceLake
from benchmarks.common import keep_trial, killing, reported, trials_of

STAGE: Final = "killed_stage"
#: Each table with the column that holds the version, and the rows that a session has of it.
TABLES: Final[Mapping[str, tuple[str, int]]] = {
    "sessions": ("block", 1),
    "kernels": ("accum_vgprs", 20),
    "kernel_stats": ("total_ns", 20),
    "session_metrics": ("n", 30),
}
UNTOUCHED: Final = 20
TOUCHED: Final = 10
LONGEST_DELAY_SECONDS: Final = 2.0
FIRST_ROUND: Final = datetime(2030, 1, 1, tzinfo=UTC)
HISTORY: Final = "SELECT session_id, count(*), sum(total_ns) FROM kernel_history GROUP BY ALL ORDER BY ALL"

Digests = dict[str, dict[str, str]]
"""What is published: by session and table the digest of its rows."""


@dataclass
class Kill:
    """Circumstances of one kill: rounds done before it, reads until then, and every broken promise in words."""

    number: int
    rounds: int = 0
    reads: int = 0
    left: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)


def session_id(number: int) -> str:
    return f"{datetime(2025, 1, 1, tzinfo=UTC) + timedelta(hours=number):%Y%m%dT%H%M%SZ}-{number:08x}"


def frames_of(version: int) -> dict[str, pl.DataFrame]:
    """The tables of one version of a session."""
    frames = {}
    for table, (versioned, rows) in TABLES.items():
        values: dict[str, Any] = {"kernel_id": range(rows), "name": [f"kernel_{i}" for i in range(rows)]}
        values |= {"metric": [f"metric_{i}" for i in range(rows)], versioned: [version] * rows}
        plain = {"string": "x", "bool": False, "float64": 0.5, "timestamp": FIRST_ROUND}
        frames[table] = pl.DataFrame(
            pl.Series(c.name, values.get(c.name, [plain.get(c.dtype, 1)] * rows), dtype=polars_dtype(c.dtype))
            for c in contract(table).columns
        )
    return frames


def digest(frame: pl.DataFrame) -> str:
    return sha256(repr(frame.rows()).encode()).hexdigest()


def publish(lake: TraceLake, session: str, version: int, published: Digests) -> None:
    """Publish a version of a session, and note what it is."""
    lake.publish(session, STAGE, frames_of(version))
    published[session] = {table: digest(lake.read(table, session)) for table in TABLES}


def compact_for_ever(folder: Path, first_round: int, told: Connection) -> None:
    """The child: one round after another, each told when it is done."""
    lake = TraceLake(folder)
    for number in range(first_round, sys.maxsize):
        compact(lake, FIRST_ROUND + number * GRACE / 2)
        told.send(number)


def read_for_ever(folder: Path, untouched: Digests, seed: int, told: Connection) -> None:
    """A reader: all tables of random sessions, now and then the history of all; each answer told as good or bad."""
    lake, rng = TraceLake(folder), random.Random(seed)
    kernels = TABLES["kernel_stats"][1]
    while True:
        session = rng.choice(sorted(untouched))
        try:
            wrong = [t for t in TABLES if digest(lake.read(t, session)) != untouched[session][t]]
            known = {row[0]: row[1:] for row in lake.sql(HISTORY).rows()}
            wrong += [f"kernel_history of {one}" for one in untouched if known.get(one) != (kernels, 0)]
        except AacoError as error:
            wrong = [str(error)]
        told.send([f"{session}: {one}" for one in wrong])


def kill_once(lake: TraceLake, published: Digests, number: int, rng: random.Random) -> Kill:
    """One child beside readers and writers, killed and looked after."""
    outcome = Kill(number)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.reliability.kill_compaction", "pyarrow.parquet"])
    heard, told = context.Pipe(duplex=False)
    child = context.Process(target=compact_for_ever, args=(lake.path, number * 1000, told))
    untouched = {session: published[session] for session in sorted(published)[:UNTOUCHED]}
    read, reading = context.Pipe(duplex=False)
    reader = context.Process(target=read_for_ever, args=(lake.path, untouched, number, reading))
    for process in (child, reader):
        process.start()
    touched = sorted(published)[UNTOUCHED:]
    publish(lake, rng.choice(touched), number + 1, published)
    gone = rng.choice(touched)
    lake.remove(gone)
    del published[gone]
    publish(lake, session_id(1000 + number), 0, published)
    heard.poll(60)  # the child is at work,
    read.poll(60)  # and so is the reader
    time.sleep(rng.uniform(0, LONGEST_DELAY_SECONDS))
    child.kill()
    child.join()
    reader.kill()
    reader.join()
    outcome.rounds = sum(1 for _ in _sent(heard))
    answers = list(_sent(read))
    outcome.reads = len(answers)
    outcome.violations = [f"a reader: {one}" for answer in answers for one in answer]
    _check(lake, published, outcome)
    for fault in faults(lake):
        outcome.left.append(fault.kind)
        if not mend(lake, fault):
            outcome.violations.append(f"not mended: {fault.kind} {fault.path}: {fault.explanation}")
    outcome.violations += [f"a fault after mending: {fault.kind} {fault.path}" for fault in faults(lake)]
    _check(lake, published, outcome)
    return outcome


def _sent(connection: Connection) -> Iterator[Any]:
    """All that a process sent before it was killed; what a kill cut off is not counted."""
    while connection.poll(0):
        try:
            yield connection.recv()
        except (EOFError, OSError):
            return


def _check(lake: TraceLake, published: Digests, outcome: Kill) -> None:
    """Every table of all sessions at once, and each of every session, is what was published."""
    for table in TABLES:
        try:
            frame = lake.read(table)
        except AacoError as error:
            outcome.violations.append(f"{table} cannot be read: {error}")
            continue
        shown = {one.item(0, "session_id"): digest(one) for one in frame.partition_by("session_id")}
        if shown != {session: tables[table] for session, tables in published.items()}:
            outcome.violations.append(f"{table} of all sessions is not what was published")
    held = lake.sql("SELECT count(*) FROM kernels").item()
    if held != len(published) * TABLES["kernels"][1]:
        outcome.violations.append(f"SQL counts {held} kernels of {len(published)} sessions")


def main(arguments: Sequence[str] | None = None) -> int:
    """Kill compactions and print what was found; 1 when a promise was broken."""
    options = killing(__doc__, 100).parse_args(arguments)
    lake, known = TraceLake(options.folder.absolute() / "lake"), options.folder.absolute() / "published.json"
    if known.exists():
        published: Digests = json.loads(known.read_text())
    else:
        published = {}
        for number in range(UNTOUCHED + TOUCHED):
            publish(lake, session_id(number), 0, published)
        known.write_text(json.dumps(published))
    done = trials_of(options.results, Kill)
    for number in range(len(done), options.kills):
        one = kill_once(lake, published, number, random.Random(options.seed + number))
        known.write_text(json.dumps(published))
        keep_trial(options.results, done, one)
    rows = [("kills", len(done)), ("rounds done before them", sum(one.rounds for one in done))]
    rows += [("reads beside them", sum(one.reads for one in done))]
    rows += [("kills that left something", sum(bool(one.left) for one in done))]
    return reported(rows, [f"kill {one.number}: {each}" for one in done for each in one.violations])


if __name__ == "__main__":
    from benchmarks.reliability.kill_compaction import main as imported  # under its own name, as the children know it

    sys.exit(imported())
