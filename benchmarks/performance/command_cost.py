"""CPU seconds of the `aaco` command itself, without the processes that it measures.

Medians of fresh interpreters on a lake of three sessions. Exits with 1 when a budget is exceeded.
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from aaco_pipeline.resources.project import HOME_VARIABLE, LAKE_VARIABLE
from benchmarks.common import ROOT

SESSIONS: Final = 3
_RUN: Final = ("run", "--model", "squeezenet")
_FILL: Final = (*_RUN, "--iterations", "5", "--warmup", "1")
#: The last line on standard error is the child's own account; the command's output goes nowhere.
_CHILD: Final = """
import json, resource, sys
from aaco_pipeline.cli.main import main
code = main(sys.argv[1:])
own, started = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
print(json.dumps([own.ru_utime + own.ru_stime, started.ru_utime + started.ru_stime]), file=sys.stderr)
sys.exit(code)
"""


#: Commands with the CPU seconds that they may cost; the one that adds sessions comes last.
BUDGETS: Final[dict[tuple[str, ...], float | None]] = {
    ("--help",): 0.3,
    ("sql", "SELECT * FROM latest_sessions"): 0.6,
    ("ls",): None,
    ("show", "latest"): None,
    _RUN: 6.0,
}


@dataclass(frozen=True)
class Cost:
    """Seconds of one call: CPU of the command, CPU of the processes it started, and on the clock."""

    own: float
    started: float
    wall: float


def call(arguments: Sequence[str], environment: Mapping[str, str]) -> Cost:
    """Run the command once, to its end. RuntimeError when it fails."""
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-P", "-c", _CHILD, *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    wall = time.monotonic() - begun
    if done.returncode != 0:
        raise RuntimeError(f"aaco {' '.join(arguments)} ended with {done.returncode}: {done.stderr.strip()}")
    own, started = json.loads(done.stderr.splitlines()[-1])
    return Cost(own, started, wall)


def median_cost(arguments: Sequence[str], environment: Mapping[str, str], repeats: int) -> Cost:
    """The medians over `repeats` calls after one that only warms the caches."""
    call(arguments, environment)
    costs = [call(arguments, environment) for _ in range(repeats)]
    return Cost(
        *(statistics.median(values) for values in zip(*((c.own, c.started, c.wall) for c in costs), strict=True))
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure every command and print a table; 1 when a budget is exceeded."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args(arguments)
    missed = False
    row = "{:<44} {:>10} {:>10} {:>10} {:>10}  {}".format
    with tempfile.TemporaryDirectory() as folder:
        environment = {LAKE_VARIABLE: f"{folder}/lake", HOME_VARIABLE: f"{folder}/home"}
        for _ in range(SESSIONS):
            call(_FILL, environment)
        print(row("command", "CPU s", "budget s", "children s", "clock s", "verdict"))
        for words, budget in BUDGETS.items():
            cost = median_cost(words, environment, options.repeats)
            met = budget is None or cost.own <= budget
            missed |= not met
            told = ("–", "") if budget is None else (f"{budget:.1f}", "met" if met else "not met")
            name = "aaco " + shlex.join(words)
            print(row(name, f"{cost.own:.3f}", told[0], f"{cost.started:.3f}", f"{cost.wall:.2f}", told[1]), flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
