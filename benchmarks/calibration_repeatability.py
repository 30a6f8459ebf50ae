"""How well the ceilings of this machine repeat: several calibrations one after the other, and how far they lie apart.

Each is what `aaco calibrate` does, and nothing is kept in a lake. For each ceiling the table shows the highest, the
lowest over the highest, and the coefficient of variation; below it, the CPU seconds of the measured processes and the
share of time they waited for a CPU. A machine that others use repeats badly: the last column says how often the
calibration itself called the ceiling doubtful. Run as `python benchmarks/calibration_repeatability.py --runs 5`; it
exits with 1 when a ceiling that no run called doubtful repeats worse than `--accept` (default 0.05).
"""

import argparse
import resource
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from aaco_pipeline.lake.calibrations import Calibration
from aaco_pipeline.resources.calibrate.calibration import (
    DEFAULT_SECONDS,
    UNSTEADY_RATIO,
    best_outcomes,
    calibrate,
    default_threads,
    resource_name,
    rounds_spread,
    shortfall,
)
from aaco_pipeline.resources.calibrate.worker import SETTLED_WITHIN

DEFAULT_RUNS: Final = 5


def doubtful(calibration: Calibration) -> set[str]:
    """The ceilings that the calibration calls doubtful, by the rules it states."""
    found = set()
    for outcome in best_outcomes(calibration.details["measurements"]):
        spread = rounds_spread(outcome)
        if spread is None or spread > SETTLED_WITHIN or shortfall(outcome) > UNSTEADY_RATIO:
            found.add(resource_name(outcome))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Calibrate several times and print how far the ceilings lie apart; 1 when undisturbed ones do not repeat."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--runs", type=int, default=DEFAULT_RUNS)
    parser.add_argument("--seconds", type=float, default=DEFAULT_SECONDS)
    parser.add_argument("--accept", type=float, default=0.05)
    options = parser.parse_args(arguments)
    values: dict[tuple[int | None, str], list[float]] = defaultdict(list)
    doubts: dict[tuple[int | None, str], int] = defaultdict(int)
    waited: list[float] = []
    begun = time.monotonic()
    for _ in range(options.runs):
        for calibration in calibrate(default_threads(), options.seconds, print):
            names = {
                (o["resource"], o["dtype"]): resource_name(o)
                for o in best_outcomes(calibration.details["measurements"])
            }
            for ceiling in calibration.ceilings:
                values[calibration.threads, names[ceiling.resource, ceiling.dtype]].append(ceiling.value)
            for name in doubtful(calibration):
                doubts[calibration.threads, name] += 1
            waited += [noise["run_delay_ratio"] or 0.0 for noise in calibration.details["noise"].values()]
    wall = (time.monotonic() - begun) / options.runs
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    row = "{:>7} {:<16} {:>12} {:>15} {:>10} {:>10}".format
    print(row("threads", "ceiling", "highest G/s", "lowest/highest", "variation", "doubtful"))
    missed = False
    for (threads, name), reached in values.items():
        ratio, variation = min(reached) / max(reached), statistics.pstdev(reached) / statistics.fmean(reached)
        doubt = doubts[threads, name]
        missed = missed or (doubt == 0 and ratio < 1 - options.accept)
        told = f"{doubt} of {len(reached)}"
        print(row(threads, name, f"{max(reached) / 1e9:.1f}", f"{ratio:.3f}", f"{variation:.3f}", told))
    cpu = (used.ru_utime + used.ru_stime) / options.runs
    print(
        f"a calibration took {wall:.1f} s and {cpu:.1f} CPU s; its processes "
        f"waited for a CPU during {statistics.fmean(waited):.1%} of the time they wanted one"
    )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
