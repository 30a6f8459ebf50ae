"""Flip one byte in each file of two sessions in turn: every road notices it at its first read, and doctor mends it.

One session is measured (squeezenet, 5 iterations), one is a real capture taken in, where `$AACO_SHARED` has it. After
each flip every road is asked as by a process that has read nothing before. Those that read the file must refuse it in
one line; those that do not must answer as before. Then what `aaco doctor --mend` does is done, and all tables must be
the very bytes they were; a raw file cannot be mended, and is said so. Run as
`python -m benchmarks.reliability.flip_bytes --results /tmp/flips.jsonl`; a second run with the same file goes on where the first
one ended. It exits with 1 when a flip went unnoticed, an answer was wrong or a table came back otherwise.
"""

import argparse
import gzip
import json
import random
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from aaco_pipeline.assets.stage import Session, materialize, stages, state_expected
from aaco_pipeline.capture import digests, identity
from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake import verified
from aaco_pipeline.lake.manifest import Manifest
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.doctor import examine
from aaco_pipeline.report.document.session import path_document, session_document, session_summary
from aaco_pipeline.report.trace import write_session_trace
from aaco_pipeline.report.views import page_of
from aaco_pipeline.resources.confinement.doors import copy_capture, discover_runs
from aaco_pipeline.resources.measure.runner import InferenceRunner
from tests.places import CONFIGS, SHARED

CAPTURE: Final = SHARED / "gpu_sessions/traces/two_streams_overlap.json.gz"
#: What a road said: its answer, or the error that it ended with.
Answer = object
Roads = Mapping[str, Callable[[], Answer]]


def measured(lake: TraceLake) -> str:
    """A session that was measured here and is whole."""
    session = lake.new_session("squeezenet")
    lake.request(session, MeasurementRequest(model="squeezenet", iterations=5, warmup=2).to_json())
    materialize(Session(lake, session, CONFIGS, InferenceRunner(configs=str(CONFIGS)).measure))
    return session


def ingested(lake: TraceLake) -> str:
    """A session of a capture that was made elsewhere."""
    (run,) = discover_runs(CAPTURE).runs
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
        write_session_trace(session, lambda table, columns: lake.batches(table, session, columns), path)
        return gzip.decompress(path.read_bytes())

    every: dict[str, Callable[[], Answer]] = {
        "summary": lambda: session_summary(lake, session),
        "report": lambda: session_document(lake, session),
        "critical path": lambda: path_document(lake, session),
        "export": exported,
        "page": lambda: page_of(lake, session),
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


def try_file(flipped: Flipped, every: Roads, known: Mapping[str, Answer]) -> dict[str, Any]:
    """With a byte of one file flipped, ask every road, mend, and compare; what came of it, for a line of results."""
    lake, session, file = flipped.lake, flipped.whole.id, flipped.file
    reads = must_refuse(lake, session, file)
    counts = dict.fromkeys(("refusals", "right answers", "mended"), 0)
    wrong = []
    for road, ask in every.items():
        forget()
        try:
            answer = ask()
        except LakeError as error:
            counts["refusals"] += 1
            if "\n" in str(error) or session not in str(error):
                wrong.append(f"{road}: not one line naming the session: {error}")
        else:
            counts["right answers"] += 1
            if reads(road):
                wrong.append(f"{road}: not noticed")
            elif answer != known[road]:
                wrong.append(f"{road}: answers otherwise")
    forget()
    kinds = mended(lake)
    if lake.raw(session) in file.parents:
        file.write_bytes(flipped.before)
        if kinds != ["torn capture"]:
            wrong.append(f"doctor says {kinds} of a raw file")
    elif _stated(lake.manifest(session)) != _stated(flipped.whole):
        wrong.append("the tables came back otherwise")
    else:
        counts["mended"] = 1
    wrong += [f"doctor still says: {problem.kind}" for problem in examine(lake, lambda session: None)]
    return {"byte": flipped.at, **counts, "wrong": wrong}


def _stated(manifest: Manifest) -> object:
    """All but the views, which rest on the bytes of a manifest that was mended."""
    return manifest.entries, manifest.stages, manifest.expected


def mended(lake: TraceLake) -> list[str]:
    """What `aaco doctor --mend` finds, and mends with stages that run without Dagster."""

    def analyse(session: str) -> None:
        state_expected(lake, session)
        done = {state.stage for state in lake.progress(session).published}
        materialize(Session(lake, session, CONFIGS), [name for name in stages() if name not in done])

    found = examine(lake, analyse)
    for problem in found:
        if problem.mend is not None:
            problem.mend()
    return [problem.kind for problem in found]


def run(
    lake: TraceLake, session: str, kind: str, *, done: Collection[str], seed: int, scratch: Path
) -> Iterator[dict[str, Any]]:
    """What came of every file of one session that is not done yet, one after the other."""
    whole, path = lake.manifest(session), lake.manifest_path(session, "session")
    files = [lake.path / one.file for one in whole.on_disk]
    files += [path, *(file for file in sorted(lake.raw(session).rglob("*")) if file.is_file())]
    every = roads(lake, session, scratch)
    # A manifest is on every road; of a table, the others' own roads are left out.
    wide = {road: ask for road, ask in every.items() if not road.startswith(("read ", "sql "))}
    known = {road: ask() for road, ask in every.items()}
    for file in files:
        name = file.relative_to(lake.path).as_posix().replace(session, kind)
        name = name.rpartition("-")[0] if file.suffix == ".parquet" else name
        if name in done:
            continue
        own = {road: ask for road, ask in every.items() if road.endswith(f" {file.parent.parent.name}")}
        flipped = flip(lake, whole, file, random.Random(f"{seed} {name}"))
        yield {"file": name, **try_file(flipped, every if file == path else {**wide, **own}, known)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Flip bytes and print what was found; 1 when a promise was broken."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seed", type=int, default=20260101)
    parser.add_argument("--results", type=Path, required=True, help="where to append, and what to go on from")
    options = parser.parse_args(arguments)
    done = [json.loads(line) for line in options.results.read_text().splitlines()] if options.results.exists() else []
    with tempfile.TemporaryDirectory(prefix="aaco-flips-") as folder:
        lake = TraceLake(Path(folder) / "lake")
        sessions = {"measured": measured(lake)} | ({"ingested": ingested(lake)} if CAPTURE.exists() else {})
        for kind, session in sessions.items():
            names = {one["file"] for one in done}
            for one in run(lake, session, kind, done=names, seed=options.seed, scratch=Path(folder)):
                done.append(one)
                with options.results.open("a") as results:
                    results.write(json.dumps(one) + "\n")
    print(f"{len(done)} files of {len(sessions)} sessions flipped")
    for name in ("refusals", "right answers", "mended"):
        print(f"{name}: {sum(one[name] for one in done)}")
    broken = [f"{one['file']}, byte {one['byte']}: {wrong}" for one in done for wrong in one["wrong"]]
    print(f"broken promises: {len(broken)}")
    for line in broken:
        print(line, file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
