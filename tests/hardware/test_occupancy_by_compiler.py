"""Occupancy against what an AMDGPU compiler says of the same kernels; skipped where no such compiler is installed.

The compiler's figure is the fewest wavefronts a SIMD that registers, LDS and work-group size admit, each by itself. It
does not ask that whole work-groups fit into the registers; so the kernels bound by registers have small work-groups,
where both agree, and one with large work-groups shows the difference. Nor does it round scalar registers up to the
step of 16 they are given out in: 81 to 88 and 97 to 100 of them read one wavefront more than the file has room for.
"""

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Final

import polars as pl
import pytest

from aaco_pipeline.hardware.architecture_files import architecture
from aaco_pipeline.hardware.occupancy import INPUTS, occupancy

COMPILERS: Final = (
    *("amdclang++", "/opt/rocm/llvm/bin/clang++"),
    *(f"clang++-{version}" for version in range(24, 16, -1)),
    "clang++",
)
#: Vector, accumulation and scalar registers a kernel is made to use (0 for none), LDS in bytes, work-items.
SHAPES: Final = (
    (24, 0, 0, 0, 64),
    (64, 0, 0, 0, 64),
    (65, 0, 0, 0, 64),
    (97, 0, 0, 0, 64),
    (128, 0, 0, 0, 64),
    (169, 0, 0, 0, 64),
    (256, 0, 0, 0, 64),
    (0, 0, 70, 0, 64),
    (0, 0, 90, 0, 64),
    (0, 0, 100, 0, 64),
    (0, 0, 0, 16384, 256),
    (0, 0, 0, 20480, 256),
    (0, 0, 0, 32768, 512),
    (0, 0, 0, 65536, 1024),
    (96, 0, 0, 16384, 256),
)
WITH_ACCUMULATION: Final = ((32, 32, 0, 0, 64), (33, 32, 0, 0, 64), (96, 40, 0, 0, 64), (100, 128, 0, 0, 64))
REMARK: Final = re.compile(r"remark: +([A-Za-z][^:\n]*): (\w+)")


@cache
def compiler() -> str | None:
    """The first compiler found that has the AMDGPU back end."""
    for name in COMPILERS:
        path = shutil.which(name)
        if path is None:
            continue
        targets = subprocess.run([path, "--print-targets"], capture_output=True, text=True, check=False).stdout
        if "amdgcn" in targets:
            return path
    return None


def source(shapes: tuple[tuple[int, ...], ...]) -> str:
    """HIP without its headers, so that neither ROCm nor its device libraries are needed."""
    kernels = []
    for number, (vector, accumulation, scalar, lds, items) in enumerate(shapes):
        used = zip("vas", (vector, accumulation, scalar), strict=True)
        body = ", ".join(f'"{file}{count - 1}"' for file, count in used if count)
        lines = [f'  asm volatile("" ::: {body});'] if body else []
        if lds:
            lines += [f"  __attribute__((shared)) static volatile char memory[{lds}];", "  memory[0] = 1;"]
        head = f'extern "C" __attribute__((global, amdgpu_flat_work_group_size({items}, {items}))) void k{number}()'
        kernels.append("\n".join([f"{head} {{", *lines, "}"]))
    return "\n".join(kernels)


def remarks(path: Path, arch: str) -> list[dict[str, int]]:
    """The compiler's remarks on each kernel of the file, in order."""
    command = [str(compiler()), "-x", "hip", "--cuda-device-only", "-nogpuinc", "-nogpulib", f"--offload-arch={arch}"]
    command += ["-O3", "-S", "-o", "/dev/null", "-Rpass-analysis=kernel-resource-usage", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode and ("unsupported" in done.stderr or "invalid target ID" in done.stderr):
        pytest.skip(f"{compiler()} does not know {arch}")
    assert done.returncode == 0, done.stderr
    found: list[dict[str, int]] = []
    for key, value in REMARK.findall(done.stderr):
        if key == "Function Name":
            found.append({})
        elif value.isdecimal():
            found[-1][key] = int(value)
    return found


@pytest.mark.parametrize("arch", ["gfx906", "gfx908", "gfx90a", "gfx942", "gfx1100", "gfx1102", "gfx1201"])
def test_the_compiler_agrees(arch: str, tmp_path: Path) -> None:
    if compiler() is None:
        pytest.skip("no compiler with the AMDGPU back end is installed (apt-get install clang-19)")
    known = architecture(arch)
    assert known is not None and known.occupancy is not None
    shapes = SHAPES + (WITH_ACCUMULATION if known.occupancy.accumulation_registers != "none" else ())
    file = tmp_path / "kernels.hip"
    file.write_text(source(shapes))
    said = remarks(file, arch)
    assert len(said) == len(shapes)
    size = known.wavefront_sizes[0]
    stated = [
        (
            *(one["VGPRs"], one.get("AGPRs", 0), one.get("TotalSGPRs", one.get("SGPRs"))),
            *(one["LDS Size [bytes/block]"], shape[4], size, None, None),
        )
        for one, shape in zip(said, shapes, strict=True)
    ]
    ours = occupancy(pl.DataFrame(stated, schema=dict.fromkeys(INPUTS, pl.Int64), orient="row"), known)
    per_simd = (ours.get_column("theoretical_ratio") * known.occupancy.max_waves_per_simd.value).to_list()
    assert per_simd == [one["Occupancy [waves/SIMD]"] for one in said], [
        (shape, one["Occupancy [waves/SIMD]"], mine) for shape, one, mine in zip(shapes, said, per_simd, strict=True)
    ]


def test_whole_work_groups_must_fit_which_the_compiler_does_not_ask(tmp_path: Path) -> None:
    if compiler() is None:
        pytest.skip("no compiler with the AMDGPU back end is installed (apt-get install clang-19)")
    file = tmp_path / "kernels.hip"
    file.write_text(source(((72, 0, 0, 0, 1024),)))
    assert remarks(file, "gfx90a")[0]["Occupancy [waves/SIMD]"] == 7
    known = architecture("gfx90a")
    assert known is not None
    row = (72, 0, 16, 0, 1024, 64, None, None)
    ours = occupancy(pl.DataFrame([row], schema=dict.fromkeys(INPUTS, pl.Int64), orient="row"), known)
    assert ours.item(0, "theoretical_ratio") * 8 == 4, "28 wavefronts have room, of which one work-group is 16"
