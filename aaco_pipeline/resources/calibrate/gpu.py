"""Measure a GPU's ceilings with a compiled program, in a fresh process that holds the host's measurement slot.

The kernels are in `gpu_roofs.hip`, in this folder. Processors are calibrated by
`aaco_pipeline.resources.calibrate.calibration`.
"""

import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from aaco_pipeline.errors import UnavailableError
from aaco_pipeline.lake.calibrations import Calibration, Ceiling, gpu_of
from aaco_pipeline.resources.calibrate.calibration import Outcome, best_outcomes, failures, reservations, shortfall
from aaco_pipeline.resources.host.facts import host_facts
from aaco_pipeline.resources.measure.measurement_slot import last_line, measurement_slot, run_measured
from aaco_pipeline.resources.progress import report_progress
from aaco_pipeline.resources.toolchains.limited import ending, run_limited

SOURCE: Final = Path(__file__).with_name("gpu_roofs.hip")
#: Maps HIP names to CUDA names, for nvcc.
NAMES: Final = Path(__file__).parents[1] / "targets" / "gpu" / "include"
ROUNDS: Final = 4
_TOOLKIT: Final = "/usr/local/cuda/bin"
_ROCM: Final = "/opt/rocm/bin"
_LIBRARIES: Final = {
    "nvcc": ("libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so.11", "libcublasLt.so"),
    "hipcc": ("libhipblaslt.so.1", "libhipblaslt.so.0", "libhipblaslt.so"),
}


@dataclass(frozen=True)
class GpuCompiler:
    """A compiler that builds the program for this machine's GPU: `nvcc` or `hipcc`."""

    name: str
    program: Path

    def compiling(self, program: Path) -> tuple[str, ...]:
        """Return the command that compiles the source to `program`."""
        if self.name == "nvcc":
            own: tuple[str, ...] = ("-x", "cu", "-arch=native", "-I", str(NAMES))
        else:
            own = ("--offload-arch=native",)
        return (str(self.program), *own, "-O3", "-std=c++17", str(SOURCE), "-o", str(program), "-ldl")

    def measuring(self, program: Path, device: int, seconds: float, result: Path) -> tuple[str, ...]:
        """Return the command that measures for about `seconds` and writes the output that `read_result` reads."""
        return (str(program), str(device), f"{seconds:g}", str(ROUNDS), str(result), *self.libraries())

    def libraries(self) -> tuple[str, ...]:
        """Return the names to try for the vendor's matrix library: first as the loader finds it, then by path."""
        names = _LIBRARIES[self.name]
        roots = dict.fromkeys((self.program.resolve().parents[1], Path(_TOOLKIT).parent, Path(_ROCM).parent))
        wheels = (folder for place in sys.path for folder in Path(place).glob("nvidia/*/lib"))
        folders = (*(root / "lib64" for root in roots), *(root / "lib" for root in roots), *wheels)
        return (*names, *(str(folder / name) for folder in folders for name in names if (folder / name).exists()))


def find_compiler(environment: Mapping[str, str] | None = None) -> GpuCompiler:
    """Return hipcc, or else nvcc, from the path or the ROCm and CUDA install folders. UnavailableError if neither."""
    known = os.environ if environment is None else environment
    path = known.get("PATH", os.defpath)
    for name, place in (("hipcc", _ROCM), ("nvcc", _TOOLKIT)):
        found = shutil.which(name, path=path) or shutil.which(name, path=place)
        if found is not None:
            return GpuCompiler(name, Path(found))
    raise UnavailableError(
        "calibrate: no hipcc and no nvcc to build the measuring program with; install ROCm's HIP SDK or the CUDA "
        "toolkit"
    )


def read_result(text: str) -> tuple[Mapping[str, Any], list[dict[str, Any]]]:
    """Read the program's output: the device and each measurement.

    Raises UnavailableError if the program reports a failure or no device.
    """
    documents = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    failed = next((one["failed"] for one in documents if "failed" in one and "resource" not in one), None)
    if failed is not None:
        raise UnavailableError(f"calibrate: the GPU cannot be measured: {failed}")
    device = next((one["device"] for one in documents if "device" in one), None)
    if device is None:
        raise UnavailableError("calibrate: the measuring program ended before it told its device; try it again")
    return device, [one for one in documents if "resource" in one]


#: Measuring time; compilation and the choice among a library's kernels are extra.
DEFAULT_SECONDS: Final = 20.0
#: Only ends processes that hang, however busy the machine is.
_COMPILE_SECONDS: Final = 3_600.0
_SPARE_SECONDS: Final = 120.0
#: Architectures on which the kernels of `_TO_PROVE` were confirmed: by counters, all bytes of the L1 kernel and 99 % of
#: the L2 kernel were hits, and packed halves reached 98.5 % of the published rate (benchmarks/live/h200_roofs.py).
_PROVEN_ON: Final = frozenset({"sm_90"})
#: Measurements not yet accepted as ceilings on other architectures, by resource and type.
_TO_PROVE: Final[Mapping[tuple[str, str | None], str]] = {
    ("vl1d", None): "its kernel is proven to read from L1 on sm_90 alone",
    ("l2", None): "its kernel is proven to read from L2 on sm_90 alone",
    ("vector_packed", "fp16"): "its kernel is proven to keep all units for halves busy on sm_90 alone",
}


