"""Nsight Compute beside a program: which metrics are asked for, the command of a pass, and what is said without it."""

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from aaco_pipeline.errors import UnavailableError, UsageError
from aaco_pipeline.recording.profilers import ncu

#: Stands in for ncu on a GPU that lacks FP8.
STAND_IN = """#!/bin/sh
case "$1" in
  --version) echo 'NVIDIA (R) Nsight Compute Command Line Profiler'; echo 'Version 2025.3.1.0 (build 1)' ;;
  --query-metrics) for one in {metrics}; do echo "$one   Counter   byte   what it is"; done ;;
esac
"""


def installed(folder: Path, *metrics: str) -> dict[str, str]:
    """An environment whose path has an ncu that names these metrics."""
    program = folder / "ncu"
    program.write_text(STAND_IN.format(metrics=" ".join(metrics)))
    program.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


def test_a_pass_asks_for_the_metrics_of_its_sets_that_the_gpu_has_each_once(tmp_path: Path) -> None:
    environment = installed(tmp_path, "dram__bytes_read", "dram__bytes_write", "sm__warps_active", "sm__cycles_active")
    found = ncu.find(environment)
    assert found.version == "2025.3.1.0"
    assert found.of_sets(["memory"]) == ("dram__bytes_read.sum", "dram__bytes_write.sum")
    both = found.of_sets(["occupancy", "basic"])
    assert sorted(both) == ["sm__cycles_active.sum", "sm__warps_active.sum"]


def test_a_set_that_is_not_known_or_of_which_the_gpu_has_nothing_is_refused(tmp_path: Path) -> None:
    found = ncu.find(installed(tmp_path, "dram__bytes_read"))
    with pytest.raises(UsageError, match="unknown set 'everything'; expected one or several of basic, memory"):
        found.of_sets(["everything"])
    with pytest.raises(UnavailableError, match="none of the metrics of the set compute"):
        found.of_sets(["compute"])


def test_a_pass_changes_neither_clocks_nor_caches_and_follows_every_process(tmp_path: Path) -> None:
    found = ncu.find(installed(tmp_path, "dram__bytes_read"))
    command = found.command(("dram__bytes_read.sum",), tmp_path, ("python", "train.py"))
    assert command[0] == str(tmp_path / "ncu")
    assert command[-2:] == ("python", "train.py")
    options = dict(pairwise(command))
    assert options["--clock-control"] == options["--cache-control"] == "none"
    assert options["--target-processes"] == "all"
    assert options["--metrics"] == "dram__bytes_read.sum"
    assert options["--log-file"] == str(tmp_path / ncu.OUTPUT)


def test_without_ncu_the_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ncu, "_INSTALLED", ())
    with pytest.raises(UnavailableError, match="install NVIDIA Nsight Compute"):
        ncu.find({"PATH": str(tmp_path)})


def test_an_ncu_that_names_no_metrics_is_not_used(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="names no metrics"):
        ncu.find(installed(tmp_path))


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", "NVreg_RestrictProfilingToAdminUsers=0"),
        ("==WARNING== No kernels were profiled.", "the program launched no kernel"),
        ("==PROF== Connected\n==ERROR== Failed to find metric x", "ncu says: Failed to find metric x"),
    ],
)
def test_why_nothing_was_counted_is_one_line_with_the_remedy(said: str, told: str) -> None:
    reason = ncu.why_failed(said)
    assert reason is not None
    assert told in reason
    assert "\n" not in reason


def test_a_pass_that_went_well_has_no_reason() -> None:
    assert ncu.why_failed("==PROF== Connected to process 1\n==PROF== Disconnected\n") is None


def test_it_needs_the_standard_library_alone() -> None:
    code = "import sys, aaco_pipeline.recording.profilers.ncu; print(*{name.partition('.')[0] for name in sys.modules})"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"polars", "numpy", "pydantic", "yaml", "click"} & set(said.split())
