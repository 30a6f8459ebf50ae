"""Measuring a GPU's roofs: building, running and reading the program, with a stand-in for compiler and GPU.

The measuring program's source, compiled for either vendor's GPUs: what is to be measured is still in the code.
"""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest

from aaco_pipeline.errors import UnavailableError
from aaco_pipeline.lake.calibrations import Calibration, gpu_ceilings_for, write_calibration
from aaco_pipeline.resources.calibrate import gpu
from aaco_pipeline.resources.toolchains.amdgpu.finding import Missing, find_toolchain

DEVICE: Final = {
    "name": "NVIDIA H200",
    "compute_units": 132,
    "memory_bytes": 1 << 37,
    "l2_bytes": 62914560,
    "arch": "sm_90",
}
COPY: Final[dict[str, Any]] = {
    "resource": "dram",
    "dtype": None,
    "kernel": "copy",
    "work": 4e9,
    "unit": "byte/s",
    "launches": 2,
    "rounds": [[1e6, 2e6], [1e6, 1.25e6]],
}
NO_LIBRARY: Final = {
    "resource": "matrix",
    "dtype": "fp8",
    "kernel": "cublasLt",
    "failed": "no cublasLt could be loaded",
}


def compiler(folder: Path, monkeypatch: pytest.MonkeyPatch, *documents: object, status: int = 0) -> None:
    """An nvcc on the path whose programs write these documents and end so."""
    result = folder / "said.jsonl"
    result.write_text("".join(json.dumps(document) + "\n" for document in documents))
    made = folder / "made"
    made.write_text(f"#!/bin/sh\ncat {result} > $4\nexit {status}\n")
    made.chmod(0o755)
    nvcc = folder / "nvcc"
    nvcc.write_text(f'#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\ncp {made} $2\n')
    nvcc.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(gpu, "_ROCM", str(folder / "absent"))


@pytest.mark.parametrize(
    ("architecture", "proven"), [("sm_90", True), ("sm_80", False), ("gfx942:sramecc+:xnack-", False)]
)
def test_a_cache_has_a_roof_only_where_its_kernel_is_proven_to_read_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, architecture: str, proven: bool
) -> None:
    caches = [{**COPY, "resource": resource} for resource in ("vl1d", "l2")]
    compiler(tmp_path, monkeypatch, {"device": {**DEVICE, "arch": architecture}}, COPY, *caches)
    made = gpu.calibrate_gpu(0, 1.0, print)
    assert [one.resource for one in made.ceilings] == (["dram", "vl1d", "l2"] if proven else ["dram"])
    told = {
        "vl1d": "its kernel is proven to read from L1 on sm_90 alone",
        "l2": "its kernel is proven to read from L2 on sm_90 alone",
    }
    assert made.absent == ({} if proven else told)


def test_the_best_window_is_the_ceiling_of_that_gpu_and_what_failed_has_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler(tmp_path, monkeypatch, {"device": DEVICE}, COPY, {**COPY, "kernel": "triad", "work": 3e9}, NO_LIBRARY)
    made = gpu.calibrate_gpu(0, 1.0, print)
    (ceiling,) = made.ceilings
    assert (ceiling.resource, ceiling.value, ceiling.unit) == ("dram", 4e12, "byte/s")
    assert ceiling.reference.startswith("copy; best of 4 windows of 2 launches in 2 rounds, median 10.0 % below")
    assert made.absent == {"matrix fp8": "no cublasLt could be loaded"}
    assert made.threads is None
    assert made.file_name.endswith("-gpu.json")
    assert Calibration.from_bytes(made.to_bytes(), "here") == made


