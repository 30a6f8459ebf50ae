"""Inputs of a session's passes: the kernel to trace, ranges and clocks of the measured process."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.errors import UnavailableError, UsageError
from aaco_pipeline.providers import CPU_PROVIDER as CPU
from aaco_pipeline.resources.configuration import BackendEntry
from aaco_pipeline.resources.measure import inference_worker
from aaco_pipeline.resources.measure.inference import _job
from aaco_pipeline.resources.measure.models import ModelChoice
from aaco_pipeline.resources.rocprofv3.passes import kernel_to_trace
from tests.resources.rocprofv3.made_up import kernel_csv


def test_the_automatic_kernel_has_most_of_the_critical_path_and_its_middle_execution_is_traced(tmp_path: Path) -> None:
    many = [("many(int)", 400)] * 5
    (tmp_path / "out_1_kernel_trace.csv").write_text(kernel_csv(("once(int)", 1500), *many, ("many_more(int)", 10)))
    assert kernel_to_trace(tmp_path, "auto") == ("many(int)", 3)
    assert kernel_to_trace(tmp_path, "once") == ("once(int)", 1)
    assert kernel_to_trace(tmp_path, "many(int)") == ("many(int)", 3)
    with pytest.raises(UsageError, match=r"2 kernels of this run are named 'many'; give a whole name or 'auto'"):
        kernel_to_trace(tmp_path, "many")
    with pytest.raises(UsageError, match=r"no kernels of this run .* most time: many\(int\), once\(int\)"):
        kernel_to_trace(tmp_path, "other")


def test_without_kernels_there_is_none_to_trace(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="the base pass saw no kernel"):
        kernel_to_trace(tmp_path, "auto")


class Ranges:
    """A library of ranges that notes its calls."""

    _name = "made_by_a_test.so"

    def __init__(self) -> None:
        self.calls: list[bytes | None] = []

    def roctxRangePushA(self, name: bytes) -> None:
        self.calls.append(name)

    def roctxRangePop(self) -> None:
        self.calls.append(None)


def test_each_iteration_is_in_a_range_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Ranges()
    monkeypatch.setattr(inference_worker, "_roctx", lambda: library)
    markers = inference_worker._Markers(wanted=True, total=2)
    for i in range(2):
        markers.begin(i)
        markers.end()
    assert library.calls == [b"iteration 0", None, b"iteration 1", None]
    assert markers.note == {"library": "made_by_a_test.so", "missing": None}


def test_without_the_library_the_pass_says_so_and_unasked_it_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference_worker, "_ROCTX_LIBRARIES", ("libnone_here.so",))
    markers = inference_worker._Markers(wanted=True, total=1)
    markers.begin(0)
    markers.end()
    assert markers.note == {"library": None, "missing": "none of libnone_here.so can be loaded"}
    assert inference_worker._Markers(wanted=False, total=1).note is None


def test_the_boot_clock_is_read_together_with_the_monotonic_one() -> None:
    before = (time.clock_gettime_ns(time.CLOCK_BOOTTIME), time.perf_counter_ns())
    pair = inference_worker._boot_clock_pair()
    after = (time.clock_gettime_ns(time.CLOCK_BOOTTIME), time.perf_counter_ns())
    assert pair is not None
    assert before[0] <= pair["boottime_ns"] <= after[0]
    assert before[1] <= pair["monotonic_ns"] <= after[1]
    assert 0 < pair["uncertainty_ns"] <= after[1] - before[1]


@pytest.mark.parametrize(("parent", "status"), [(os.getppid(), 0), (2**22 + 1, 1)])
def test_below_a_profiler_only_who_asked_must_be_alive(parent: int, status: int, model: Path, tmp_path: Path) -> None:
    """This process stands between the measured one and its parent, as a profiler may; the other number is nobody's."""
    task = _job(
        MeasurementRequest(model=str(model), iterations=1),
        ModelChoice("m", model, "path", "none"),
        BackendEntry(provider=CPU),
    )
    (tmp_path / "job.json").write_text(json.dumps({**task, "pass": "base"}))
    worker = [sys.executable, "-P", inference_worker.__file__, str(tmp_path / "job.json"), str(tmp_path), str(parent)]
    done = subprocess.run([*worker, "nested"], capture_output=True, timeout=60, check=False)
    assert (done.returncode, (tmp_path / "pass.json").exists()) == (status, status == 0)
