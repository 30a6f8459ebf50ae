"""Shared by all benchmarks: paths, claims, results that a later run resumes, kills, tables of text.

Generators of captures and lakes are in `performance/generate_*.py`.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from typing import Any, Final, Protocol, TypeVar

import aaco_pipeline

ROOT: Final = Path(aaco_pipeline.__file__).parents[1]
CONFIGS: Final = ROOT / "configs"
#: Real captures, beside the checkout unless AACO_SHARED names another folder.
SHARED: Final = Path(os.environ.get("AACO_SHARED") or ROOT.parent / "shared")
#: The `aaco` command, for `python -c`.
ENTRY: Final = "from aaco_pipeline.cli.main import entry; entry()"
Row = dict[str, Any]


class Trial(Protocol):
    """One kill or other disturbance; a dataclass, with every broken promise in words."""

    number: int
    violations: list[str]


T = TypeVar("T", bound=Trial)


class Claims:
    """Claims with the figure that each got, printed as they come."""

    def __init__(self) -> None:
        self.missed = 0

    def state(self, what: str, value: object, kept: bool) -> None:
        self.missed += not kept
        print(f"{'kept  ' if kept else 'MISSED'} {what}: {value}", flush=True)


def rows_of(path: Path) -> list[Row]:
    """The rows of a file of JSON lines; none without the file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def append(path: Path, row: Mapping[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


@contextmanager
def resumed(file: Path) -> Iterator[tuple[list[Row], set[tuple[str | None, int, int]], Callable[[Row], None]]]:
    """Earlier sessions in a file of JSON lines, their (kind, threads, seed), and a function that keeps another."""
    rows = rows_of(file)

    def keep(row: Row) -> None:
        rows.append(row)
        append(file, row)

    yield rows, {(row["kind"], row["threads"], row["seed"]) for row in rows}, keep


def killing(doc: str | None, kills: int) -> argparse.ArgumentParser:
    """The options of a benchmark that kills: how often, where, and the results that it resumes."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--kills", type=int, default=kills)
    parser.add_argument("--seed", type=int, default=20250102)
    parser.add_argument("--folder", type=Path, required=True, help="where to work")
    parser.add_argument("--results", type=Path, required=True, help="one JSON line per kill; a later run resumes it")
    return parser


def trials_of(path: Path, kind: type[T]) -> list[T]:
    return [kind(**row) for row in rows_of(path)]


def keep_trial(path: Path, trials: list[T], trial: T) -> None:
    trials.append(trial)
    append(path, asdict(trial))  # type: ignore[call-overload]


def table(rows: Iterable[tuple[str, object]]) -> str:
    """Names and figures, one to a line."""
    listed = list(rows)
    width = max(len(name) for name, _ in listed)
    return "\n".join(f"{name:<{width}}  {value!s:>8}" for name, value in listed)


def reported(rows: Iterable[tuple[str, object]], broken: Sequence[str]) -> int:
    """Print a table and the broken promises; the exit code."""
    print(table([*rows, ("broken promises", len(broken))]))
    for line in broken:
        print(line, file=sys.stderr)
    return 1 if broken else 0


def with_package(**variables: str) -> dict[str, str]:
    """This environment, in which children also find this checkout's `aaco_pipeline` and `benchmarks`."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, **variables}


def cpu_seconds(command: Sequence[str], **how: Any) -> float:
    """CPU seconds of a command that ends well, with its children."""
    before = getrusage(RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, **how)
    after = getrusage(RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def seconds_of(act: Callable[[], "subprocess.CompletedProcess[str]"]) -> float:
    """Seconds that a command lasts undisturbed. RuntimeError when it fails."""
    began = time.monotonic()
    done = act()
    if done.returncode != 0:
        raise RuntimeError(f"undisturbed, it ended with {done.returncode}: {done.stderr}")
    return time.monotonic() - began
