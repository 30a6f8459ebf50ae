"""CPU of `aaco diff` and of the stage `regression` beside 1,000 sessions, compared with 100: neither may grow.

Lakes hold copies of two measured sessions; files are links. Figures are medians of ratios over turns in both lakes.
"""

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import process_time
from typing import Final

from aaco_pipeline.assets.stage import Session, stages
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.project import HOME_VARIABLE, LAKE_VARIABLE
from benchmarks.common import CONFIGS, Claims
from benchmarks.performance.command_cost import call

FEW, MANY = 100, 1_000
_RUN: Final = ("run", "--model", "control_flow", "--iterations", "50", "--warmup", "1")


def filled(made: Path, lake: Path, sessions: int) -> TraceLake:
    """A lake like `made` with copies of its sessions under other ids, `sessions` in all; files are links."""
    originals = TraceLake(made).sessions()
    for file in (path for path in made.rglob("*") if path.is_file()):
        _link(file, lake / file.relative_to(made))
    for number in range(sessions - len(originals)):
        original = originals[number % len(originals)]
        copy = f"20240101T000000Z-{number:08x}{original[25:]}"
        manifest = TraceLake(made).manifest(original)
        entries = tuple(one._replace(file=one.file.replace(original, copy)) for one in manifest.entries)
        renamed = replace(manifest, id=copy, entries=entries)
        TraceLake(lake).manifest_path(copy, "session").write_bytes(renamed.to_bytes())
        for folder in made.glob(f"*/session_id={original}"):
            for file in (path for path in folder.rglob("*") if path.is_file()):
                _link(file, lake / folder.parent.name / f"session_id={copy}" / file.relative_to(folder))
    return TraceLake(lake)


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    os.link(source, target)


def stage_seconds(lake: TraceLake) -> float:
    """CPU seconds of the stage `regression` of the newest session."""
    session = Session(lake, lake.sessions()[-1], CONFIGS)
    began = process_time()
    outcome = stages()["regression"](session)
    spent = process_time() - began
    assert outcome.tables["history_places"].item(0, "earlier_sessions") > 0
    return spent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    claims = Claims()
    with tempfile.TemporaryDirectory() as scratch:
        home, made = {HOME_VARIABLE: f"{scratch}/home"}, Path(scratch) / "made"
        for _ in range(2):
            call(_RUN, {LAKE_VARIABLE: str(made), **home})
        lakes = {size: filled(made, Path(scratch) / f"lake_{size}", size) for size in (FEW, MANY)}

        def diff(*names: str) -> Callable[[TraceLake], float]:
            def spent(lake: TraceLake) -> float:
                cost = call(("diff", *names, "--json"), {LAKE_VARIABLE: str(lake.path), **home})
                return cost.own + cost.started

            return spent

        first, second = TraceLake(made).sessions()
        cases: tuple[tuple[str, Callable[[TraceLake], float], float, float], ...] = (
            ("aaco diff by ids", diff(first, second), 1.1, float("inf")),
            ("aaco diff by prefixes", diff(first[:25], second[:25]), 1.1, float("inf")),
            ("stage regression", stage_seconds, 1.2, 0.5),
        )
        for what, measure, most_ratio, most_seconds in cases:
            pairs = [(measure(lakes[FEW]), measure(lakes[MANY])) for _ in range(options.repeats + 1)][1:]
            few, many = (statistics.median(side) for side in zip(*pairs, strict=True))
            ratio = statistics.median(b / a for a, b in pairs)
            told = f"{few:.3f} and {many:.3f} s CPU beside {FEW} and {MANY:,} sessions, ratio {ratio:.3f}"
            claims.state(what, f"{told} (at most {most_ratio})", ratio <= most_ratio and many <= most_seconds)
    return int(claims.missed > 0)


if __name__ == "__main__":
    sys.exit(main())
