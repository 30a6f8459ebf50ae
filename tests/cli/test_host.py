"""`aaco info` and `aaco doctor`: what the host can measure with, and what is wrong with the lake.

`aaco quiet` probes every CPU that it may use, and says what it could not see where the kernel may not be asked.

`aaco init`: the package's settings as files to edit, nothing overwritten, and they then hold.
"""

import json
import os
from pathlib import Path

import pytest

from aaco_pipeline import __version__
from aaco_pipeline.cli.main import main
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.configuration import load_models
from aaco_pipeline.resources.kernel_plane import recording
from aaco_pipeline.resources.project import DEFAULTS, Project, find_project
from aaco_pipeline.resources.telemetry.clocks import NotPossible
from aaco_pipeline.resources.toolchains.amdgpu import finding
from aaco_pipeline.resources.toolchains.amdgpu.finding import Missing, availability, emulator_availability
from tests.cli.conftest import Aaco
from tests.places import ROOT


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
    said = f"{measured.lake}: all is well\n{availability()}\n{emulator_availability()}\n"
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


def test_it_accounts_for_every_cpu_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quiet", "--seconds", "0.5", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {row["cpu"] for row in told["taken"]} == os.sched_getaffinity(0)
    assert all(0 <= row["taken_ns"] <= 2 * row["of_ns"] and row["of_ns"] >= 500_000_000 for row in told["taken"])
    kinds = {row["kind"] for row in told["taken"]}
    assert "unseen" in kinds if told["reason"] is None else kinds == {"gap"}


def test_where_the_kernel_may_not_be_asked_it_says_what_to_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused() -> None:
        raise NotPossible("tracefs is not mounted, or not for this user", "run as root")

    monkeypatch.setattr(recording, "find_tracefs", refused)
    assert main(["quiet", "--seconds", "0.5"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "By what is unknown: tracefs is not mounted, or not for this user." in said
    assert "to see what: run as root" in said


def test_what_is_to_be_said_of_the_recording_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "remove_stale", lambda: ["aaco_7_7_1_threads"])
    assert main(["quiet", "--seconds", "0.5", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    if told["reason"] is not None:
        pytest.skip(f"the kernel's events cannot be recorded here: {told['reason']}")
    assert "had left in tracefs: aaco_7_7_1_threads" in told["recording"]
    assert main(["quiet", "--seconds", "0.5"]) == 0
    assert "Of the recording: removed what a killed run had left" in " ".join(capsys.readouterr().out.split())


WRITTEN = [
    *("configs/backends.yaml", "configs/bottleneck_rules.yaml", "configs/counter_sets.yaml"),
    *("configs/language_model.yaml", "configs/models.yaml", "configs/nightly.yaml", "configs/notifications.yaml"),
    *("configs/retention.yaml", "configs/trusted_folders.yaml", "dagster.yaml", "workspace.yaml"),
]


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_init_writes_the_files_of_the_checkout_byte_for_byte_and_says_the_next_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init"]) == 0
    assert files(tmp_path) == {name: (ROOT / name).read_bytes() for name in WRITTEN}
    assert not any(path.is_symlink() for path in tmp_path.rglob("*"))
    *names, last = capsys.readouterr().out.splitlines()
    assert names == WRITTEN
    assert last.endswith(" Next: aaco run --model squeezenet")


@pytest.mark.parametrize("name", WRITTEN)
def test_the_checkout_shows_the_packages_files_by_relative_links(name: str) -> None:
    link = ROOT / name
    assert link.is_symlink()
    assert not link.readlink().is_absolute()
    assert link.resolve() == DEFAULTS / name
    assert sorted(str(path.relative_to(DEFAULTS)) for path in DEFAULTS.rglob("*") if path.is_file()) == WRITTEN


def test_init_makes_the_folder_it_is_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "my work" / "here"
    assert main(["init", str(folder)]) == 0
    assert sorted(files(folder)) == WRITTEN
    assert capsys.readouterr().out.endswith(f"Next: cd '{folder}' && aaco run --model squeezenet\n")


def test_init_overwrites_nothing_and_names_what_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "configs").mkdir()
    own = {"dagster.yaml": b"mine", "configs/models.yaml": b"mine, too"}
    for name, content in own.items():
        (tmp_path / name).write_bytes(content)
    assert main(["init", str(tmp_path)]) == 2
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    assert all(str(tmp_path / name) in line for name in own)
    assert printed.out == ""
    assert files(tmp_path) == own


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["init", str(tmp_path / "file" / "below")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(tmp_path / "file") in line


def test_what_the_user_writes_then_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init"]) == 0
    (tmp_path / "configs" / "models.yaml").write_text("models: {mine: {path: mine.onnx}}\n")
    project = find_project(start=tmp_path / "configs")
    assert project.root == tmp_path
    assert list(load_models(project.configs / "models.yaml")) == ["mine"]
    assert project.settings("dagster.yaml") == tmp_path / "dagster.yaml"
