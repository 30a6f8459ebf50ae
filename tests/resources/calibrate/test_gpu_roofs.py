"""The measuring program's source, compiled for either vendor's GPUs: what is to be measured is still in the code."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from aaco_pipeline.resources.calibrate import gpu_program
from aaco_pipeline.resources.toolchains.amdgpu.finding import Missing, find_toolchain

FOUND: Final = find_toolchain()
CLANG: Final = None if isinstance(FOUND, Missing) or FOUND.kind == "packages" else FOUND
NVCC: Final = shutil.which("nvcc")
DISASSEMBLER: Final = shutil.which("cuobjdump")
LOADS_OF_A_STEP: Final = 16


@pytest.fixture(scope="module", params=["gfx90a", "gfx942"])
def assembly(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Of each kernel its AMD assembly, by mangled name."""
    if CLANG is None:
        pytest.skip("no compiler for AMD GPUs here: see docs/static_verdict.md")
    made = tmp_path_factory.mktemp("amd") / "roofs.s"
    target = (f"--offload-arch={request.param}", f"--rocm-path={CLANG.rocm}", "-nogpulib", "--cuda-device-only")
    source = ("-x", "hip", "-O3", "-std=c++17", "-S", str(gpu_program.SOURCE), "-o", str(made))
    subprocess.run([*CLANG.compiler, *target, *source], check=True)
    return dict(re.findall(r"^(_Z\w+):(.*?)s_endpgm", made.read_text(), re.MULTILINE | re.DOTALL))


def test_reads_of_l1_are_made_in_every_step(assembly: dict[str, str]) -> None:
    (body,) = (text for name, text in assembly.items() if "first_level" in name)
    loop = body[body.index("Loop Header") :]
    assert loop.count("global_load_dwordx4") == LOADS_OF_A_STEP


@pytest.fixture(scope="module")
def machine_code(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Of each kernel its instructions on sm_90, by mangled name."""
    if NVCC is None or DISASSEMBLER is None:
        pytest.skip("no nvcc and cuobjdump on the path")
    made = tmp_path_factory.mktemp("nvidia") / "roofs.cubin"
    target = ("-x", "cu", "-arch=sm_90", "-cubin", "-I", str(gpu_program.NAMES))
    subprocess.run([NVCC, *target, "-O3", "-std=c++17", str(gpu_program.SOURCE), "-o", str(made)], check=True)
    said = subprocess.run([DISASSEMBLER, "--dump-sass", str(made)], check=True, capture_output=True, text=True).stdout
    return dict(re.findall(r"Function : (\w+)(.*?)\n\s*\.{4,}", said, re.DOTALL))


def test_of_nvidias_reads_none_is_kept_and_halves_go_both_ways(machine_code: dict[str, str]) -> None:
    (reads,) = (text for name, text in machine_code.items() if "first_level" in name)
    back = re.search(r"/\*([0-9a-f]{4})\*/ +@!?P\d BRA 0x([0-9a-f]+)", reads[reads.index("LDG") :])
    assert back is not None
    first_load = re.search(r"/\*([0-9a-f]{4})\*/ +LDG", reads)
    assert first_load is not None
    assert int(back[2], 16) <= int(first_load[1], 16) < int(back[1], 16)
    (halves,) = (text for name, text in machine_code.items() if "multiply_adds" in name and "half2" in name)
    assert halves.count("HFMA2.MMA") * 2 == pytest.approx(len(re.findall(r"HFMA2[. ]", halves)), rel=0.1)


@pytest.mark.nightly
@pytest.mark.skipif(NVCC is None, reason="no nvcc on the path")
def test_nvcc_reads_all_of_it(tmp_path: Path) -> None:
    target = ("-x", "cu", "-arch=sm_90", "-I", str(gpu_program.NAMES))
    built = [str(NVCC), *target, "-O0", "-std=c++17", str(gpu_program.SOURCE), "-o", str(tmp_path / "roofs"), "-ldl"]
    subprocess.run(built, check=True)
