"""Kill `aaco record` at random instants: no torn folder, no process left, and the measurement slot is free."""

import argparse
import collections
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from aaco_pipeline.resources.measure.measurement_slot import slot_is_free
from benchmarks.common import table

#: Beyond this whatever still runs is counted as left behind: SIGTERM's grace of 5 s, and some.
PATIENCE_SECONDS: Final = 20.0
LONGEST_SECONDS: Final = 1.7
MARK: Final = "AACO_KILLED_RECORDING"
RECORD: Final = """
import sys
from pathlib import Path
from aaco_pipeline.recording.__main__ import main
from aaco_pipeline.resources.measure import measurement_slot
measurement_slot.PLACES = [Path(sys.argv[1])]
sys.exit(main(sys.argv[2:]))
"""
PROGRAM: Final = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
end = time.monotonic() + 0.15
while time.monotonic() < end:
    os.write(1, b"x" * 1000)
    time.sleep(0.001)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill the recorder at random instants.")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    chance = random.Random(given.seed)
    told: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "slot").mkdir()
        (place / "recordings").mkdir()
        for number in range(given.kills):
            told.update(one_kill(place, number, chance.uniform(0.0, LONGEST_SECONDS)))
            print(f"\r{number + 1} of {given.kills}", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
        # What killed recorders have left is for the next one to remove.
        alone = [sys.executable, "-c", RECORD, str(place / "slot"), "--runs", "1", "--output"]
        subprocess.run([*alone, str(place / "recordings/last"), "--", "true"], check=True, stderr=subprocess.DEVNULL)
        told["unfinished folders after the next recording"] = len([*(place / "recordings").glob(".*")])
    wrong = ("torn", "processes left", "slot taken", "unfinished folders after the next recording")
    print(table([(name, told[name]) for name in ("killed", "ended before", *wrong)]))
    return int(any(told[name] for name in wrong))


def one_kill(place: Path, number: int, seconds: float) -> list[str]:
    """Record, kill the recorder after this many seconds, and say what was found."""
    target = place / "recordings" / f"made_{number}"
    mark = f"{os.getpid()}-{number}"
    recorder = subprocess.Popen(
        [
            *(sys.executable, "-c", RECORD, str(place / "slot"), "--runs", "3", "--no-output", "--output", str(target)),
            *("--", sys.executable, "-I", "-S", "-c", PROGRAM),
        ],
        env={**os.environ, MARK: mark},
        stderr=subprocess.DEVNULL,
    )
    time.sleep(seconds)
    found = ["killed" if recorder.poll() is None else "ended before"]
    recorder.kill()
    recorder.wait()
    deadline = time.monotonic() + PATIENCE_SECONDS
    lock = place / "slot" / "aaco-measurement.lock"
    while (running := alive(mark)) or not slot_is_free(lock):
        if time.monotonic() > deadline:
            found.append("processes left" if running else "slot taken")
            break
        time.sleep(0.02)
    if target.exists() and not is_whole(target):
        found.append("torn")
    return found


def alive(mark: str) -> list[int]:
    """The processes whose environment has the mark."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def is_whole(folder: Path) -> bool:
    """Return whether every document that the folder's list of passes names is there and is JSON."""
    try:
        capture = json.loads((folder / "capture.json").read_text())
        for one in capture["passes"]:
            run = json.loads((folder / one["folder"] / "run.json").read_text())
            sizes = [(folder / one["folder"] / run[name]["tail_file"]).stat().st_size for name in ("stdout", "stderr")]
            if sizes != [min(run[name]["bytes"], 64 << 10) for name in ("stdout", "stderr")]:
                return False
        json.loads((folder / "telemetry.json").read_text())
        json.loads((folder / "host.json").read_text())
    except (OSError, ValueError, KeyError):
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