def test_a_session_on_that_gpu_of_that_host_gets_them_and_another_the_reason(tmp_path: Path) -> None:
    write_calibration(tmp_path, gpu.calibration_of(DEVICE, [COPY], "node", "2026-11-23T00:00:00Z"))
    environment = pl.DataFrame({"category": ["host"], "key": ["name"], "value": ["node"]})
    kinds = {"device_id": [3, 4], "handle": ["0", "1"], "arch": ["sm_90", "sm_90"], "compute_units": [132, 114]}
    devices = pl.DataFrame({**kinds, "product": ["NVIDIA H200", "NVIDIA H100 PCIe"]})
    found = gpu_ceilings_for(tmp_path, environment, devices)
    assert found[3].frame is not None
    assert found[3].frame.select("device_id", "resource", "source", "value").rows() == [(3, "dram", "measured", 4e12)]
    assert found[4].frame is None
    assert "aaco calibrate --device" in str(found[4].reason)


@pytest.mark.parametrize(
    ("documents", "status", "told"),
    [
        ([{"failed": "there is no device 7, only 1 of them"}], 1, "there is no device 7, only 1 of them"),
        ([], 3, "ended before it told its device"),
        ([{"device": DEVICE}, NO_LIBRARY], 0, "nothing could be measured on NVIDIA H200: no cublasLt could be loaded"),
    ],
)
def test_what_cannot_be_measured_is_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, documents: list[object], status: int, told: str
) -> None:
    compiler(tmp_path, monkeypatch, *documents, status=status)
    with pytest.raises(UnavailableError, match=told):
        gpu.calibrate_gpu(7, 1.0, print)


def test_without_a_compiler_the_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_ROCM", str(tmp_path))
    monkeypatch.setattr(gpu, "_TOOLKIT", str(tmp_path))
    with pytest.raises(UnavailableError, match="install ROCm's HIP SDK or the CUDA toolkit"):
        gpu.find_compiler({"PATH": str(tmp_path)})


FOUND: Final = find_toolchain()
CLANG: Final = None if isinstance(FOUND, Missing) or FOUND.kind == "packages" else FOUND
NVCC: Final = shutil.which("nvcc")
DISASSEMBLER: Final = shutil.which("cuobjdump")
LOADS_OF_A_STEP: Final = 16


@pytest.fixture(scope="module", params=["gfx90a", "gfx942"])
def assembly(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Each kernel's AMD assembly, by mangled name."""
    if CLANG is None:
        pytest.skip("no compiler for AMD GPUs here: see docs/static_verdict.md")
    made = tmp_path_factory.mktemp("amd") / "roofs.s"
    target = (f"--offload-arch={request.param}", f"--rocm-path={CLANG.rocm}", "-nogpulib", "--cuda-device-only")
    source = ("-x", "hip", "-O3", "-std=c++17", "-S", str(gpu.SOURCE), "-o", str(made))
    subprocess.run([*CLANG.compiler, *target, *source], check=True)
    return dict(re.findall(r"^(_Z\w+):(.*?)s_endpgm", made.read_text(), re.MULTILINE | re.DOTALL))


def test_reads_of_l1_are_made_in_every_step(assembly: dict[str, str]) -> None:
    (body,) = (text for name, text in assembly.items() if "first_level" in name)
    loop = body[body.index("Loop Header") :]
    assert loop.count("global_load_dwordx4") == LOADS_OF_A_STEP


@pytest.fixture(scope="module")
def machine_code(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Each kernel's instructions on sm_90, by mangled name."""
    if NVCC is None or DISASSEMBLER is None:
        pytest.skip("no nvcc and cuobjdump on the path")
    made = tmp_path_factory.mktemp("nvidia") / "roofs.cubin"
    target = ("-x", "cu", "-arch=sm_90", "-cubin", "-I", str(gpu.NAMES))
    subprocess.run([NVCC, *target, "-O3", "-std=c++17", str(gpu.SOURCE), "-o", str(made)], check=True)
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
    target = ("-x", "cu", "-arch=sm_90", "-I", str(gpu.NAMES))
    built = [str(NVCC), *target, "-O0", "-std=c++17", str(gpu.SOURCE), "-o", str(tmp_path / "roofs"), "-ldl"]
    subprocess.run(built, check=True)
