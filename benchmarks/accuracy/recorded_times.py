"""The recorder's times beside those of `/usr/bin/time -v` and the program's own clocks, in the same run.

    python -m benchmarks.accuracy.recorded_times [--seconds 5]

Each program of at least so many seconds is recorded as `/usr/bin/time -v PROGRAM` (package `time`). The goal is 1 % or
20 ms, whichever is more.
"""

import argparse
import json
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

from aaco_pipeline.recording.recorder import record
from aaco_pipeline.recording.request import RecordRequest

PROGRAMS: Final = {
    "computes": "while time.process_time() - began < {s}: pass",
    "sleeps": "time.sleep({s})",
    "child computes": "subprocess.run([sys.executable, '-c', 'import time\\nwhile time.process_time() < {s}: pass'])",
    "calls the kernel": "while time.monotonic() - start < {s}: os.listdir('/proc/self/fd')",
    "writes": "while time.monotonic() - start < {s}: os.write(1, b'x' * 60000)",
    "1 GiB": "held = b'\\1' * (1 << 30); time.sleep({s})",
}
START: Final = "import os, subprocess, sys, time; start = time.monotonic(); began = time.process_time()\n"
#: At the end the program says what its own clocks tell.
END: Final = "\nsys.stdout.flush(); os.write(2, b'own %.6f\\n' % (time.monotonic() - start))"
TOLD: Final = {
    "user": r"User time \(seconds\): ([\d.]+)",
    "system": r"System time \(seconds\): ([\d.]+)",
    "wall": r"Elapsed \(wall clock\) time .*: (?:(\d+):)?(\d+):([\d.]+)",
    "own": r"(?m)^own ([\d.]+)$",
    "memory": r"Maximum resident set size \(kbytes\): (\d+)",
}


def main() -> int:
    parser = argparse.ArgumentParser(description="The recorder's times beside those of others.")
    parser.add_argument("--seconds", type=float, default=5.0)
    given = parser.parse_args()
    timer = shutil.which("time")
    if timer is None:
        print("no /usr/bin/time here: apt-get install time", file=sys.stderr)
        return 4
    off = 0
    print(f"{'program':<18}{'':<9}{'recorded':>12}{'time -v':>12}{'own clock':>12}{'apart':>10}")
    for name, text in PROGRAMS.items():
        with tempfile.TemporaryDirectory() as folder:
            program = START + text.format(s=given.seconds) + END
            command = (timer, "-v", sys.executable, "-I", "-S", "-c", program)
            made = record(
                RecordRequest(command, runs=1, trace="off", quiet=True), Path(folder) / "made", lambda _: None
            ).folder
            run = json.loads((made / "run_1/run.json").read_text())
            told = (made / "run_1/stderr_tail").read_text()
        found = {key: re.search(pattern, told) for key, pattern in TOLD.items()}
        assert all(found.values()), told
        groups = {key: match.groups() for key, match in found.items() if match is not None}
        own = float(groups["own"][0])
        hours, minutes, seconds = groups["wall"]
        recorded = {
            "wall": (run["end_monotonic_ns"] - run["start_monotonic_ns"]) / 1e9,
            "user": run["user_ns"] / 1e9,
            "system": run["system_ns"] / 1e9,
        }
        others = {
            "wall": 3600 * int(hours or 0) + 60 * int(minutes) + float(seconds),
            "user": float(groups["user"][0]),
            "system": float(groups["system"][0]),
        }
        for key, value in recorded.items():
            apart = value - others[key]
            off += abs(apart) > max(0.020, 0.01 * others[key])
            clock = f"{own:>12.4f}" if key == "wall" else f"{'':>12}"
            print(f"{name:<18}{key:<9}{value:>10.4f} s{others[key]:>10.2f} s{clock}{apart * 1e3:>+7.1f} ms")
        mebibytes = run["max_rss_bytes"] / (1 << 20)
        print(f"{name:<18}{'memory':<9}{mebibytes:>8.1f} MiB{int(groups['memory'][0]) / 1024:>8.1f} MiB")
    print(f"beyond 1 % or 20 ms: {off}")
    return int(off > 0)


if __name__ == "__main__":
    sys.exit(main())
