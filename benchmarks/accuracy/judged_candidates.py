"""Run other people's candidate kernels through every guard of the optimization loop on the cpu target.

Adversarial sets were written without sight of the guards, and none of them may be accepted; of the `honest` set nine in
ten must be. Candidates run in the loop's own confinement only.
"""

import argparse
import json
import os
import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from aaco_pipeline.optimization import samples
from aaco_pipeline.optimization.candidates import Candidate, Refused
from aaco_pipeline.optimization.guards.text import check_text
from aaco_pipeline.optimization.harness import load_harness
from aaco_pipeline.optimization.loop.attempt import Builders, Held, drawn, try_candidate
from aaco_pipeline.optimization.loop.checking import HarnessChecker
from aaco_pipeline.optimization.loop.means import Builder, Means, Version
from aaco_pipeline.optimization.loop.timing import RuleTimer
from aaco_pipeline.optimization.source import parse, reading_of
from aaco_pipeline.optimization.timing_rule import Plan
from aaco_pipeline.pipeline.optimizing.asking import MOST_ATTEMPTS, static_of
from aaco_pipeline.resources.targets.cpu.target import CpuTarget
from benchmarks.common import append

FOLDER: Final = Path(__file__).parent / "optimizations"
SAMPLES: Final = Path(samples.__file__).parent
SETS: Final = ("adversarial/first", "adversarial/second", "adversarial/third", "adversarial/fourth", "honest")
LEAST_ACCEPTED: Final = 0.9


@dataclass(frozen=True)
class Given:
    """A candidate of a set: its sample, its whole source, and what it is said to be."""

    name: str
    sample: str
    source: bytes
    said: str


def given(name: str) -> list[Given]:
    """The candidates of a set, those of one sample beside one another."""
    folder = FOLDER / name
    manifest = folder / "manifest.json"
    if manifest.exists():
        rows = json.loads(manifest.read_text())
        found = [
            Given(one["name"], one["sample"], (folder / f"{one['name']}.hip").read_bytes(), one["why_bad"])
            for one in rows
        ]
    else:
        found = [
            Given(path.stem, path.name.partition(".")[0], path.read_bytes(), "honest")
            for path in sorted(folder.glob("*.hip"))
        ]
    return sorted(found, key=lambda one: (one.sample, one.name))


class Sample:
    """A sample that is built, checked and timed against itself once, for all candidates that are compared with it."""

    def __init__(self, name: str, folder: Path) -> None:
        path = SAMPLES / f"{name}.hip"
        source, harness = path.read_bytes(), load_harness(path, None, None)
        kernel = parse(source).kernel(harness.kernel)
        self.seed = random.SystemRandom().getrandbits(62)
        target, version = CpuTarget(), Version(source, kernel.name, kernel.parameters)
        launch = harness.drawn(harness.timed_size(target.name), "normal", np.random.default_rng(self.seed)).launch
        (static_folder := folder / "static").mkdir(parents=True)
        static, self.lacking = static_of(static_folder, launch)
        self.means = Means(
            target=target,
            proposers=(),
            check_text=check_text,
            static=static,
            checker=HarnessChecker(harness),
            timer=RuleTimer(Plan(candidates=MOST_ATTEMPTS), self.seed, harness),
            now_ns=time.monotonic_ns,
            record=lambda line: None,
            tell=lambda line: None,
            folder=folder / "search",
        )
        self._cold = 0
        builder = Builder(target, self.means.folder / "search")
        self.builders = Builders(builder, self._cold_builder)
        figures = None if static is None else static.figures(source, kernel.name)
        self.held = Held(version, builder(version), figures, version)

    def judge(self, number: int, one: Given) -> dict[str, Any]:
        """The journal's line of one candidate, without its source."""
        candidate = Candidate(self.held.version.kernel, one.source, "somebody", one.name, bit_exact=False)
        began = time.monotonic()
        candidate = replace(candidate, source=beside(self.held.version.source, one.source, candidate.kernel))
        record = try_candidate(self.means, self.held, candidate, self.builders, number=number, seed=self.seed).record
        kept = ("decision", "guard", "reason", "speedup_ratio", "ci_low", "ci_high", "stop")
        return {name: record[name] for name in kept} | {"seconds": round(time.monotonic() - began, 1)}

    def against_itself(self) -> None:
        """Identical code that passes as changed is one search in a hundred: then other layouts are drawn, once."""
        version = self.held.version
        for trial in range(2):
            builder = Builder(self.means.target, self.means.folder / f"aa-{trial}")
            evidence = self.means.timer.measure("aa", builder, (version, version), drawn(self.seed, "aa", trial))
            if (ruling := self.means.timer.decide("aa", evidence)).passed:
                return
        raise Refused("aa", ruling.reason)

    def _cold_builder(self) -> Builder:
        self._cold += 1
        return Builder(self.means.target, self.means.folder / f"confirmation-{self._cold}")


