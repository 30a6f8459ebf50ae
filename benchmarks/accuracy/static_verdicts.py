"""Compare the static verdict with the compiler's remarks for every sample kernel, loop and unroll factor.

Compiles for gfx90a and gfx942. Exits with 1 when a figure differs, or when the stencil unrolled by 2 is not refused for
its lost occupancy.
"""

import argparse
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from aaco_pipeline import optimization
from aaco_pipeline.optimization.candidates import Refused
from aaco_pipeline.optimization.guards.resources import (
    CompiledKernel,
    Permission,
    check_loops,
    check_resources,
    waves_per_simd,
)
from aaco_pipeline.optimization.targets import Launch
from aaco_pipeline.resources.toolchains.amdgpu.compiling import StaticBuild, compile_kernel, compiler_version
from aaco_pipeline.resources.toolchains.amdgpu.finding import ARCHITECTURES, Missing, find_toolchain

SAMPLES: Final = Path(optimization.__file__).parent / "samples"
FACTORS: Final = (2, 4, 8)
LAUNCH: Final = Launch((1, 1, 1), (256, 1, 1))
_KERNEL: Final = re.compile(rb"__global__\s+void\s+(\w+)")
_LOOP: Final = re.compile(rb"^([ \t]*)for \(", re.MULTILINE)


def versions(source: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Line of the loop, factor and source: as it is (0, 1), then each loop with each factor."""
    yield 0, 1, source
    for match in _LOOP.finditer(source):
        line = source.count(b"\n", 0, match.start()) + 1
        for factor in FACTORS:
            pragma = match[1] + f"#pragma unroll {factor}\n".encode()
            yield line, factor, source[: match.start()] + pragma + source[match.start() :]


def ruling(before: StaticBuild, after: StaticBuild, line: int, factor: int) -> str:
    """Verdict of the guards on a candidate against the source as it is; empty when they let it pass."""
    first, second = (CompiledKernel(one.resources, one.remarks.unrolled, one.remarks.failed) for one in (before, after))
    try:
        check_resources(before.resources, after.resources, (LAUNCH, LAUNCH), Permission())
        check_loops(first, second, (line, factor))
    except Refused as refused:
        return str(refused)
    return ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile all, print a row for each, and 1 when a figure is not the compiler's."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--samples", type=Path, default=SAMPLES, help="a folder of .hip files with one kernel each")
    options = parser.parse_args(arguments)
    toolchain = find_toolchain()
    if isinstance(toolchain, Missing):
        print(f"{toolchain.reason}; {toolchain.fix}", file=sys.stderr)
        return 1
    print(compiler_version(toolchain))
    row = "{:<12} {:<7} {:>4} {:>6} {:>5} {:>5} {:>5} {:>6} {:>6} {:>7} {:>5} {:>6}  {}".format
    print(
        row(
            "kernel", "arch", "line", "unroll", "VGPR", "AGPR", "SGPR", "spills", "LDS", "scratch", "waves", "bytes", ""
        )
    )
    told: Counter[str] = Counter()
    lost = []
    with tempfile.TemporaryDirectory() as name:
        for path in sorted(options.samples.glob("*.hip")):
            source = path.read_bytes()
            kernel = _KERNEL.findall(source)[0].decode()
            for architecture in ARCHITECTURES:
                before: StaticBuild | None = None
                for line, factor, text in versions(source):
                    build = compile_kernel(toolchain, text, kernel, architecture, Path(name))
                    before = before or build
                    said = "" if before is build else ruling(before, build, line, factor)
                    told["differ" if build.disagreements else "agree"] += 1
                    told[said.partition(":")[0] or "passed"] += before is not build
                    one, waves = build.resources, waves_per_simd(build.resources)
                    if "stencil" in kernel and factor == 2 and "occupancy falls" in said:
                        lost.append(f"{kernel} on {architecture}")
                    spills = one.vgpr_spills + one.sgpr_spills
                    cells = (one.vgprs, one.agprs, one.sgprs, spills, one.lds_bytes, one.scratch_bytes, waves or 0)
                    words = "; ".join((*build.disagreements, said)) if build.disagreements else said
                    print(row(kernel, architecture, line or "", factor, *cells, one.code_bytes, words))
    print(f"\n{told['agree']} of {told['agree'] + told['differ']} compilations: every figure is the compiler's own")
    print(
        f"candidates: {told['passed']} passed, {told['resources']} cost resources, {told['no_effect']} without effect"
    )
    print(f"refused for occupancy lost by unrolling by 2: {', '.join(lost) or 'none'}")
    return 0 if told["agree"] and not told["differ"] and len(lost) == len(ARCHITECTURES) else 1


if __name__ == "__main__":
    sys.exit(main())
