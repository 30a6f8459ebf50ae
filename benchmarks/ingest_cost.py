"""What taking in a tiny capture costs, in units of `import dagster` of the same environment.

The unit is the CPU time of `python -c "import dagster"`: it moves with the machine and with Dagster's release as the
rest does. All commands run interleaved in one sitting on one lake with a Dagster home that exists; each figure is the
median over the rounds of the command's CPU time over that round's unit. Processes that a command measures do not count
as its own. Run as `python benchmarks/ingest_cost.py [--rounds 7]`; it exits with 1 when a budget is exceeded.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage
from typing import Final

HEADER: Final = (
    "Kind,Agent_Id,Queue_Id,Stream_Id,Thread_Id,Dispatch_Id,Kernel_Id,Kernel_Name,Correlation_Id,Start_Timestamp,"
    "End_Timestamp,LDS_Block_Size,Scratch_Size,VGPR_Count,Accum_VGPR_Count,SGPR_Count,Workgroup_Size_X,"
    "Workgroup_Size_Y,Workgroup_Size_Z,Grid_Size_X,Grid_Size_Y,Grid_Size_Z"
)
#: Captures in the folder whose cost beyond the first is shared out.
SEVERAL: Final = 5
#: CPU time in units of `import dagster`.
BUDGETS: Final = {"one tiny capture": 4.2, "already known": 2.2, "each further capture": 1.0, "aaco run": 5.0}
RUN: Final = ("run", "--model", "squeezenet", "--iterations", "5", "--warmup", "1")


@dataclass(frozen=True)
class Commands:
    """Runs `aaco` in child processes on one lake, and says what each cost itself."""

    environment: dict[str, str]

    def cost(self, arguments: Sequence[str]) -> float:
        """CPU seconds of `aaco ARGUMENTS`, without the processes that it started. RuntimeError when it fails."""
        done = subprocess.run(
            [sys.executable, "-P", "-c", _CHILD, *arguments],
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"aaco {' '.join(arguments)} ended with {done.returncode}: {done.stderr.strip()}")
        return float(done.stderr.splitlines()[-1])


#: The last line on standard error is the child's own account.
_CHILD: Final = """
import sys
from resource import RUSAGE_SELF, getrusage
if sys.argv[1:] == ["import dagster"]:
    import dagster
    code = 0
else:
    from aaco_pipeline.cli.main import main
    code = main(sys.argv[1:])
own = getrusage(RUSAGE_SELF)
print(own.ru_utime + own.ru_stime, file=sys.stderr)
sys.exit(code)
"""


def write_capture(folder: Path, number: int) -> Path:
    """A kernel trace of twenty dispatches as rocprofv3 writes it; `number` makes its content one of its own."""
    folder.mkdir(parents=True)
    rows = [
        f'"KERNEL_DISPATCH","Agent 4",1,0,77,{i + 1},{i % 3},"kernel_{i % 3}(float*)",{i + 1},'
        f"{1_000_000 + number + 10_000 * i},{1_004_000 + number + 10_000 * i},0,0,32,0,32,256,1,1,65536,1,1"
        for i in range(20)
    ]
    (folder / f"{number}_kernel_trace.csv").write_text("\n".join([HEADER, *rows]) + "\n")
    return folder


def figures(rounds: int, *, measure: bool) -> dict[str, list[float]]:
    """Every figure of every round, in units."""
    found: dict[str, list[float]] = {name: [] for name in BUDGETS if measure or name != "aaco run"}
    folder = Path(tempfile.mkdtemp(prefix="aaco-cost-"))
    try:
        environment = {**os.environ, "AACO_LAKE": str(folder / "lake"), "DAGSTER_HOME": str(folder / "home")}
        commands = Commands(environment)
        number = 0

        def capture() -> Path:
            nonlocal number
            number += 1
            return write_capture(folder / f"capture_{number}", number)

        commands.cost(["ingest", str(capture())])  # makes the lake and Dagster's databases
        for turn in range(rounds):
            units = [commands.cost(["import dagster"])]
            one = capture()
            single = commands.cost(["ingest", str(one)])
            known = commands.cost(["ingest", str(one)])
            units.append(commands.cost(["import dagster"]))
            several = folder / f"several_{turn}"
            for place in range(SEVERAL):
                number += 1
                write_capture(several / f"run_{place}", number)
            many = commands.cost(["ingest", str(several)])
            measured = commands.cost(RUN) if measure else 0.0
            units.append(commands.cost(["import dagster"]))
            unit = statistics.median(units)
            found["one tiny capture"].append(single / unit)
            found["already known"].append(known / unit)
            found["each further capture"].append((many - single) / (SEVERAL - 1) / unit)
            if measure:
                found["aaco run"].append(measured / unit)
            print(f"round {turn + 1}: unit {unit:.3f} s", {k: round(v[-1], 2) for k, v in found.items()}, flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return found


def main() -> int:
    """Print each figure's median, least and most; 1 when a median exceeds its budget."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--no-run", action="store_true", help="leave `aaco run` out, which measures for seconds")
    chosen = parser.parse_args()
    begun = getrusage(RUSAGE_SELF).ru_utime + getrusage(RUSAGE_CHILDREN).ru_utime
    found = figures(chosen.rounds, measure=not chosen.no_run)
    print(f"{'figure':24}{'median':>8}{'least':>8}{'most':>8}{'budget':>8}")
    for name, values in found.items():
        median = statistics.median(values)
        print(f"{name:24}{median:8.2f}{min(values):8.2f}{max(values):8.2f}{BUDGETS[name]:8.1f}")
    spent = getrusage(RUSAGE_SELF).ru_utime + getrusage(RUSAGE_CHILDREN).ru_utime - begun
    print(f"in units of `import dagster`; {spent:.0f} s of CPU in all")
    return int(any(statistics.median(values) > BUDGETS[name] for name, values in found.items()))


if __name__ == "__main__":
    sys.exit(main())