def beside(baseline: bytes, candidate: bytes, kernel: str) -> bytes:
    """The candidate's kernel in the baseline's file, where the two differ outside of it in comments and space alone."""
    try:
        old, new = reading_of(baseline), reading_of(candidate)
        was, now = old.unit.kernel(kernel).span, new.unit.kernel(kernel).span
    except Refused:
        return candidate
    outside = [
        [token.text for part in ((0, span.start), (span.end, len(one.text.source))) for token in one.text.within(*part)]
        + [[token.text for token in line.tokens] for line in one.text.directives if line.start < span.start]
        for one, span in ((old, was), (new, now))
    ]
    if outside[0] != outside[1]:
        return candidate
    return baseline[: was.start] + candidate[now.start : now.end] + baseline[was.end :]


def judged(found: list[Given], folder: Path) -> Iterator[dict[str, Any]]:
    """Each candidate with what was decided of it."""
    sample, name = None, None
    for number, one in enumerate(found):
        if one.sample != name:
            sample, name = Sample(one.sample, folder / one.sample), one.sample
            sample.against_itself()
            if sample.lacking is not None:
                print(f"{name}: no static verdict: {sample.lacking}", flush=True)
        assert sample is not None
        yield {"name": one.name, "sample": one.sample, "said": one.said, **sample.judge(number, one)}


def main() -> int:
    """Judge one set; 0 when none that is bad was accepted, or nine in ten that are honest were."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--set", choices=SETS, required=True)
    parser.add_argument("--results", type=Path, default=None, help="a line for each candidate is appended here")
    options = parser.parse_args()
    found, accepted = given(options.set), 0
    before = _processes()
    with tempfile.TemporaryDirectory(prefix="aaco-judged-") as folder:
        for row in judged(found, Path(folder)):
            if options.results:
                append(options.results, row)
            accepted += row["decision"] == "accepted"
            ratio = "" if row["speedup_ratio"] is None else f" {row['speedup_ratio']:.3f}"
            print(
                f"{row['decision']:9} {row['name']} ({row['said']}):{ratio} {row['guard']}: {row['reason'][:150]}"
                f" ({row['seconds']:.0f} s)",
                flush=True,
            )
    left = sorted(_processes() - before)
    print(f"{accepted} of {len(found)} accepted; processes left running: {left or 'none'}")
    held = accepted >= LEAST_ACCEPTED * len(found) if options.set == "honest" else accepted == 0
    return 0 if held and not left else 1


def _processes() -> set[str]:
    """Kernels' processes of this user that run now, by number and name."""
    found = set()
    for place in Path("/proc").iterdir():
        try:
            if place.name.isdigit() and place.stat().st_uid in (os.getuid(), 65534):
                name = (place / "comm").read_text().strip()
                if name.startswith("kernel"):
                    found.add(f"{place.name} {name}")
        except OSError:
            continue  # it has ended since
    return found


if __name__ == "__main__":
    raise SystemExit(main())
