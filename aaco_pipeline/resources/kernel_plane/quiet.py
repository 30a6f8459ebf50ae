"""Probe the machine: a thread on every usable CPU reads the clock in a loop, while Linux kernel events are recorded.

`aaco_pipeline.analysis.delays.interference` combines the probes and the recording.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from aaco_pipeline.errors import UnavailableError
from aaco_pipeline.resources.kernel_plane.recording import KernelPlane

#: Waits until it is being followed, then stores clock readings that are further apart than its loop can explain.
_PROBE: Final = """
import ctypes, json, os, signal, sys, time
ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
os.sched_setaffinity(0, {int(sys.argv[1])})
length, step, now, gaps = float(sys.argv[2]) * 1e9, int(sys.argv[3]), time.monotonic_ns, []
sys.stdin.readline()
start = last = now()
while last - start < length:
    at = now()
    if at - last > step and len(gaps) < 1_000_000:
        gaps.append((last, at))
    last = at
print(json.dumps({"start_ns": start, "end_ns": last, "gaps": gaps}))
"""
_STEP_NS: Final = 5_000
_STATISTICS: Final = Path("/proc/stat")
_PATIENCE_SECONDS: Final = 60.0


@dataclass(frozen=True)
class Probed:
    """Readings of each CPU's probe, the recording's document, and the number of runnable threads (None if unknown)."""

    probes: dict[int, dict[str, Any]]
    document: dict[str, Any]
    runnable: tuple[int, ...] | None


def probe_machine(folder: Path, seconds: float, tick: Callable[[float], None]) -> Probed:
    """Probe every CPU in this process's affinity for this long; `folder` receives the recording of the kernel.

    `tick` is called with the elapsed seconds. Raises UnavailableError if a probe does not answer.
    """
    cpus, probes = sorted(os.sched_getaffinity(0)), dict[int, dict[str, Any]]()
    runnable: list[int | None] = []
    # Without interrupt events, every timer tick would be an unexplained gap.
    with KernelPlane(folder, tools=()) as plane, ExitStack() as started:
        running = {}
        for cpu in cpus:
            command = [sys.executable, "-I", "-S", "-c", _PROBE, str(cpu), str(seconds), str(_STEP_NS)]
            # This process handles Ctrl-C and then ends the probes.
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0
            )
            started.enter_context(process)
            started.callback(process.kill)
            running[cpu] = process
            plane.follow(process.pid, f"cpu{cpu}")
        for process in running.values():
            assert process.stdin is not None
            with suppress(BrokenPipeError):  # it has died; this is detected below when its answer is read
                process.stdin.write("\n")
                process.stdin.flush()
            with suppress(BrokenPipeError):
                process.stdin.close()
            process.stdin = None
        passed = 0.0
        while passed < seconds:
            try:
                running[cpus[0]].wait(min(1.0, seconds - passed))
            except subprocess.TimeoutExpired:
                passed += 1.0
                runnable.append(_runnable())
                tick(min(passed, seconds))
            else:
                break
        for cpu, process in running.items():
            try:
                output, _ = process.communicate(timeout=_PATIENCE_SECONDS)
                probes[cpu] = json.loads(output)
            except (subprocess.TimeoutExpired, ValueError) as error:
                raise UnavailableError(f"the probe on CPU {cpu} gave no answer; try again") from error
    known = tuple(count for count in runnable if count is not None)
    return Probed(probes, plane.document(), known if len(known) == len(runnable) else None)


def _runnable() -> int | None:
    """Return the number of threads now running or runnable: `procs_running`, which a load average only approximates."""
    with suppress(OSError, ValueError, IndexError):
        for line in _STATISTICS.read_text().splitlines():
            if line.startswith("procs_running"):
                return int(line.split()[1])
    return None
