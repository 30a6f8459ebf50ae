"""`aaco compare` from its SPECs to its exit code: really measured, broken off and resumed; and what it refuses.

`aaco diff`: two sessions of a lake beside each other.
"""

import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import polars as pl
import pytest
from onnx import TensorProto, helper, numpy_helper

from aaco_pipeline.cli.compare import limit_in, request_in
from aaco_pipeline.cli.output import WRITTEN
from aaco_pipeline.errors import ModelError
from aaco_pipeline.lake.files import file_digest
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.comparing import measuring, running
from aaco_pipeline.resources.measure.inference import capture_inference
from aaco_pipeline.resources.project import Project
from aaco_pipeline.statistics.verdicts.service_level import Limit
from tests.cli.conftest import Aaco, Refused
from tests.pipeline.comparing.made_up import BASELINE, measured, planned
from tests.places import SHARED
from tests.sessions import replayed, taken_in


@pytest.fixture
def model(tmp_path: Path) -> Path:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.ones((64, 64), np.float32), "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def campaign_of(project: Project) -> str:
    (found,) = TraceLake(project.lake).read("campaigns").get_column("campaign_id")
    return str(found)


@pytest.mark.nightly
def test_a_campaign_that_broke_off_is_resumed_and_comes_to_its_end_once(
    aaco: Aaco, refused: Refused, place: Project, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture, calls = capture_inference, list[object]()

    def broken(*arguments: Any, **more: Any) -> object:
        calls.append(arguments[0])
        if len(calls) == 4:  # in the second block
            raise ModelError("m.onnx: broken off by the test")
        return capture(*arguments, **more)

    monkeypatch.setattr(measuring, "capture_inference", broken)
    spec = f"{model} --iterations 3 --warmup 1"
    arguments = ("--sessions", "3", "--traced", "1", "--seed", "1", "--limit", "p99=20ms", "--json")
    asked = ("compare", "--baseline", spec, "--candidate", f"{spec} --threads 2", *arguments)
    broken_off = aaco(*asked, project=place)
    assert (broken_off.returncode, broken_off.stdout) == (3, "")
    assert broken_off.stderr.count("\n") == 1
    assert "m.onnx: broken off by the test; `aaco compare --resume compare-" in broken_off.stderr
    lake, campaign = TraceLake(place.lake), campaign_of(place)
    before = lake.read("campaign_sessions", campaign).filter(pl.col("state") == "finished")
    assert before.height == 2

    done = aaco("compare", "--resume", campaign, "--strict", "--json", project=place)
    assert done.returncode == 7, done.stderr  # three blocks allow no interval
    document = json.loads(done.stdout)
    assert (document["campaign_id"], document["verdict"]) == (campaign, "inconclusive")
    assert document["asked_differently"] == ["threads: as registered → 2"]
    assert [one["state"] for one in document["service_levels"]] == ["not_enough_data"] * 2
    assert document["blocks"] == {"latency_finished": 3, "latency_killed": 1, "trace_finished": 1}
    rows = lake.read("campaign_sessions", campaign)
    finished = rows.filter(pl.col("state") == "finished").get_column("session_id")
    assert set(before.get_column("session_id")) <= set(finished)
    assert sorted(finished) == lake.sessions() == lake.captured()
    assert all(lake.progress(session).is_whole for session in finished)
    arms = lake.read("sessions").select("campaign_id", "arm").unique().sort("arm").rows()
    assert arms == [(campaign, "baseline"), (campaign, "candidate")]

    count = len(calls)
    again = aaco("compare", "--resume", campaign, project=place)
    assert (again.returncode, len(calls)) == (0, count)  # without --strict, and nothing is measured again
    assert "Inconclusive: the median of candidate is " in again.stdout
    assert lake.read("campaign_sessions", campaign).equals(rows)
    page = lake.verdict_page(campaign)
    assert aaco("report", campaign, project=place).stdout == f"{page}\n"
    assert aaco("doctor", project=place).returncode == 0
    assert page.read_text().count("<title>block ") == 3
    dry = json.loads(aaco("gc", "--keep-last", "1", "--dry-run", "--json", project=place).stdout)
    assert {one["rule"] for one in dry["kept"]} == {"campaign"}
    assert len(dry["kept"]) == len(finished)


def test_a_model_that_fails_in_one_arm_is_named_by_its_arm_and_leaves_no_campaign(
    refused: Refused, place: Project, model: Path, aaco: Aaco
) -> None:
    nodes = [  # an index that no input has, which no optimizer can see
        helper.make_node("NonZero", ["x"], ["places"]),
        helper.make_node("Shape", ["places"], ["index"]),
        helper.make_node("Gather", ["x", "index"], ["y"], axis=0),
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", [4, 64]), ("y", None))
    ]
    graph = helper.make_graph(nodes, "graph", ends[:1], ends[1:])
    crashes = model.with_name("crashes.onnx")
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), crashes)
    told = refused(3, "compare", "--baseline", str(model), "--candidate", str(crashes), project=place)
    assert f"candidate ({crashes}), block 0: the model failed in iteration 0: " in told
    assert list(TraceLake(place.lake).manifests("session")) == []
    assert aaco("doctor", project=place).returncode == 0


