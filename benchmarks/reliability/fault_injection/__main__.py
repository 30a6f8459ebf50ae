"""Fail every call by which publishing, the journal, gc and compaction change files, and 300 of a whole ingest.

Each call fails with ENOSPC or EIO, writes half, or is its process's last. The lake must show the state before or after,
and one mend must repair it. Needs a C compiler. `--compare` checks the counted calls with strace.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage
from typing import Final

import duckdb  # noqa: F401
import pyarrow.parquet  # noqa: F401

from aaco_pipeline.lake.store import TraceLake
from benchmarks.reliability.fault_injection import operations
from benchmarks.reliability.fault_injection.library import FOLDER, State, build, environment, has_strace, shared_state
from benchmarks.reliability.fault_injection.operations import OPERATIONS
from benchmarks.reliability.fault_injection.striking import MODES, Bench, adopt_orphans, in_child

# What an operation needs is imported here, once, and in no child.


#: Seconds since 1970: what has just been written is read again, and such calls would come and go.
_LONG_AGO: Final = 1_735_689_600
_VERDICTS: Final = ("whole", "mended", "wrong", "not met")


@dataclass
class Account:
    """Counts for one operation: its calls, and the faults injected by mode and verdict."""

    calls: int = 0
    verdicts: Counter[tuple[str, str]] = field(default_factory=Counter)
    seconds: float = 0.0


def strike_all(folder: Path, names: Sequence[str], ingest_calls: int, seed: int) -> int:
    """Strike the calls of these operations, say what is wrong at once, and print the table; 1 when anything was."""
    adopt_orphans()
    state, accounts = shared_state(), dict[str, Account]()
    for name in names:
        accounts[name] = account = Account()
        before = _cpu_seconds()
        for step, bench in enumerate(_benches(name, folder, state), 1):
            account.calls += len(bench.calls)
            every = [(number, mode) for mode in MODES for number in bench.numbers(mode)]
            if name == "ingest":
                every = random.Random(seed).sample(every, min(ingest_calls, len(every)))
            for number, mode in every:
                mend_first = (number + [*MODES].index(mode)) % 2 == 0
                judged = bench.strike(number, mode, mend_first=mend_first)
                account.verdicts[mode, judged.verdict] += 1
                order = "mended first" if mend_first else "done again first"
                for wrong in judged.wrong:
                    told = f"{name}, step {step}, {mode} at call {number} ({judged.met}), {order}, {judged.ended}"
                    print(f"WRONG: {told}: {wrong}", file=sys.stderr, flush=True)
        account.seconds = _cpu_seconds() - before
        _print(name, account)
    return int(
        any(count for one in accounts.values() for (_, verdict), count in one.verdicts.items() if verdict == "wrong")
    )


def compare_all(folder: Path, names: Sequence[str]) -> int:
    """Print of each step how many calls the library and strace count; 1 when they differ."""
    adopt_orphans()
    state, differ = shared_state(), 0
    for name in names if has_strace() else ():
        for step, bench in enumerate(_benches(name, folder, state), 1):
            counted, seen = bench.compared(folder / "log")
            differ += counted != seen
            told = ", ".join(f"{kind} {counted[kind]}/{seen[kind]}" for kind in sorted({*counted, *seen}))
            print(f"{name}, step {step}: library {counted.total()}, strace {seen.total()} ({told})", flush=True)
    return int(differ > 0)


def _benches(name: str, folder: Path, state: State) -> Iterator[Bench]:
    """One bench for each step, which begins from the lake that the steps before it left."""
    operation = operations.operation(folder / "captures") if name == "ingest" else OPERATIONS[name]
    place, template = folder / "place", folder / "template"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(mode=0o700)
    in_child(lambda: operation.prepare(TraceLake(place / "lake")))
    for step in operation.steps:
        shutil.rmtree(template, ignore_errors=True)
        place.rename(template)
        for path in template.rglob("*"):
            os.utime(path, (_LONG_AGO, _LONG_AGO), follow_symlinks=False)
        bench = Bench(operation, step, place, template, state)
        yield bench
        bench.undisturbed()


def _cpu_seconds() -> float:
    used = (getrusage(RUSAGE_SELF), getrusage(RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def _print(name: str, account: Account) -> None:
    struck = account.verdicts.total()
    print(f"{name}: {account.calls} calls, {struck} struck, {account.seconds:.0f} s CPU")
    for mode in MODES:
        told = ", ".join(f"{account.verdicts[mode, verdict]} {verdict}" for verdict in _VERDICTS)
        print(f"  {mode:<7} {told}", flush=True)


NAMES: Final = ("publish", "journal", "gc", "compaction", "ingest")
_MEMORY: Final = Path("/dev/shm")
_MODULE: Final = "benchmarks.reliability.fault_injection"


def main(arguments: Sequence[str] | None = None) -> int:
    """Strike calls and print what came of them; 1 when a promise was broken."""
    given = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(prog=f"python -m {_MODULE}", description=main.__doc__)
    parser.add_argument("--operation", action="append", choices=NAMES, help="only this one; may be repeated")
    parser.add_argument("--ingest-calls", type=int, default=300, help="how many calls of an ingest are struck")
    parser.add_argument("--seed", type=int, default=1, help="which calls of an ingest are struck")
    parser.add_argument("--compare", action="store_true", help="only compare the counts with those of strace")
    options = parser.parse_args(given)
    chosen = options.operation or NAMES
    if FOLDER in os.environ:
        folder = Path(os.environ[FOLDER])
        if options.compare:
            return compare_all(folder, chosen)
        return strike_all(folder, chosen, options.ingest_calls, options.seed)
    with tempfile.TemporaryDirectory(prefix="aaco-faults-", dir=_MEMORY if _MEMORY.is_dir() else None) as name:
        folder = Path(name).resolve()
        library = build(folder)
        if library is None:
            print("skipped: there is no C compiler (cc) to make the library with")
            return 0
        command = [sys.executable, "-m", _MODULE, *given]
        return subprocess.run(command, env=environment(library, folder), check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
