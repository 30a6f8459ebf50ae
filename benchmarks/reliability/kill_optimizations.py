"""Kill `aaco optimize --apply` at random instants: the source is whole, the journal readable, nothing left running.

The source must be as before or as accepted, the journal must decide itself again, and the next search must clean up.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Final

from aaco_pipeline.errors import AacoError
from aaco_pipeline.lake.artefacts import ARTEFACTS
from aaco_pipeline.pipeline.doctor import examine
from aaco_pipeline.pipeline.optimizing.record import journal_path
from aaco_pipeline.pipeline.optimizing.search import decide_again
from aaco_pipeline.pipeline.optimizing.sources import copy_samples
from benchmarks.common import keep_trial, killing, reported, seconds_of, trials_of
from benchmarks.reliability.kill_runs import Workplace

SAMPLE: Final = "row_dot"
#: How long what a killed command started may take to notice.
GRACE_SECONDS: Final = 10.0
#: The next search only has to begin.
_NEXT_BUDGET: Final = "0.001s"
_CACHE: Final = "AACO_CACHE"


@dataclass
class Trial:
    """One kill: when, how far the search had come, and every broken promise in words."""

    number: int
    seconds: float
    met: str
    violations: list[str] = field(default_factory=list)


def kill_one(place: Workplace, number: int, seconds: float, budget: str) -> Trial:
    """Start a search on a fresh copy of the sample, kill it after this many seconds, and check all that was
    promised."""
    source = _source(place)
    before, known = _digest(source), set(_searches(place))
    process = place.start(*_command(source, budget))
    try:
        process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()  # the command alone: what it started has to notice by itself
        process.wait()  # and not for the end of its output, which a process that is left would keep open
    new = sorted(set(_searches(place)) - known)
    content = journal_path(place.lake.path, new[0]).read_bytes() if new and _has_journal(place, new[0]) else b""
    trial = Trial(number, seconds, _met(content, process.returncode))
    trial.violations += [*_of_the_source(source, before, content), *_of_the_journal(place, new, content)]
    trial.violations += [*_left_running(place), *_unwell(place, source)]
    return trial


def main(arguments: Sequence[str] | None = None) -> int:
    """Kill until so many kills met a search, and print what was found; 1 when a promise was broken."""
    parser = killing(__doc__, 10)
    parser.add_argument("--budget", default="60s", help="what each search may take")
    options = parser.parse_args(arguments)
    place = Workplace(options.folder.absolute())
    place.folder.mkdir(parents=True, exist_ok=True)
    os.environ[_CACHE] = str(place.folder / "cache")
    trials = trials_of(options.results, Trial)
    usual_seconds = seconds_of(lambda: place.call(*_command(_source(place), options.budget)))
    while sum(trial.met != "it had ended" for trial in trials) < options.kills:
        number = len(trials) + 1
        seconds = random.Random(f"{options.seed}-{number}").uniform(0, usual_seconds)
        keep_trial(options.results, trials, kill_one(place, number, seconds, options.budget))
    met = sorted(Counter(trial.met for trial in trials).items())
    broken = [f"kill {one.number} ({one.met}): {each}" for one in trials for each in one.violations]
    return reported([*met, ("kills", sum(trial.met != "it had ended" for trial in trials))], broken)


def _command(source: Path, budget: str) -> tuple[str, ...]:
    return ("optimize", str(source), "--target", "cpu", "--budget", budget, "--apply", "--json")


def _source(place: Workplace) -> Path:
    """A fresh copy of the sample with its harness, in a folder of its own."""
    folder = place.folder / "mine"
    shutil.rmtree(folder, ignore_errors=True)
    copied = copy_samples(place.folder / "samples")
    source = next(one for one in copied if one.stem == SAMPLE)
    folder.mkdir()
    for one in source.parent.glob(f"{SAMPLE}*"):
        if one.is_file():
            shutil.copyfile(one, folder / one.name)
    return folder / source.name


def _searches(place: Workplace) -> list[str]:
    return [one.name for one in (place.lake.path / ARTEFACTS).glob("optimize-*")]


def _has_journal(place: Workplace, search: str) -> bool:
    return journal_path(place.lake.path, search).is_file()


def _met(content: bytes, status: int) -> str:
    """Progress of the killed command, in words."""
    if status >= 0:
        return "it had ended"
    kinds = [json.loads(line)["kind"] for line in content.split(b"\n")[:-1]]
    steps = {"begin": "in the baseline", "baseline": "in A/A", "attempt": "in a later candidate", "end": "at its end"}
    last = [kind for kind in kinds if kind not in ("not_applicable", "exchange")]
    return f"killed {steps.get(last[-1], 'in the first candidate')}" if last else "killed before it began"


def _of_the_source(source: Path, before: str, content: bytes) -> Iterator[str]:
    lines = [json.loads(line) for line in content.split(b"\n")[:-1]]
    accepted = {line["source_sha256"] for line in lines if line.get("decision") == "accepted"}
    if _digest(source) not in {before, *accepted}:
        yield "the source is neither what it was nor what was accepted"
    expected = {source.name, f"{source.stem}_harness.py"}
    others = sorted({one.name for one in source.parent.iterdir()} - expected - {"__pycache__"})
    if others:
        yield f"beside the source lies {', '.join(others)}"


def _of_the_journal(place: Workplace, new: list[str], content: bytes) -> Iterator[str]:
    if len(new) > 1:
        yield f"one command began {len(new)} searches"
    if not content.count(b"\n"):
        if new and not place.lake.read("optimizations", new[0]).is_empty():
            yield "the lake names a search whose journal has no line"
        return
    try:
        journal, again = decide_again(content, new[0])
    except AacoError as error:
        yield f"the journal is not read: {error}"
        return
    yield from (f"attempt {one.attempt} is decided otherwise: {one.differs}" for one in again if one.differs)
    rows = place.lake.read("optimization_attempts", new[0]).height
    if rows not in (attempts := len(journal.of_kind("attempt")), attempts - 1):
        yield f"the lake has {rows} attempts, and the journal {attempts}"


def _left_running(place: Workplace) -> Iterator[str]:
    """Processes that are still there after a while; they are ended, so that the next trial begins alone."""
    until = time.monotonic() + GRACE_SECONDS
    while (left := list(_processes(place))) and time.monotonic() < until:
        time.sleep(0.1)
    for process, command in left:
        with suppress(ProcessLookupError):
            os.kill(process, 9)
        yield f"process {process} is left: {command}"


def _processes(place: Workplace) -> Iterator[tuple[int, str]]:
    """Processes whose command, environment, program or folder names the cache, which only searches know."""
    mark = os.fsencode(place.folder / "cache")
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        with suppress(OSError):
            command = (entry / "cmdline").read_bytes()
            if not command:
                continue  # a process that has ended and waits to be buried
            places = [os.fsencode((entry / name).readlink()) for name in ("exe", "cwd")]
            if any(mark in told for told in (command, (entry / "environ").read_bytes(), *places)):
                yield int(entry.name), command.replace(b"\0", b" ").decode(errors="replace")


def _unwell(place: Workplace, source: Path) -> Iterator[str]:
    """Findings of `aaco doctor`, which mends nothing, once the next search has begun, and how that search ended."""
    done = place.call("optimize", str(source), "--target", "cpu", "--budget", _NEXT_BUDGET, "--json")
    if done.returncode != 0:
        yield f"the next search ended with {done.returncode}: {done.stderr}"
    for one in examine(place.lake, lambda session: None):
        yield f"{one.kind}: {one.subject}: {one.explanation}"


def _digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