def test_a_full_disk_says_how_the_campaign_goes_on_with_room_again(
    refused: Refused, place: Project, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(running, "run", full)
    told = refused(8, "compare", "--baseline", str(model), "--candidate", str(model), project=place)
    assert told.startswith("a disk is full or fails; make room")
    assert told.endswith(f"then `aaco compare --resume {campaign_of(place)}` goes on")


@pytest.mark.parametrize("judged", [(1.5, 5, "regressed"), (0.5, 0, "improved"), (1.0, 0, "equivalent")])
def test_a_regression_is_its_own_exit_code_and_a_verdict_is_enough_for_strict(
    judged: tuple[float, int, str], aaco: Aaco, place: Project, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "finish_session", lambda *arguments: True)  # nobody captured them
    lake = TraceLake(place.lake)
    arm = replace(BASELINE, artefact=model, artefact_sha256=file_digest(model))
    ratio, code, verdict = judged
    plan = planned(lake, arm, baseline=arm)
    measured(lake, plan, ratio)
    done = aaco("compare", "--resume", plan.campaign, "--json", "--strict", project=place)
    assert (done.returncode, done.stderr) == (code, "")
    assert json.loads(done.stdout)["verdict"] == verdict
    path = place.lake.parent / "junit.xml"
    asked = ("--format", "junit", "--output", str(path))
    again = aaco("compare", "--resume", plan.campaign, *asked, project=place)
    assert (again.returncode, again.stdout) == (code, f"{path}\n")
    assert json.loads((path.parent / "verdict.json").read_text()) == json.loads(done.stdout)

    told = aaco("report", plan.campaign, project=place)
    page = lake.verdict_page(plan.campaign)
    assert (told.returncode, told.stdout) == (0, f"{page}\n")
    assert json.loads(page.with_name("verdict.json").read_text()) == json.loads(done.stdout)
    junit = aaco("report", plan.campaign, "--format", "junit", project=place)
    assert junit.stdout == path.read_text()
    screen = aaco("report", plan.campaign, "--format", "terminal", project=place)
    assert verdict.capitalize() in screen.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "give --baseline and --candidate, or a campaign to --resume"),
        (("--baseline", "control_flow"), "give --baseline and --candidate, or a campaign to --resume"),
        (("--baseline", "control_flow --no", "--candidate", "control_flow"), "--no' is not a SPEC: No such option"),
        (("--baseline", "control_flow", "--candidate", "a 'b"), "\"a 'b\" is not a SPEC: No closing quotation"),
        (("--baseline", "control_flow", "--candidate", "a b"), "'a b' is not a SPEC: Got unexpected extra"),
        (("--baseline", "", "--candidate", "control_flow"), "'' is not a SPEC"),
        (("--baseline", "control_flow --threads x", "--candidate", "control_flow"), "'x' is not a valid integer"),
        (("--baseline", "control_flow", "--candidate", "control_flow", "--sessions", "2"), "expected 3 to 200"),
        (("--baseline", "control_flow", "--candidate", "control_flow", "--threshold", "0"), "a threshold of 0"),
        (("--baseline", "control_flow", "--candidate", "no_such_model"), "no_such_model"),
        (("--baseline", "control_flow", "--candidate", "control_flow --interpreter /no/python"), "/no/python: no such"),
        (("--baseline", "control_flow", "--candidate", "control_flow", "--limit", "p99=20"), "'p99=20' is not a limit"),
        (("--baseline", "control_flow", "--candidate", "control_flow", "--limit", "p95=2ms"), "of p50, p90 or p99"),
        (("--baseline", "control_flow", "--candidate", "control_flow", "--limit", "p99=0ms"), "cannot be kept"),
        (("--resume", "nothing", "--limit", "p99=20ms"), "a campaign is resumed as it was planned"),
        (("--resume", "nothing"), "campaign nothing has no plan"),
        (("--resume", "../lake"), "'../lake' is not a campaign id"),
        (("--resume", "nothing", "--baseline", "control_flow"), "a campaign is resumed as it was planned"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_is_refused_in_one_line_and_no_lake_is_made(
    arguments: tuple[str, ...], words: str, refused: Refused, place: Project
) -> None:
    assert words in refused(2, "compare", *arguments, project=place)
    assert not place.lake.exists()


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("p99=20ms", Limit("latency_p99", 20_000_000, 0.01)),
        ("P90=1.5 s", Limit("latency_p90", 1_500_000_000, 0.1)),
        ("p50=250us", Limit("latency_p50", 250_000, 0.5)),
        ("p50=250µs", Limit("latency_p50", 250_000, 0.5)),
    ],
)
def test_a_limit_is_a_quantile_and_a_time_with_its_unit(text: str, limit: Limit) -> None:
    assert limit_in(text) == limit


