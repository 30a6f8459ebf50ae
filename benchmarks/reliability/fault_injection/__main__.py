"""Fail every call by which publishing, the journal, gc and compaction change files, and 300 of a whole ingest.

Each call in turn fails with ENOSPC or EIO, writes half, or is the last of its process (killed before it, or halfway
through a write), on a fresh copy of a small lake. Then the lake shows the state before or after, one `doctor --mend` or
the same step again makes it well, and in the end every file is as if nothing had failed. Needs a C compiler; exits with
1 when a promise was broken. `--compare` instead compares what is counted with what strace sees.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.reliability.fault_injection.library import FOLDER, build, environment

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
        from benchmarks.reliability.fault_injection.rounds import compare_all, strike_all

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
