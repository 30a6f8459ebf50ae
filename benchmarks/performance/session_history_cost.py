"""CPU of the stage `regression` beside few and beside many sessions: it looks at the newest of the workload alone.

Two small sessions are measured; the lake is then filled with copies of them up to 100 and up to 1,000 sessions, all of
one workload. The stage of the newest session runs in both lakes in turn; the figure is the median of the ratios of CPU
time. Run as `python -m benchmarks.performance.session_history_cost`; exits with 1 above 1.2, or above half a second.
"""

import statistics
import sys
import tempfile
from pathlib import Path
from time import process_time
from typing import Final

from aaco_pipeline.assets.stage import Session, stages
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.project import HOME_VARIABLE, LAKE_VARIABLE
from benchmarks.performance.command_cost import call
from benchmarks.performance.diff_cost import filled

_FEW, _MANY = 100, 1_000
_MOST_RATIO: Final = 1.2
_MOST_SECONDS: Final = 0.5
_REPEATS: Final = 9
_RUN: Final = ("run", "--model", "control_flow", "--iterations", "50", "--warmup", "1")


def seconds_of(lake: TraceLake) -> float:
    """CPU seconds of the stage of the newest session."""
    session = Session(lake, lake.sessions()[-1], Path("configs"))
    began = process_time()
    outcome = stages()["regression"](session)
    spent = process_time() - began
    assert outcome.tables["history_places"].item(0, "earlier_sessions") > 0
    return spent


def main() -> int:
    with tempfile.TemporaryDirectory() as scratch:
        home = {HOME_VARIABLE: f"{scratch}/home"}
        lakes = {size: Path(scratch) / f"lake_{size}" for size in (2, _FEW, _MANY)}
        for _ in range(2):
            call(_RUN, {LAKE_VARIABLE: str(lakes[2]), **home})
        for size in (_FEW, _MANY):
            filled(lakes[2], lakes[size], size)
        pairs = [tuple(seconds_of(TraceLake(lakes[size])) for size in (_FEW, _MANY)) for _ in range(_REPEATS + 1)][1:]
        few, many = (statistics.median(pair[place] for pair in pairs) for place in (0, 1))
        ratio = statistics.median(pair[1] / pair[0] for pair in pairs)
    print(f"{few:.3f} s CPU beside {_FEW}, {many:.3f} s beside {_MANY:,}: ratio {ratio:.3f}")
    holds = ratio <= _MOST_RATIO and many <= _MOST_SECONDS
    print(f"{'holds' if holds else 'FAILS'}: at most {_MOST_RATIO} times the CPU, and {_MOST_SECONDS} s")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