def test_a_spec_is_what_run_takes() -> None:
    request = request_in("'my model.onnx' --threads 2 --batch 4 --shape x=1x2")
    assert (Path(request.model).name, request.threads, request.batch_size) == ("my model.onnx", 2, 4)
    assert request.input_shapes == {"x": [1, 2]}
    assert request_in("--threads 2 --model squeezenet") == request_in("squeezenet --threads 2")


#: What scripts may rely on.
KEYS = {
    *("regression", "verdict", "severity", "confidence", "latency_delta_pct", "suspected_cause", "evidence"),
    "recommendation",
}
EVIDENCE = {"kernel_launch_count_delta", "avg_kernel_duration_delta", "cpu_overhead_delta"}


@pytest.fixture
def pair(measured: Project) -> list[str]:
    return TraceLake(measured.lake).sessions()


def test_two_models_are_said_to_be_different_work_and_are_not_judged(aaco: Aaco, pair: list[str]) -> None:
    answer = aaco("diff", *pair)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout.startswith(f"{pair[1]} against {pair[0]}\n")
    assert "The work differs: model name: squeezenet → control_flow" in answer.stdout
    assert "Described, no verdict" in answer.stdout
    assert answer.stdout.splitlines()[-1].strip() != ""


def test_json_has_the_keys_that_scripts_rely_on(aaco: Aaco, pair: list[str]) -> None:
    document = json.loads(aaco("diff", *pair, "--json").stdout)
    assert document == json.loads(aaco("diff", *pair, "--format", "json").stdout)
    assert set(document) >= KEYS
    assert set(document["evidence"]) >= EVIDENCE
    assert (document["regression"], document["verdict"], document["confidence"]) == (False, "described", None)
    assert document["latency_from"] == "unprofiled iterations"
    ratio = document["candidate"]["latency_ns"] / document["baseline"]["latency_ns"]
    assert document["latency_delta_pct"] == pytest.approx(100 * (ratio - 1))


def test_markdown_says_the_same(aaco: Aaco, pair: list[str]) -> None:
    text = aaco("diff", *pair, "--format", "markdown").stdout
    assert text.startswith(f"# `{pair[1]}` against `{pair[0]}`\n")
    assert "next to none of the kernels and operators of one session run in the other" in text
    assert "## Causes" not in text
    assert "Described, no verdict" in text


