"""`aaco calibrate`: what it keeps, what it prints, and what it refuses. Measuring is tested where it is done."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from aaco_pipeline.errors import UnavailableError
from aaco_pipeline.lake.calibrations import FORMAT_VERSION, Calibration, Ceiling, ceilings_for, read_calibration
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.calibrate import calibration
from aaco_pipeline.resources.project import Project
from tests.cli.conftest import Aaco, Refused


def measurement(resource: str, dtype: str | None, unit: str, best: float, **what: Any) -> dict[str, Any]:
    told = {"best": best, "median": 0.9 * best, "rounds": [best, 0.99 * best], "windows": 20, "variation": 0.1}
    return {"resource": resource, "dtype": dtype, "unit": unit, **what, "outcome": told}


MEASUREMENTS: Final = (
    measurement("dram", None, "byte/s", 40e9, kernel="read", thread_bytes=256 << 20),
    measurement("dram", None, "byte/s", 50e9, kernel="scale", thread_bytes=256 << 20),
    measurement("vector", "fp32", "flop/s", 250e9, kernel="runtime", side=512, label="ONNX Runtime MatMul"),
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Sequence[int], float]]:
    """Record what the command asks to measure, and return the same figures each time instead of measuring."""
    asked: list[tuple[Sequence[int], float]] = []
    details = {"measurements": list(MEASUREMENTS), "caches": [{"level": 1, "size_bytes": 49152}]}
    one = Calibration(
        calibration.this_machine(),
        1,
        "2026-11-21T10:00:00Z",
        (Ceiling("dram", None, 50e9, "byte/s", "scale"), Ceiling("vector", "fp32", 250e9, "flop/s", "product")),
        {"dram_latency": "not compiled"},
        ("5.0 % lost",),
        details,
    )

    def measure(threads: Sequence[int], seconds: float, log: Callable[[str], None]) -> list[Calibration]:
        asked.append((threads, seconds))
        return [replace(one, threads=count) for count in threads]

    monkeypatch.setattr(calibration, "calibrate", measure)
    return asked


def test_the_ceilings_are_kept_and_hold_for_the_sessions_of_this_machine(
    aaco: Aaco, copied: Project, asked: list[tuple[Sequence[int], float]]
) -> None:
    answer = aaco("calibrate", "--threads", "1", "--seconds", "3", "--json", project=copied)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert asked == [([1], 3.0)]
    (told,) = json.loads(answer.stdout)
    kept = json.loads(Path(told.pop("file")).read_text())
    assert kept == told
    assert [c["value"] for c in told["ceilings"]] == [50e9, 250e9]
    lake = TraceLake(copied.lake)
    session = lake.sessions()[0]
    (threads,) = lake.read("sessions", session)["threads"].to_list()
    found = ceilings_for(lake.path, lake.read("environment", session), lake.read("devices", session), threads)
    assert found.reason is None
    assert found.frame is not None
    assert found.frame["value"].to_list() == [50e9, 250e9]
    assert "all is well" in aaco("doctor", project=copied).stdout


def test_the_user_sees_each_ceiling_with_its_scatter_what_is_doubtful_and_how_it_was_before(
    aaco: Aaco, tmp_path: Path, asked: list[tuple[Sequence[int], float]]
) -> None:
    project = Project(tmp_path, tmp_path / "lake", tmp_path / "home")
    first = aaco("calibrate", project=project)
    assert (first.returncode, first.stderr) == (0, "")
    assert asked == [(calibration.default_threads(), calibration.DEFAULT_SECONDS)]
    lines = [" ".join(line.split()) for line in first.stdout.splitlines()]
    assert any(line.endswith("1 thread (L1 48.0 KiB)") for line in lines)
    scale = "NumPy multiply in place, 256 MiB"
    assert f"DRAM 50 GB/s -10.0 % -1.0 % – {scale}" in lines
    assert "arithmetic fp32 250 Gflop/s -10.0 % -1.0 % – ONNX Runtime MatMul, 512²" in lines
    assert "doubtful with 1 thread: 5.0 % lost" in lines
    assert "absent: dram latency: not compiled" in lines
    (kept,) = [line for line in lines if line.startswith("kept in ") and line.endswith("-1.json")]
    (file,) = (project.lake / "calibrations").glob("*-1.json")
    assert kept == f"kept in {file}"
    document = json.loads(file.read_text())
    document["ceilings"][0]["value"] = 60e9
    file.write_text(json.dumps(document))
    again = aaco("calibrate", "--threads", "1", project=project).stdout
    assert f"DRAM 50 GB/s -10.0 % -1.0 % +20.0 % {scale}" in [" ".join(line.split()) for line in again.splitlines()]
    machine = document["machine"]
    after = read_calibration(project.lake, machine, 1)
    assert after is not None
    assert after.ceilings[0].value == 50e9


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--threads", "0"), "'0' is not a list of sizes"),
        (("--threads", "1,1048576"), "--threads 1048576: "),
        (("--seconds", "0"), "--seconds"),
    ],
)
def test_what_cannot_be_measured_is_refused_and_nothing_is_kept(
    refused: Refused, tmp_path: Path, options: tuple[str, ...], words: str
) -> None:
    project = Project(tmp_path, tmp_path / "lake", tmp_path / "home")
    assert words in refused(2, "calibrate", *options, project=project)
    assert not project.lake.exists()


def test_a_measured_process_that_fails_exits_with_4_and_keeps_nothing(
    refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> list[Calibration]:
        raise UnavailableError("the measured process ended")

    monkeypatch.setattr(calibration, "calibrate", fail)
    project = Project(tmp_path, tmp_path / "lake", tmp_path / "home")
    assert refused(4, "calibrate", project=project) == "the measured process ended"
    assert not project.lake.exists()


def test_an_earlier_calibration_that_cannot_be_read_does_not_stand_in_the_way(
    aaco: Aaco, tmp_path: Path, asked: list[tuple[Sequence[int], float]]
) -> None:
    project = Project(tmp_path, tmp_path / "lake", tmp_path / "home")
    assert aaco("calibrate", "--threads", "1", project=project).returncode == 0
    (file,) = (project.lake / "calibrations").iterdir()
    good = file.read_bytes()
    file.write_text("torn")
    answer = aaco("calibrate", "--threads", "1", project=project)
    assert (answer.returncode, file.read_bytes()) == (0, good), answer.stderr
    assert len(asked) == 2


def test_one_of_a_newer_version_is_not_replaced_and_no_time_is_spent(
    aaco: Aaco, tmp_path: Path, asked: list[tuple[Sequence[int], float]]
) -> None:
    project = Project(tmp_path, tmp_path / "lake", tmp_path / "home")
    assert aaco("calibrate", "--threads", "1", project=project).returncode == 0
    (file,) = (project.lake / "calibrations").iterdir()
    file.write_text(json.dumps({"calibration_version": FORMAT_VERSION + 1}))
    answer = aaco("calibrate", "--threads", "1", project=project)
    assert answer.returncode == 8
    assert "is newer than" in answer.stderr
    assert json.loads(file.read_text()) == {"calibration_version": FORMAT_VERSION + 1}
    assert len(asked) == 1


def test_a_lake_that_cannot_be_written_exits_with_8(
    aaco: Aaco, tmp_path: Path, asked: list[tuple[Sequence[int], float]]
) -> None:
    (tmp_path / "lake").write_text("a file")
    answer = aaco("calibrate", "--threads", "1", project=Project(tmp_path, tmp_path / "lake", tmp_path / "home"))
    assert answer.returncode == 8
    assert answer.stderr.startswith(f"aaco: {tmp_path / 'lake'}")
    assert asked == []  # it is refused before the time is spent
