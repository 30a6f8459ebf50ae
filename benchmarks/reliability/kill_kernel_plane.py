"""Kill measuring commands with the kernel plane on: the next command finds nothing of them. Run as root."""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from aaco_pipeline.resources.kernel_plane.tracefs import stale_of
from aaco_pipeline.resources.project import HOME_VARIABLE, LAKE_VARIABLE
from benchmarks.common import ENTRY

_COMMANDS: Final = (
    ("run", "--model", "squeezenet", "--iterations", "200", "--kernel-plane"),
    ("quiet", "--seconds", "3"),
)
#: What stands in the command line of a measured process, and of a probe.
_STARTED: Final = (b"inference_worker.py", b"sched_setaffinity(0, {int")
_LONGEST_SECONDS: Final = 5.0
_INSTANCES: Final = Path("/sys/kernel/tracing/instances")


def left_behind() -> list[str]:
    """Remains of killed commands: instances of ours, and processes that they had started.

    Both are others' where whoever started them is alive.
    """
    found = [one.name for one in stale_of(_INSTANCES.iterdir())]
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            with suppress(OSError):
                words = (process / "cmdline").read_bytes()
                parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
                if parent == "1" and any(one in words for one in _STARTED):
                    found.append(f"process {process.name}")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--seed", type=int, default=17)
    options = parser.parse_args(arguments)
    chance, broken, during = random.Random(options.seed), 0, 0
    with tempfile.TemporaryDirectory() as scratch:
        environment = {**os.environ, LAKE_VARIABLE: f"{scratch}/lake", HOME_VARIABLE: f"{scratch}/home"}
        for number in range(options.kills):
            command = [sys.executable, "-c", ENTRY, *chance.choice(_COMMANDS)]
            process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(chance.uniform(0.3, _LONGEST_SECONDS))
            alive = process.poll() is None
            process.send_signal(signal.SIGKILL)
            process.wait()
            during += alive and any(f"aaco_{process.pid}_" in one.name for one in _INSTANCES.iterdir())
            after = [sys.executable, "-c", ENTRY, "quiet", "--seconds", "0.5"]
            subprocess.run(after, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            left = left_behind()
            broken += bool(left)
            print(f"kill {number + 1}: {'; '.join(left) or 'nothing left'}", flush=True)
    print(f"{options.kills} kills, {during} of them while it recorded; something left after {broken}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
