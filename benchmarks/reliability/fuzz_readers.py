"""Feed damaged captures to every reader; each must give valid tables or the one documented error.

No other exception, hang or crash, at most `--cpu` seconds and `--memory` MiB. `--only READER --reproduce NUMBER`
repeats one input; `--results FILE` is resumed. Exits with 1 when there is any finding.
"""

import argparse
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any, Final, TextIO

from benchmarks.common import ROOT, rows_of, with_package

#: Every so many inputs, what was read is also put together as a run's parts are.
_MERGED_EVERY: Final = 4
#: Wall time on one input after which its process is ended: a wait that uses no CPU.
_HANGS_SECONDS: Final = 120.0
_MIB: Final = 1 << 20
#: Parts of a finding that belong to its input: texts and numbers, except the line of the source.
_KIND: Final = re.compile(r"'[^']*'?|\"[^\"]*\"?|\[.*|(?<![:\d])\b\d+")


def worker(reader: str, first: int, stop: int, cpu: float, memory: int) -> None:
    """Read the inputs from `first` to before `stop`; a line on standard output for each finding, and one at the end.

    The number of the input at work is printed before it is read only where it may kill the process: it is kept in the
    file `current` of the working folder.
    """
    from benchmarks.reliability.fuzz_seeds import TARGETS, outcome

    _bounded(memory)
    target = TARGETS[reader]
    pool = _Pool(target.seeds())
    counts: Counter[str] = Counter()
    slowest = (0.0, first)
    folder = Path.cwd() / "input"
    with Path("current").open("wb", buffering=0) as current:
        for number in range(first, stop):
            current.seek(0)
            current.write(f"{number:>20}".encode())
            pool.write(folder, reader, number)
            before = time.process_time()
            what = None
            try:
                counts[outcome(target, folder, merge=number % _MERGED_EVERY == 0)] += 1
            except BaseException as error:  # noqa: BLE001  (whatever it is, it is the finding)
                what = f"{type(error).__name__}: {_place(error)}: {' '.join(str(error).split())[:200]}"
            taken = time.process_time() - before
            slowest = max(slowest, (taken, number))
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            if taken > cpu:
                what = what or f"took {taken:.1f} s of CPU"
            if peak > memory:
                what = what or f"grew the process to {peak} MiB"
            if what is not None:
                counts["finding"] += 1
                print(json.dumps({"reader": reader, "number": number, "finding": what}), flush=True)
            if peak > memory:
                stop = number + 1
                break
    done = {"reader": reader, "from": first, "to": stop, "counts": counts, "slowest": slowest, "peak_mib": peak}
    print(json.dumps(done), flush=True)


