"""The honest improvements of `benchmarks/accuracy/optimizations/honest` are what they say: right, and at least 5 % faster.

Each file is a sample with another kernel: `row_dot.accumulators_4.hip` is `row_dot.hip`. It is held to its sample's
harness by `check`, and timed beside the sample on the cpu target, interleaved, with new contents in each call, in four
layouts; what counts is the least of the four medians of ratios. The loop's own rule and guards have no say here: this
set is what they are tried on.
"""

import random
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import numpy as np

from aaco_pipeline.optimization import samples
from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.correctness.checking import check
from aaco_pipeline.optimization.harness import Harness, load_harness
from aaco_pipeline.optimization.source import parse
from aaco_pipeline.optimization.targets import Layout, Worker
from aaco_pipeline.resources.targets.cpu.target import CpuTarget

HONEST: Final = Path(__file__).parent / "optimizations" / "honest"
SAMPLES: Final = Path(samples.__file__).parent
LEAST_GAIN: Final = 1.05
LEAST_SHARE: Final = 0.9
PAIRS: Final = 15


def main() -> int:
    """Print a row a file; 0 when at least 90 % are right and gain 5 %, as many as the loop is to accept."""
    good = 0
    files = sorted(HONEST.glob("*.hip"))
    print("| improvement | sample ms | improved ms | gain | least of 4 layouts |\n|---|---|---|---|---|")
    for path in files:
        good += judged(path)
    print(f"{good} of {len(files)} are right and at least {LEAST_GAIN - 1:.0%} faster in each layout")
    return 0 if good >= LEAST_SHARE * len(files) else 1


def judged(path: Path) -> bool:
    sample = SAMPLES / f"{path.name.partition('.')[0]}.hip"
    harness = load_harness(sample, None, None)
    rng = np.random.default_rng(random.SystemRandom().getrandbits(64))
    times, gains = [], []
    try:
        with tempfile.TemporaryDirectory() as folder:
            for layout in range(4):
                with ExitStack() as stack:
                    workers = [
                        started(stack, one, harness, Layout(2 * layout + which), Path(folder))
                        for which, one in enumerate((sample, path))
                    ]
                    if layout == 0:
                        seed = random.SystemRandom().getrandbits(64)
                        check(harness, *workers, seed=seed, bit_exact=False, timed_size=harness.timing_size)
                    pairs = timed(harness, workers, rng)
                times.append(pairs)
                gains.append(float(np.median(pairs[:, 0] / pairs[:, 1])))
    except Refused as refused:
        print(f"| {path.stem} | refused: {refused} |")
        return False
    before, after = np.median(np.concatenate(times), axis=0) / 1e6
    print(f"| {path.stem} | {before:.2f} | {after:.2f} | {np.median(gains):.2f} | {min(gains):.2f} |", flush=True)
    return min(gains) >= LEAST_GAIN


def started(stack: ExitStack, source: Path, harness: Harness, layout: Layout, folder: Path) -> Worker:
    text = source.read_bytes()
    target = CpuTarget()
    parameters = parse(text).kernel(harness.kernel).parameters
    return stack.enter_context(target.start(target.build(text, harness.kernel, parameters, layout, folder)))


def timed(
    harness: Harness, workers: list[Worker], rng: np.random.Generator
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """CPU time in ns of sample and improvement, a row a call; the first, a warm-up, is left out."""
    rows = []
    for _ in range(PAIRS + 1):
        call = harness.drawn(harness.timing_size, "normal", rng)
        row = [0, 0]
        for which in rng.permutation(2):
            duration = workers[which].run(call).duration_ns
            assert duration is not None
            row[which] = duration
        rows.append(row)
    return np.array(rows[1:], dtype=np.float64)


if __name__ == "__main__":
    sys.exit(main())
