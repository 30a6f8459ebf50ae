"""`aaco diff`: two sessions of a lake beside each other."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from aaco_pipeline.cli.verdict_output import WRITTEN
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.project import Project
from tests.places import SHARED
from tests.sessions import replayed, taken_in

Aaco = Callable[..., "subprocess.CompletedProcess[str]"]
Refused = Callable[..., str]
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