def test_a_file_is_written_with_the_verdict_beside_it(aaco: Aaco, pair: list[str], tmp_path: Path) -> None:
    told = json.loads(aaco("diff", *pair, "--json").stdout)
    for form in WRITTEN:
        path = tmp_path / form / "out"
        done = aaco("diff", *pair, "--format", form, "--output", str(path))
        assert (done.returncode, done.stdout) == (0, f"{path}\n")
        assert json.loads((path.parent / "verdict.json").read_text()) == told
    assert (tmp_path / "junit" / "out").read_text() == aaco("diff", *pair, "--format", "junit").stdout
    page = (tmp_path / "html" / "out").read_text()
    assert page.index("The work differs: model name: squeezenet → control_flow") < page.index("<section")
    skipped = (tmp_path / "junit" / "out").read_text()
    assert 'skipped="1"' in skipped


def test_a_session_is_not_compared_with_itself(refused: Refused, pair: list[str]) -> None:
    message = refused(2, "diff", pair[1], "latest")
    assert "both sides" in message


def test_a_baseline_file_is_described_and_never_judged(
    aaco: Aaco, refused: Refused, pair: list[str], tmp_path: Path
) -> None:
    latencies = {"latency_p50_ms": 0.001, "latency_p99_ms": 0.002, "power_w": 0}
    metrics = {name: {"mean": mean, "unit": ""} for name, mean in latencies.items()}
    file = tmp_path / "old.json"
    file.write_text(json.dumps({"name": "old", "model_name": "control_flow", "metrics": metrics}))
    told = json.loads(aaco("diff", str(file), pair[1], "--json").stdout)
    assert set(told) >= KEYS
    assert set(told["evidence"]) >= EVIDENCE
    assert (told["verdict"], told["regression"], told["differs"]) == ("inconclusive", False, [])
    (p50, p99) = told["metrics"]
    assert p50["ratio"] == pytest.approx(p50["candidate_ns"] / 1_000)
    assert p99["baseline_ns"] == 2_000
    assert told["refused"] == ["power_w: 0 is a reading that failed"]
    for form in ("table", "markdown", "junit", "bencher", "github-action-benchmark"):
        done = aaco("diff", str(file), pair[1], "--format", form)
        assert (done.returncode, "aaco compare --baseline" in done.stdout) == (0, form != "bencher"), form
    assert "there is no html of a stored difference" in refused(2, "diff", str(file), pair[1], "--format", "html")

    other = aaco("diff", str(file), pair[0], "--json")  # of another model
    told = json.loads(other.stdout)
    assert told["differs"] == ["model name: control_flow → squeezenet"]
    assert (told["latency_delta_pct"], told["metrics"][0]["ratio"]) == (None, None)
    file.write_text("[]")
    assert "is no baseline that is known" in refused(6, "diff", str(file), pair[1])


def test_an_unknown_session_is_named(refused: Refused, measured: Project) -> None:
    assert "nowhere" in refused(2, "diff", "latest", "nowhere")


def test_launches_that_were_added_to_real_sessions_are_the_first_cause(aaco: Aaco, copied: Project) -> None:
    lake = TraceLake(copied.lake)
    folder = SHARED / "gpu_sessions" / "sessions"
    made = [taken_in(lake, folder / f"b03_{name}.json.trace.json.gz") for name in ("baseline", "extra_launches")]
    for session in made:
        replayed(lake, session)
    document = json.loads(aaco("diff", *made, "--json", "--lake", str(lake.path)).stdout)
    assert document["selections"] == []
    assert document["evidence"]["kernel_launch_count_delta"] == 40
    assert document["suspected_cause"].startswith("40 more launches an iteration (with idle) of vectorized_element")
    assert document["change"]["closure_ratio"] < 0.01
    explained = sum(row["delta_ns"] for row in document["causes"] if row["in_sum"])
    assert explained == pytest.approx(document["change"]["delta_ns"], abs=1e-3)
    assert document["other_work"] is None
    assert "## Causes" in aaco("diff", *made, "--format", "markdown", "--lake", str(lake.path)).stdout
    assert 'id="causes"' in aaco("diff", *made, "--format", "html", "--lake", str(lake.path)).stdout