class _Pool:
    """The examples of a reader, and inputs made of them."""

    def __init__(self, seeds: list[Any]) -> None:
        from benchmarks.reliability.fuzz_mutations import unpacked, words

        self.seeds = seeds
        self.contents = [unpacked(content) for files in seeds for content in files.values()]
        self.words = words(self.contents)

    def write(self, folder: Path, reader: str, number: int) -> None:
        """Put the input of that number into the folder, in place of what it holds."""
        from benchmarks.reliability.fuzz_mutations import damaged

        chance = random.Random(f"{reader}:{number}")
        files = damaged(chance.choice(self.seeds), self.contents, self.words, chance)
        shutil.rmtree(folder, ignore_errors=True)
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def _bounded(memory: int) -> None:
    """Make an attempt to take much more memory than allowed fail, instead of the machine."""
    limit = (memory + 1024) * _MIB
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _place(error: BaseException) -> str:
    """The innermost line of this project's own code."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "aaco_pipeline" in frame.filename]
    return f"{Path(frames[-1].filename).relative_to(ROOT)}:{frames[-1].lineno}" if frames else "elsewhere"


def batch(reader: str, first: int, stop: int, bounds: tuple[float, int], results: TextIO) -> tuple[int, int]:
    """Run one child over inputs and keep its lines; where to go on, and the number of findings."""
    found = 0
    with tempfile.TemporaryDirectory(dir=_fast_folder(), prefix="aaco_fuzz_") as name:
        command = [sys.executable, "-m", "benchmarks.reliability.fuzz_readers", "--worker", f"{reader}:{first}:{stop}"]
        command += ["--cpu", str(bounds[0]), "--memory", str(bounds[1])]
        environment = with_package(POLARS_MAX_THREADS="1", TMPDIR=name)
        errors = Path(name) / "stderr"
        with errors.open("wb") as told:
            child = subprocess.Popen(command, cwd=name, env=environment, stdout=subprocess.PIPE, stderr=told, text=True)
            hung = _watched(child, Path(name) / "current")
        assert child.stdout is not None
        with child.stdout:
            lines = [json.loads(line) for line in child.stdout.read().splitlines()]
        for line in lines:
            results.write(json.dumps(line) + "\n")
            found += "finding" in line
        last = next((line for line in lines if "counts" in line), None)
        if last is None:
            at = int((Path(name) / "current").read_text()) if (Path(name) / "current").exists() else first
            end = f"signal {signal.Signals(-child.returncode).name}" if child.returncode < 0 else child.returncode
            said = " ".join(errors.read_text(errors="replace").split())[-300:]
            what = f"no end within {_HANGS_SECONDS:.0f} s" if hung else f"ended the process: {end}: {said}"
            results.write(json.dumps({"reader": reader, "number": at, "finding": what}) + "\n")
            last = {"reader": reader, "from": first, "to": at + 1, "counts": {"finding": 1 + found}}
            results.write(json.dumps(last) + "\n")
            found += 1
        results.flush()
        return int(last["to"]), found


def _watched(child: "subprocess.Popen[str]", current: Path) -> bool:
    """Wait for a child; whether it had to be ended because it stayed on one input."""
    seen, since = "", time.monotonic()
    while True:
        try:
            child.wait(timeout=1.0)
            return False
        except subprocess.TimeoutExpired:
            now = current.read_text() if current.exists() else ""
            if now != seen:
                seen, since = now, time.monotonic()
            elif time.monotonic() - since > _HANGS_SECONDS:
                child.kill()
                child.wait()
                return True


def _fast_folder() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def reproduce(reader: str, number: int) -> int:
    """Write one input beside the working folder and read it in this process, with the whole traceback."""
    from benchmarks.reliability.fuzz_seeds import TARGETS, outcome

    target = TARGETS[reader]
    folder = Path(tempfile.mkdtemp(prefix=f"aaco_fuzz_{reader}_{number}_")) / "input"
    _Pool(target.seeds()).write(folder, reader, number)
    print(f"{reader} {number}: {folder}", flush=True)
    print(outcome(target, folder, merge=number % _MERGED_EVERY == 0))
    return 0


def summary(path: Path) -> int:
    """Print what the results hold, reader by reader; the number of findings."""
    counts: dict[str, Counter[str]] = {}
    slowest: dict[str, float] = {}
    peak: dict[str, int] = {}
    kinds: dict[tuple[str, str], list[int]] = {}
    for line in rows_of(path):
        reader = line["reader"]
        if "counts" in line:
            counts.setdefault(reader, Counter()).update(line["counts"])
            slowest[reader] = max(slowest.get(reader, 0.0), line.get("slowest", (0.0,))[0])
            peak[reader] = max(peak.get(reader, 0), line.get("peak_mib", 0))
        else:
            kinds.setdefault((reader, _KIND.sub("…", line["finding"])[:110]), []).append(line["number"])
    print(f"{'reader':<16}{'inputs':>9}{'read':>9}{'refused':>9}{'findings':>10}{'slowest s':>11}{'peak MiB':>10}")
    for reader, count in sorted(counts.items()):
        row = f"{count.total():9,}{count['read']:9,}{count['refused']:9,}{count['finding']:10,}"
        print(f"{reader:<16}{row}{slowest[reader]:11.2f}{peak[reader]:10,}")
    for (reader, what), numbers in sorted(kinds.items()):
        print(f"{reader} {what}: {len(numbers)} inputs, such as --only {reader} --reproduce {numbers[0]}")
    return sum(count["finding"] for count in counts.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=20_000, help="inputs of each reader (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="number of the first input (default: %(default)s)")
    parser.add_argument("--only", action="append", metavar="READER", help="only this reader; may be repeated")
    parser.add_argument("--results", type=Path, help="file of JSON lines that results are added to, and resumed from")
    parser.add_argument("--batch", type=int, default=2_500, help="inputs of one process (default: %(default)s)")
    parser.add_argument("--cpu", type=float, default=5.0, help="most CPU seconds of one input (default: %(default)s)")
    parser.add_argument("--memory", type=int, default=1024, help="most MiB of the process (default: %(default)s)")
    parser.add_argument("--reproduce", type=int, metavar="NUMBER", help="read this one input, with its traceback")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        reader, first, stop = arguments.worker.split(":")
        worker(reader, int(first), int(stop), arguments.cpu, arguments.memory)
        return 0
    if arguments.reproduce is not None:
        return reproduce(arguments.only[0], arguments.reproduce)
    from benchmarks.reliability.fuzz_seeds import TARGETS

    results = arguments.results or Path(tempfile.mkdtemp()) / "fuzz.jsonl"
    lines = rows_of(results)
    bounds = (arguments.cpu, arguments.memory)
    stop = arguments.first + arguments.inputs
    done = {reader: [line["to"] for line in lines if line["reader"] == reader and "to" in line] for reader in TARGETS}
    left = {reader: max(done[reader], default=arguments.first) for reader in arguments.only or TARGETS}
    with results.open("a") as kept:
        while left := {reader: at for reader, at in left.items() if at < stop}:
            for reader, at in left.items():  # in turns: a run that is ended early has looked at all of them
                reached, found = batch(reader, at, min(at + arguments.batch, stop), bounds, kept)
                left[reader] = reached
                print(f"{reader}: {reached:,} inputs, {found} findings in the last batch", flush=True)
    return 1 if summary(results) else 0


if __name__ == "__main__":
    sys.exit(main())
