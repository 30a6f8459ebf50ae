"""`aaco info` and `aaco doctor`: what the host can measure with, and what is wrong with the lake."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from aaco_pipeline import __version__
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.project import Project
from aaco_pipeline.resources.targets.emulated import finding as emulators
from aaco_pipeline.resources.toolchains.amdgpu import finding
from aaco_pipeline.resources.toolchains.amdgpu.finding import Missing, availability

Aaco = Callable[..., "subprocess.CompletedProcess[str]"]


def test_info_with_json_tells_host_backends_tools_and_models(aaco: Aaco, measured: Project) -> None:
    answer = aaco("info", "--json")
    assert (answer.returncode, answer.stderr) == (0, "")
    document = json.loads(answer.stdout)
    assert document.keys() == {"version", "lake", "dagster_home", "host", "backends", "tools", "models"}
    assert (document["version"], document["lake"]) == (__version__, str(measured.lake))
    assert document["dagster_home"] == str(measured.dagster_home)
    assert {"cpu", "cuda", "migraphx", "rocm"} <= {row["backend"] for row in document["backends"]}
    assert {"squeezenet", "control_flow", "gpt_tiny"} <= {row["name"] for row in document["models"]}
    assert {"rocprofv3", "clang for AMD GPUs"} <= {row["tool"] for row in document["tools"]}
    assert {("host", "name"), ("kernel", "release"), ("package", "onnxruntime")} <= {
        (row["category"], row["key"]) for row in document["host"]
    }


def test_info_says_what_a_backend_lacks_and_what_mends_it(aaco: Aaco, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CPUExecutionProvider"])
    rows = {row["backend"]: row for row in json.loads(aaco("info", "--json").stdout)["backends"]}
    assert (rows["cpu"]["usable"], rows["cpu"]["lacks"]) == (True, "")
    for name, provider, package in (
        ("migraphx", "MIGraphXExecutionProvider", "onnxruntime-migraphx"),
        ("rocm", "ROCMExecutionProvider", "onnxruntime-rocm"),
        ("cuda", "CUDAExecutionProvider", "onnxruntime-gpu"),
    ):
        assert not rows[name]["usable"]
        assert f"has no {provider}" in rows[name]["lacks"]
        assert package in rows[name]["fix"]
    printed = aaco("info").stdout
    for text in ("migraphx", "no MIGraphXExecutionProvider", "pip install onnxruntime-migraphx", "squeezenet"):
        assert text in " ".join(printed.split())


def test_doctor_finds_nothing_wrong_with_a_healthy_lake(aaco: Aaco, measured: Project) -> None:
    answer = aaco("doctor")
    said = f"{measured.lake}: all is well\n{availability()}\n{emulators.availability()}\n"
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, said, "")
    assert aaco("doctor", "--json").stdout == "[]\n"


def test_doctor_says_how_to_have_the_static_verdict_and_is_well_without(
    aaco: Aaco, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finding, "find_toolchain", lambda: Missing("no compiler for AMD GPUs"))
    answer = aaco("doctor")
    said = "static verdict on gfx90a and gfx942: not available (no compiler for AMD GPUs); to have it: apt-get install"
    assert (answer.returncode, said in answer.stdout) == (0, True), answer.stdout
    assert aaco("doctor", "--json").stdout == "[]\n"


def test_doctor_mends_what_a_killed_run_leaves(aaco: Aaco, copied: Project) -> None:
    lake = TraceLake(copied.lake)
    newer = lake.sessions()[-1]
    before = json.loads(aaco("ls", "--json", project=copied).stdout)
    orphan = lake.path / "gaps" / f"session_id={newer}" / "timeline-0123456789ab.parquet"
    orphan.write_bytes(b"published by no manifest")
    unfinished = lake.path / "raw" / ".tmp-99999999-0123abcd"  # numbers of processes end well below
    (unfinished / ".latency").mkdir(parents=True)

    answer = aaco("doctor", project=copied)
    assert (answer.returncode, answer.stderr) == (8, "")
    assert "`aaco doctor --mend` mends what can be mended" in answer.stdout
    found = json.loads(aaco("doctor", "--json", project=copied).stdout)
    assert {(row["kind"], row["subject"]) for row in found} == {
        ("orphan file", str(orphan)),
        ("unfinished write", str(unfinished)),
    }
    assert {row["state"] for row in found} == {"can be mended"}
    assert orphan.exists()

    mended = aaco("doctor", "--mend", "--json", project=copied)
    assert mended.returncode == 0
    assert {row["state"] for row in json.loads(mended.stdout)} == {"mended"}
    assert aaco("doctor", project=copied).returncode == 0
    assert not orphan.exists()
    assert not unfinished.exists()
    assert json.loads(aaco("ls", "--json", project=copied).stdout) == before


def test_doctor_makes_lost_data_again_from_the_raw_capture(aaco: Aaco, copied: Project) -> None:
    lake = TraceLake(copied.lake)
    (entry,) = lake.manifest(lake.sessions()[0]).of_table("iterations")
    file = lake.path / entry.file
    file.write_bytes(file.read_bytes()[:-1])
    for mend, code, state in (((), 8, "can be mended"), (("--mend",), 0, "mended")):
        answer = aaco("doctor", *mend, "--json", project=copied)
        (row,) = json.loads(answer.stdout)
        assert (answer.returncode, row["kind"], row["subject"], row["state"]) == (code, "torn file", str(file), state)
        assert "stage inference_run; its stage has to run again" in row["why"]
    assert lake.manifest(lake.sessions()[0]).of_table("iterations") == (entry,)
    assert json.loads(aaco("doctor", "--json", project=copied).stdout) == []


def test_doctor_of_a_lake_that_does_not_exist_makes_nothing(aaco: Aaco, measured: Project, tmp_path: Path) -> None:
    nowhere = Project(measured.root, tmp_path / "lake", tmp_path / "home")
    assert aaco("doctor", project=nowhere).returncode == 0
    assert not nowhere.lake.exists()
    assert not nowhere.dagster_home.exists()
