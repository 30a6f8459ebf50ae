"""CPU of `aaco diff` beside few and beside many sessions: it reads the two sessions alone.

Two small sessions are measured; the lake is then filled with copies of them up to 100 and up to 1,000 sessions. The
same `diff --json`, named by ids and by prefixes, runs in fresh interpreters in both lakes in turn; the figure is the
median of the ratios of user and system time. Run as `python -m benchmarks.performance.diff_cost`; exits with 1 above 1.1.
"""

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.project import HOME_VARIABLE, LAKE_VARIABLE
from benchmarks.performance.command_cost import call

_FEW, _MANY = 100, 1_000
_MOST: Final = 1.1
_RUN: Final = ("run", "--model", "squeezenet", "--iterations", "5", "--warmup", "1")


def filled(made: Path, lake: Path, sessions: int) -> None:
    """A lake like `made` with copies of its sessions under other ids, `sessions` in all; files are links."""
    originals = TraceLake(made).sessions()
    for file in (path for path in made.rglob("*") if path.is_file()):
        _link(file, lake / file.relative_to(made))
    for number in range(sessions - len(originals)):
        original = originals[number % len(originals)]
        copy = f"20240101T000000Z-{number:08x}{original[25:]}"
        manifest = (made / "manifests" / f"{original}.json").read_text()
        (lake / "manifests" / f"{copy}.json").write_text(manifest.replace(original, copy))
        for folder in made.glob(f"*/session_id={original}"):
            for file in (path for path in folder.rglob("*") if path.is_file()):
                _link(file, lake / folder.parent.name / f"session_id={copy}" / file.relative_to(folder))


def measured(environment: Mapping[str, str], names: tuple[str, str]) -> float:
    """CPU seconds of one `aaco diff`."""
    cost = call(("diff", *names, "--json"), environment)
    return cost.own + cost.started


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    os.link(source, target)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        home = {HOME_VARIABLE: f"{scratch}/home"}
        lakes = {size: Path(scratch) / f"lake_{size}" for size in (2, _FEW, _MANY)}
        for _ in range(2):
            call(_RUN, {LAKE_VARIABLE: str(lakes[2]), **home})
        for size in (_FEW, _MANY):
            filled(lakes[2], lakes[size], size)
            print(f"{len(TraceLake(lakes[size]).sessions())} sessions in {lakes[size].name}")
        first, second = TraceLake(lakes[2]).sessions()
        worst = 0.0
        for what, names in (("ids", (first, second)), ("prefixes", (first[:25], second[:25]))):
            seconds: dict[int, list[float]] = {_FEW: [], _MANY: []}
            for _ in range(options.repeats + 1):
                for size, spent in seconds.items():
                    spent.append(measured({LAKE_VARIABLE: str(lakes[size]), **home}, names))
            ratio = statistics.median(b / a for a, b in zip(seconds[_FEW][1:], seconds[_MANY][1:], strict=True))
            few, many = (statistics.median(seconds[size][1:]) for size in (_FEW, _MANY))
            print(f"by {what}: {few:.2f} s CPU beside {_FEW}, {many:.2f} s beside {_MANY:,}: ratio {ratio:.3f}")
            worst = max(worst, ratio)
    print(f"{'holds' if worst <= _MOST else 'FAILS'}: at most {_MOST} times the CPU")
    return 0 if worst <= _MOST else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
