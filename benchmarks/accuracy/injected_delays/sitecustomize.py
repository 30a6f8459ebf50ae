"""Inject the delays of `benchmarks.accuracy.spike_causes` at the start of an iteration, inside the measured process.

`$AACO_INJECTED/plan.json` says what to do at which call; `pid` and `acts.jsonl` there report what was done and when.
"""

import json
import mmap
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any


def _extra_work(amount: float, folder: Path) -> None:
    del folder
    over = time.perf_counter_ns() + int(amount * 1e6)
    value = 1.0
    while time.perf_counter_ns() < over:
        for _ in range(200):
            value = value * 1.0000001 + 1e-9


def _minor_faults(amount: float, folder: Path) -> None:
    del folder
    pages = int(amount * 400)
    with mmap.mmap(-1, pages * mmap.PAGESIZE) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        for place in range(0, pages * mmap.PAGESIZE, mmap.PAGESIZE):
            memory[place] = 1


def _major_faults(amount: float, folder: Path) -> None:
    pages = int(amount * 10) + 1
    with (folder / "pages").open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        memory.madvise(mmap.MADV_RANDOM)
        step = len(memory) // pages // mmap.PAGESIZE * mmap.PAGESIZE
        for place in range(pages):
            memory[place * step]


def _evict(folder: Path) -> None:
    descriptor = os.open(folder / "pages", os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def _fsync(amount: float, folder: Path) -> None:
    descriptor = os.open(folder / "own_file", os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        for place in range(int(amount * 3)):
            os.pwrite(descriptor, bytes(4096), place * 4096)
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


_ACTS = {"own_work": _extra_work, "minor_faults": _minor_faults, "major_faults": _major_faults, "fsync": _fsync}


def _install(folder: Path) -> None:
    plan: dict[str, Any] = json.loads((folder / "plan.json").read_text())
    os.sched_setaffinity(0, plan["cpus"])
    import onnxruntime

    real, acts = onnxruntime.InferenceSession.run_with_iobinding, plan["acts"]
    calls = 0

    def run(self: Any, *arguments: Any, **options: Any) -> Any:
        nonlocal calls
        if not calls:
            (folder / ".pid").write_text(str(os.getpid()))
            (folder / ".pid").rename(folder / "pid")
        act, following = acts.get(str(calls)), acts.get(str(calls + 1))
        calls += 1
        if following is not None and following["kind"] == "major_faults":
            _evict(folder)  # in the iteration before: so that the faults stand apart
        if act is not None:
            before, start = resource.getrusage(resource.RUSAGE_SELF), time.monotonic_ns()
            _ACTS[act["kind"]](act["amount"], folder)
            end, after = time.monotonic_ns(), resource.getrusage(resource.RUSAGE_SELF)
            done = {"call": calls - 1, "start_ns": start, "end_ns": end, **act}
            done |= {"minor": after.ru_minflt - before.ru_minflt, "major": after.ru_majflt - before.ru_majflt}
            with (folder / "acts.jsonl").open("a") as file:
                file.write(f"{json.dumps(done)}\n")
        return real(self, *arguments, **options)

    onnxruntime.InferenceSession.run_with_iobinding = run


if any(one.endswith("inference_worker.py") for one in sys.orig_argv) and "AACO_INJECTED" in os.environ:
    _install(Path(os.environ["AACO_INJECTED"]))
