"""Run the sample kernels on an emulated AMD GPU, as they are and with a loop unrolled by 2, 4 and 8.

Needs AACO_EMULATOR, a checkout of tinygrad. `--flag=-ffp-contract=off` isolates the effect of unrolling. Exits with 1
when a row is wrong or fewer than three samples are emulated.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from aaco_pipeline import optimization
from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.harness.loading import load_harness
from aaco_pipeline.optimization.loop.checking import EmulatedChecker, HarnessChecker
from aaco_pipeline.optimization.loop.means import Version
from aaco_pipeline.optimization.proposers.hints import unrolled
from aaco_pipeline.optimization.source import parse
from aaco_pipeline.resources.targets.emulated.target import EmulatedTarget, emulated_target
from aaco_pipeline.resources.toolchains.amdgpu.finding import NoEmulator

SAMPLES: Final = Path(optimization.__file__).parent / "samples"
FACTORS: Final = (1, 2, 4, 8)
ENOUGH_SAMPLES: Final = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Emulate all, print a row for each, and 1 when one is wrong or too few can be emulated."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--kernel", action="append", help="only this sample; may be given again")
    parser.add_argument("--flag", action="append", default=[], help="a flag of the compiler's, as --flag=-O2")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        target = emulated_target(Path(name), flags=options.flag)
        if isinstance(target, NoEmulator):
            print(f"{target.reason}; to have it: {target.fix}", file=sys.stderr)
            return 1
        print(
            f"{target.executed_on}, {' '.join(target.toolchain.compiler)} {' '.join(target.flags)}".rstrip(), flush=True
        )
        print(_row("kernel", "unroll", "verdict", "calls", "elements", "instructions", ""))
        told = [
            (path.stem, factor, _verdict(path, factor, target, Path(name)))
            for path in sorted(SAMPLES.glob("*.hip"))
            if not options.kernel or path.stem in options.kernel
            for factor in FACTORS
        ]
    through = {kernel for kernel, _, verdict in told if verdict in ("bit_exact", "within_bound")}
    wrong = [f"{kernel} by {factor}" for kernel, factor, verdict in told if verdict == "wrong"]
    exact = sum(verdict == "bit_exact" for _, _, verdict in told)
    changed = sum(factor > 1 for _, factor, _ in told)
    print(f"\n{exact} of {changed} changes bit-exact; {len(through)} samples emulated", end="")
    print(f"; wrong: {', '.join(wrong) or 'none'}")
    return 1 if wrong or len(through) < min(ENOUGH_SAMPLES, len({kernel for kernel, *_ in told})) else 0


def _verdict(path: Path, factor: int, target: EmulatedTarget, folder: Path) -> str:
    """Emulate a sample with its last loop that may be unrolled, print its row, and give the verdict in a word."""
    source, harness = path.read_bytes(), load_harness(path, None, None)
    kernel = parse(source).kernel(harness.kernel)
    baseline = Version(source, harness.kernel, kernel.parameters)
    loop = [one for one in kernel.loops if one.safe][-1]
    changed = source if factor == 1 else unrolled(source, loop, factor)
    version = Version(changed, harness.kernel, kernel.parameters, bit_exact=True)
    checker = EmulatedChecker(HarnessChecker(harness), harness, target, folder)
    try:
        said = checker.verdict(None if factor == 1 else baseline, version, seed=1)
    except Refused as refused:
        print(_row(path.stem, factor, "wrong", "", "", "", str(refused)), flush=True)
        return "wrong"
    if said["verdict"] is None:
        print(_row(path.stem, factor, "none", "", "", "", said["lacking"]), flush=True)
        return "none"
    counts = said["instructions"]["before" if factor == 1 else "after"]
    cells = (said["verdict"], said["calls"], said["elements"], sum(counts.values()))
    print(
        _row(path.stem, factor, *cells, ", ".join(f"{what} {count}" for what, count in counts.items() if count)),
        flush=True,
    )
    return str(said["verdict"])


_row: Final = "{:<12} {:>6}  {:<12} {:>5} {:>8} {:>12}  {}".format


if __name__ == "__main__":
    sys.exit(main())
