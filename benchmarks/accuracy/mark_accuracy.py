"""Compare marks with the program's own clock readings over 20,000 iterations, in Python and C, and time a mark."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import numpy as np

from aaco_pipeline.formats.capture_tables import Limits
from aaco_pipeline.formats.program.marks import ITERATION, read_marks
from benchmarks.common import ROOT

COUNT: Final = 20_000
HELPERS: Final = ROOT / "aaco_pipeline" / "recording"
PYTHON: Final = f"""
import json, sys, time
sys.path.insert(0, {str(HELPERS)!r})
from mark import iteration
own = []
for _ in range({COUNT}):
    before = time.monotonic_ns()
    iteration.begin()
    iteration.end()
    own.append(time.monotonic_ns() - before)
print(json.dumps(own))
"""
C: Final = f"""
#include <aaco_mark.h>
static int64_t own[{COUNT}];
int main(void)
{{
    for (int i = 0; i < {COUNT}; i++) {{
        int64_t before = aaco_mark_clock_(CLOCK_MONOTONIC);
        aaco_iteration_begin();
        aaco_iteration_end();
        own[i] = aaco_mark_clock_(CLOCK_MONOTONIC) - before;
    }}
    printf("[%lld", (long long)own[0]);
    for (int i = 1; i < {COUNT}; i++) printf(",%lld", (long long)own[i]);
    puts("]");
    return 0;
}}
"""


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "program.c").write_text(C)
        program = folder / "program"
        subprocess.run(["cc", "-O2", f"-I{HELPERS}", str(folder / "program.c"), "-o", str(program)], check=True)
        for language, command in (("Python", [sys.executable, "-c", PYTHON]), ("C", [str(program)])):
            kept = folder / language
            kept.mkdir()
            marked = _own(command, {"AACO_MARKS": str(kept)})
            (file,) = kept.iterdir()
            ranges = read_marks(file, Limits()).ranges.filter(kind=ITERATION)
            apart = marked - (ranges["end"] - ranges["start"]).to_numpy()
            plain = _own(command, {})
            print(
                f"{language}: own reading less mark p50 {_us(apart, 50)}, p99 {_us(apart, 99)}; a pair of marks costs "
                f"p50 {_us(marked, 50)}, p99 {_us(marked, 99)}, without AACO_MARKS p50 {_us(plain, 50)}"
            )


def _own(command: list[str], more: dict[str, str]) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    environment = {key: value for key, value in os.environ.items() if key != "AACO_MARKS"} | more
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    return np.array(json.loads(said), np.int64)


def _us(values: "np.ndarray[tuple[int], np.dtype[np.int64]]", percentile: int) -> str:
    return f"{np.percentile(values, percentile) / 1e3:.2f} µs"


if __name__ == "__main__":
    main()