def calibrate_gpu(device: int, seconds: float, log: Callable[[str], None]) -> Calibration:
    """Measure the ceilings of one GPU, by its number in the vendor's runtime, within about `seconds`.

    Waits for the host's measurement slot. Raises UnavailableError if there is no compiler or no such GPU, or nothing
    could be measured.
    """
    compiler = find_compiler()
    with tempfile.TemporaryDirectory(prefix="aaco-calibrate-") as name:
        folder = Path(name)
        program = _built(compiler, folder)
        with measurement_slot(on_wait=log) as slot:
            measured_at = datetime.now(UTC).replace(microsecond=0)
            about, measurements = _measured(compiler, program, device, seconds, slot)
    facts = {(fact["category"], fact["key"]): fact["value"] for fact in host_facts()["facts"]}
    date = measured_at.isoformat().replace("+00:00", "Z")
    return calibration_of(about, measurements, facts.get(("host", "name")), date)


def calibration_of(
    about: Mapping[str, Any], measurements: Sequence[Mapping[str, Any]], host: str | None, date: str
) -> Calibration:
    """Build the calibration from the program's device and measurements; UnavailableError if none succeeded."""
    outcomes = [_outcome(one, about["arch"]) for one in measurements]
    best = best_outcomes(outcomes)
    if not best:
        why = next((one["failed"] for one in outcomes if "failed" in one), "nothing was measured")
        raise UnavailableError(f"calibrate: nothing could be measured on {about['name']}: {why}")
    return Calibration(
        machine=gpu_of(host, about["arch"], about["compute_units"], about["name"]),
        threads=None,
        measured_at=date,
        ceilings=tuple(_ceiling(one, date) for one in best),
        absent=failures(outcomes, best, " "),
        reservations=tuple(reservations(best, {})),
        details={"device": dict(about), "measurements": outcomes},
    )


def _built(compiler: GpuCompiler, folder: Path) -> Path:
    program, log = folder / "gpu_roofs", folder / "compiler"
    status = run_limited(compiler.compiling(program), folder, log=log, limit_seconds=_COMPILE_SECONDS)
    if status is None:
        raise UnavailableError(f"calibrate: {compiler.program} was not done after {_COMPILE_SECONDS:g} s")
    if status:
        raise UnavailableError(
            f"calibrate: {compiler.program} ended with {ending(status)}: {last_line(log)}; check that it compiles for "
            "the GPU of this host"
        )
    return program


def _measured(
    compiler: GpuCompiler, program: Path, device: int, seconds: float, slot: int
) -> tuple[Mapping[str, Any], list[dict[str, Any]]]:
    result, errors = program.with_name("result"), program.with_name("errors")
    status = run_measured(
        compiler.measuring(program, device, seconds, result),
        slot,
        errors,
        time.monotonic() + _SPARE_SECONDS + 2 * seconds,
        progress=lambda done, total: report_progress("GPU kernels", round(done), round(total)),
    )
    if status is None:
        raise UnavailableError("calibrate: the GPU did not end its work; see the kernel's log (`dmesg`)")
    found = read_result(result.read_text()) if result.exists() else None
    if status or found is None:
        raise UnavailableError(f"calibrate: the measuring program ended with {ending(status)}: {last_line(errors)}")
    return found


def _outcome(measurement: Mapping[str, Any], architecture: str) -> Outcome:
    """Convert a measurement to the CPU format: best and median window in its unit, and the best of each round."""
    kept = {name: measurement[name] for name in ("resource", "dtype", "kernel")}
    unproven = None
    if architecture not in _PROVEN_ON:
        unproven = _TO_PROVE.get((measurement["resource"], measurement["dtype"]))
    if "failed" in measurement or unproven is not None:
        return {**kept, "failed": measurement.get("failed", unproven)}
    work = float(measurement["work"])
    rounds = [[1e9 * work / ns for ns in windows] for windows in measurement["rounds"]]
    every = [rate for windows in rounds for rate in windows]
    outcome = {
        "best": max(every),
        "median": statistics.median(every),
        "rounds": [max(windows) for windows in rounds],
        "windows": len(every),
        "variation": statistics.pstdev(every) / statistics.fmean(every),
    }
    return {**kept, "unit": measurement["unit"], "launches": measurement["launches"], "outcome": outcome}


def _ceiling(outcome: Outcome, date: str) -> Ceiling:
    best = outcome["outcome"]
    text = (
        f"{outcome['kernel']}; best of {best['windows']} windows of {outcome['launches']} launches in "
        f"{len(best['rounds'])} rounds, median {100 * shortfall(outcome):.1f} % below, coefficient of variation "
        f"{best['variation']:.3f}; {date}"
    )
    return Ceiling(outcome["resource"], outcome["dtype"], float(best["best"]), outcome["unit"], text)
