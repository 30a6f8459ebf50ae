"""`aaco info` and `aaco doctor`: what the host can measure with, and what is wrong with the lake."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import dagster as dg
import pytest

from aaco_pipeline import __version__
from aaco_pipeline.assets.stage import stages
from aaco_pipeline.automation.instance import open_instance
from aaco_pipeline.automation.partitions import PARTITIONS_NAME
from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.validation import empty_table
from aaco_pipeline.pipeline.sessions import register
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
    older, newer = lake.sessions()
    before = json.loads(aaco("ls", "--json", project=copied).stdout)
    orphan = lake.path / "gaps" / f"session_id={newer}" / "timeline-0123456789ab.parquet"
    orphan.write_bytes(b"published by no manifest")
    unfinished = lake.path / "raw" / ".tmp-99999999-0123abcd"  # numbers of processes end well below
    (unfinished / ".latency").mkdir(parents=True)
    with open_instance(copied) as instance:
        instance.add_dynamic_partitions(PARTITIONS_NAME, [gone := "20010101T000000Z-00000002"])
        of_this_lake = {"dagster/uri": str(lake.path)}
        instance.report_runless_asset_event(dg.AssetMaterialization("capture", partition=gone, metadata=of_this_lake))
        instance.delete_dynamic_partition(PARTITIONS_NAME, older)

    answer = aaco("doctor", project=copied)
    assert (answer.returncode, answer.stderr) == (8, "")
    assert "`aaco doctor --mend` mends what can be mended" in answer.stdout
    found = json.loads(aaco("doctor", "--json", project=copied).stdout)
    assert {(row["kind"], row["subject"]) for row in found} == {
        ("orphan file", str(orphan)),
        ("unfinished write", str(unfinished)),
        ("partition without session", "20010101T000000Z-00000002"),
        ("session without partition", older),
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
    with open_instance(copied) as instance:
        assert sorted(instance.get_dynamic_partitions(PARTITIONS_NAME)) == [older, newer]


@pytest.mark.parametrize("status", ["NOT_STARTED", "STARTING", "STARTED", "CANCELING"])
def test_doctor_mends_runs_whose_process_is_gone_with_all_they_left_in_one_go(
    aaco: Aaco, copied: Project, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def finish(lake: TraceLake, session: str, configs: Path) -> None:
        """Every stage of what was asked for publishes at once."""
        lake.withdraw(session)
        for name in lake.progress(session).expected:
            lake.publish(session, name, {table: empty_table(table) for table in stages()[name].tables})

    monkeypatch.setattr("aaco_pipeline.pipeline.session_stages.finish_session", finish)
    lake = TraceLake(copied.lake)
    known = lake.sessions()
    identity = "aaco_pipeline.resources.host.process_identity"
    code = f"import json; from {identity} import process_tags; print(json.dumps(process_tags()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    runs = [str(uuid4()), str(uuid4())]
    with open_instance(copied) as instance:
        for run in runs:
            session = register(lake, MeasurementRequest(model="control_flow"))
            tags = {**json.loads(done.stdout), "dagster/partition": session}
            instance.add_run(dg.DagsterRun("observe", run, status=dg.DagsterRunStatus(status), tags=tags))
    assert aaco("doctor", project=copied).returncode == 8
    mended = aaco("doctor", "--mend", project=copied)
    assert mended.returncode == 0, mended.stdout
    assert aaco("doctor", "--json", project=copied).stdout == "[]\n"
    assert lake.requests() == []
    with open_instance(copied) as instance:
        assert len(instance.get_dynamic_partitions(PARTITIONS_NAME)) == len(known) + len(runs)
        ended = instance.get_runs(dg.RunsFilter(run_ids=runs))
    assert {run.status for run in ended} == {dg.DagsterRunStatus.FAILURE}


@pytest.mark.parametrize("kind", ["torn file", "missing file"])
def test_doctor_makes_lost_data_again_from_the_raw_capture(aaco: Aaco, copied: Project, kind: str) -> None:
    lake = TraceLake(copied.lake)
    (entry,) = lake.manifest(lake.sessions()[0]).of_table("iterations")
    file = lake.path / entry.file
    if kind == "torn file":
        file.write_bytes(file.read_bytes()[:-1])
    else:
        file.unlink()
    for mend, code, state in (((), 8, "can be mended"), (("--mend",), 0, "mended")):
        answer = aaco("doctor", *mend, "--json", project=copied)
        (row,) = json.loads(answer.stdout)
        assert (answer.returncode, row["kind"], row["subject"], row["state"]) == (code, kind, str(file), state)
        assert "stage inference_run; its stage has to run again" in row["why"]
    assert lake.manifest(lake.sessions()[0]).of_table("iterations") == (entry,)
    assert json.loads(aaco("doctor", "--json", project=copied).stdout) == []


def test_doctor_of_a_lake_that_does_not_exist_makes_nothing(aaco: Aaco, measured: Project, tmp_path: Path) -> None:
    nowhere = Project(measured.root, tmp_path / "lake", tmp_path / "home")
    assert aaco("doctor", project=nowhere).returncode == 0
    assert not nowhere.lake.exists()
    assert not nowhere.dagster_home.exists()
