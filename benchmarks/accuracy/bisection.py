"""Searches for a +3 % step among 64 builds, on recorded sessions of three workloads.

Blocks are drawn with replacement from recorded pairs; the rules were fixed on even blocks and are judged on odd ones.
Exits with 1 when a limit is missed.
"""

import argparse
import sys
import time
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from aaco_pipeline.statistics.bisection import MOST_BLOCKS, Answer, next_move
from aaco_pipeline.statistics.steady_state import BIMODAL, UNSTEADY
from benchmarks.accuracy.verdicts import WORKLOADS, local_sessions
from benchmarks.common import SHARED

STEPS: Final = 64
EFFECT: Final = 1.03
SEARCHES: Final = 1_280
IDENTICAL: Final = 1_000
LEAST_RIGHT: Final = 0.95
LEAST_UNCHANGED: Final = 0.975
MOST_BUILDS: Final = 8
#: Of the searches in which builds fail, the share of builds that do.
FAILING: Final = 0.1

Floats = npt.NDArray[np.float64]


def pairs(sessions: pl.DataFrame, workload: str, parity: int) -> Floats:
    """(recorded blocks, 12) log ratio of every ordered pair of identical sessions of a block; NaN without a level."""
    identical = sessions.filter(
        (pl.col("workload") == workload) & (pl.col("arm") == "a") & (pl.col("block") % 2 == parity)
    ).sort("block", "place")
    level = identical.select(
        pl.when(~pl.col("state").is_in([UNSTEADY, BIMODAL])).then(pl.col("p50_ns").log()).cast(pl.Float64)
    )
    logs = level.to_series().fill_null(float("nan")).to_numpy().reshape(-1, 4)
    differences: Floats = (logs[:, :, None] - logs[:, None, :])[:, ~np.eye(4, dtype=bool)]
    return differences


def search(noise: Floats, step: int, effect: float, failing: frozenset[int]) -> tuple[Answer, dict[int, int]]:
    """One search; what it answers and the blocks of each build. `noise` is (STEPS + 1, most blocks)."""
    measured: dict[int, Floats] = {}
    failed: set[int] = set()
    while not isinstance(move := next_move(STEPS, measured, failed), Answer):
        if move.build in failing:
            failed.add(move.build)
            continue
        spent = len(measured.get(move.build, ())) + move.blocks
        shift = np.log(effect) if move.build >= step else 0.0
        measured[move.build] = noise[move.build, :spent] + shift
    return move, {build: len(ratios) for build, ratios in measured.items()}


def drawn(known: Floats, random: np.random.Generator) -> Floats:
    """Block log ratios of every build of one search."""
    shape = (STEPS + 1, MOST_BLOCKS)
    return known[random.integers(0, len(known), shape), random.integers(0, known.shape[1], shape)]


def judge(workload: str, known: Floats, words: str) -> bool:
    """Print the figures of one workload; whether all are kept."""
    random = np.random.default_rng(64)
    lost = float(np.isnan(known).mean())
    right = alone = inside = changed = 0
    builds, blocks, most = [], [], 0
    for trial in range(SEARCHES):
        step = 1 + trial % STEPS
        answer, spent = search(drawn(known, random), step, EFFECT, frozenset())
        right += answer.likeliest == step
        alone += answer.state == "step" and answer.until == step
        changed += answer.state != "no change"
        inside += answer.state != "no change" and answer.after < step <= answer.until
        builds.append(1 + len(spent))
        blocks.append(sum(spent.values()))
        most = max(most, *spent.values())
    identical = (search(drawn(known, random), STEPS + 1, 1.0, frozenset())[0] for _ in range(IDENTICAL))
    unchanged = sum(answer.state == "no change" for answer in identical)
    kept = (
        right >= LEAST_RIGHT * SEARCHES
        and max(builds) <= MOST_BUILDS
        and most <= MOST_BLOCKS
        and unchanged >= LEAST_UNCHANGED * IDENTICAL
    )
    print(f"{workload}, {words}; {lost:.1%} of pairs without a level")
    print(
        f"{'kept  ' if kept else 'MISSED'} likeliest step right {right / SEARCHES:.1%} of {SEARCHES} (at least 95 %); "
        f"at most {max(builds)} builds with the first (8) and {most} blocks a build (60); no change in "
        f"{unchanged / IDENTICAL:.1%} of {IDENTICAL} with identical code (at least 97.5 %)"
    )
    print(
        f"       named alone and right {alone / SEARCHES:.1%}; a change found {changed / SEARCHES:.1%}, then inside "
        f"the range {inside / changed:.1%}; blocks in all {np.median(blocks):.0f} (median), {max(blocks)} (most); with "
        f"one build in ten failing inside the range {_with_failures(known, random):.1%}",
        flush=True,
    )
    return kept


def _with_failures(known: Floats, random: np.random.Generator) -> float:
    """Share of searches in which the step lies in the range that is answered, while builds fail."""
    inside = 0
    for _ in range(SEARCHES):
        step = int(random.integers(1, STEPS + 1))
        failing = frozenset(int(build) for build in np.flatnonzero(random.random(STEPS - 1) < FAILING) + 1)
        answer, _ = search(drawn(known, random), step, EFFECT, failing)
        inside += answer.state != "no change" and answer.after < step <= answer.until
    return inside / SEARCHES


def main() -> int:
    argparse.ArgumentParser(description=__doc__).parse_args()
    if not (SHARED / "regression" / "local_sessions.npz").is_file():
        print(f"{SHARED} has no regression/local_sessions.npz; set AACO_SHARED to where the captures are")
        return 1
    began = time.process_time()
    sessions, _ = local_sessions(SHARED)
    kept = True
    for workload in WORKLOADS:
        judge(workload, pairs(sessions, workload, 0), "blocks the rules were fixed on")
        kept &= judge(workload, pairs(sessions, workload, 1), "held-out blocks")
    print(f"{time.process_time() - began:.0f} s CPU")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
