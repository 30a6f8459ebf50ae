"""CPU of taking in a tiny capture, in units of `import dagster` in the same environment.

Counts all processes that a command starts, except the measuring workers. `--tree CHECKOUT` measures another checkout.
"""

import argparse
import ctypes
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage
from typing import Final, NamedTuple

from benchmarks.common import ROOT

HEADER: Final = (
    "Kind,Agent_Id,Queue_Id,Stream_Id,Thread_Id,Dispatch_Id,Kernel_Id,Kernel_Name,Correlation_Id,Start_Timestamp,"
    "End_Timestamp,LDS_Block_Size,Scratch_Size,VGPR_Count,Accum_VGPR_Count,SGPR_Count,Workgroup_Size_X,"
    "Workgroup_Size_Y,Workgroup_Size_Z,Grid_Size_X,Grid_Size_Y,Grid_Size_Z"
)
#: Captures in the folder whose cost beyond the first is shared out.
SEVERAL: Final = 5
#: CPU time in units of `import dagster`.
BUDGETS: Final = {"one tiny capture": 3.0, "already known": 0.7, "each further capture": 0.85, "aaco run": 2.0}
RUN: Final = ("run", "--model", "squeezenet", "--iterations", "20")
#: The program of a measuring process.
WORKER: Final = b"inference_worker.py"
_POLL_SECONDS: Final = 0.005
_TICK: Final = os.sysconf("SC_CLK_TCK")
#: linux/prctl.h: processes whose parents have ended become children of this one, so that their time is counted.
_PR_SET_CHILD_SUBREAPER: Final = 36


class Cost(NamedTuple):
    """CPU seconds of a command and all that it started, without and of its measuring workers."""

    own: float
    measuring: float


@dataclass(frozen=True)
class Commands:
    """Runs commands of a checkout's environment on one lake, and says what each cost."""

    tree: Path
    folder: Path
    environment: Mapping[str, str]

    def aaco(self, *arguments: str) -> Cost:
        """Run `aaco ARGUMENTS` and measure its CPU time. RuntimeError when it fails."""
        return self._cost([self._program("aaco"), *arguments])

    def unit(self) -> float:
        """CPU seconds of `import dagster`."""
        return self._cost([self._program("python"), "-P", "-c", "import dagster"]).own

    def _program(self, name: str) -> str:
        return str(self.tree / ".venv" / "bin" / name)

    def _cost(self, command: Sequence[str]) -> Cost:
        used, workers = 0.0, dict[int, float]()
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )
            while True:
                workers |= _workers(os.getpid())
                try:
                    ended, status, usage = os.wait4(-1, os.WNOHANG)
                except ChildProcessError:
                    break
                if not ended:
                    time.sleep(_POLL_SECONDS)
                    continue
                used += usage.ru_utime + usage.ru_stime
                if ended == process.pid:
                    process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode:
                errors.seek(0)
                said = errors.read().decode(errors="replace").strip()
                raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}: {said}")
        measuring = sum(workers.values())
        return Cost(used - measuring, measuring)


def _workers(parent: int) -> dict[int, float]:
    """CPU seconds so far of the measuring workers among a process's descendants, with their own children."""
    found = {}
    for child in _children(parent):
        try:
            arguments = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
            fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        if any(one.rpartition(b"/")[2] == WORKER for one in arguments):
            found[child] = sum(map(int, fields[11:15])) / _TICK
        else:
            found |= _workers(child)
    return found


def _children(parent: int) -> Iterator[int]:
    for listed in Path(f"/proc/{parent}/task").glob("*/children"):
        try:
            yield from map(int, listed.read_text().split())
        except OSError:
            continue  # the thread has ended


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


def figures(tree: Path, rounds: int, *, measure: bool) -> dict[str, list[float]]:
    """Every figure of every round, in units."""
    found: dict[str, list[float]] = {name: [] for name in BUDGETS if measure or name != "aaco run"}
    folder = Path(tempfile.mkdtemp(prefix="aaco-cost-"))
    try:
        environment = {**os.environ, "AACO_LAKE": str(folder / "lake"), "DAGSTER_HOME": str(folder / "home")}
        commands = Commands(tree, folder, environment)
        number = 0

        def capture() -> Path:
            nonlocal number
            number += 1
            return write_capture(folder / f"capture_{number}", number)

        commands.aaco("ingest", str(capture()))  # makes the lake and Dagster's databases
        if measure:
            commands.aaco(*RUN)  # makes the model
        for turn in range(rounds):
            units = [commands.unit()]
            one = capture()
            single = commands.aaco("ingest", str(one)).own
            known = commands.aaco("ingest", str(one)).own
            units.append(commands.unit())
            several = folder / f"several_{turn}"
            for place in range(SEVERAL):
                number += 1
                write_capture(several / f"run_{place}", number)
            many = commands.aaco("ingest", str(several)).own
            measured = commands.aaco(*RUN) if measure else Cost(0.0, 0.0)
            units.append(commands.unit())
            unit = statistics.median(units)
            found["one tiny capture"].append(single / unit)
            found["already known"].append(known / unit)
            found["each further capture"].append((many - single) / (SEVERAL - 1) / unit)
            if measure:
                found["aaco run"].append(measured.own / unit)
                if not measured.measuring:
                    raise RuntimeError(f"no process of {WORKER.decode()} was seen: its time cannot be left out")
            told = {name: round(values[-1], 2) for name, values in found.items()}
            print(f"round {turn + 1}: unit {unit:.3f} s, measuring {measured.measuring:.2f} s, {told}", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return found


def main() -> int:
    """Print each figure's median, least and most; 1 when a median exceeds its budget."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, default=ROOT, help="checkout with its environment in .venv")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--no-run", action="store_true", help="leave `aaco run` out, which measures for seconds")
    chosen = parser.parse_args()
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "processes that outlive their command cannot be counted")
    found = figures(chosen.tree.absolute(), chosen.rounds, measure=not chosen.no_run)
    print(f"{'figure':24}{'median':>8}{'least':>8}{'most':>8}{'budget':>8}")
    for name, values in found.items():
        median = statistics.median(values)
        print(f"{name:24}{median:8.2f}{min(values):8.2f}{max(values):8.2f}{BUDGETS[name]:8.2f}")
    usages = [getrusage(who) for who in (RUSAGE_SELF, RUSAGE_CHILDREN)]
    spent = sum(one.ru_utime + one.ru_stime for one in usages)
    print(f"in units of `import dagster`; {spent:.0f} s of CPU in all")
    return int(any(statistics.median(values) > BUDGETS[name] for name, values in found.items()))


if __name__ == "__main__":
    sys.exit(main())
