"""Measuring a GPU's roofs: building, running and reading the program, with a stand-in for compiler and GPU."""

import json
from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest

from aaco_pipeline.errors import UnavailableError
from aaco_pipeline.lake.calibrations import Calibration, gpu_ceilings_for, write_calibration
from aaco_pipeline.resources.calibrate import gpu, gpu_program

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
    monkeypatch.setattr(gpu_program, "_ROCM", str(folder / "absent"))


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
    monkeypatch.setattr(gpu_program, "_ROCM", str(tmp_path))
    monkeypatch.setattr(gpu_program, "_TOOLKIT", str(tmp_path))
    with pytest.raises(UnavailableError, match="install ROCm's HIP SDK or the CUDA toolkit"):
        gpu_program.find_compiler({"PATH": str(tmp_path)})
