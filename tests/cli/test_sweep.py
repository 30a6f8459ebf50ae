"""`aaco sweep`: one session a point, one campaign, and a curve in the terminal, the lake and the report."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.project import Project

Aaco = Callable[..., "subprocess.CompletedProcess[str]"]
GPT = ("--model", "gpt_tiny", "--tokens", "3", "--iterations", "6", "--warmup", "1")


def test_a_sweep_is_one_session_a_point_and_one_curve(aaco: Aaco, copied: Project) -> None:
    before = set(TraceLake(copied.lake).sessions())
    answer = aaco("sweep", *GPT, "--batch", "2,1,2", "--prompt", "4", "--json", project=copied)
    assert answer.returncode == 0, answer.stderr
    curve = json.loads(answer.stdout)
    lake = TraceLake(copied.lake)
    sessions = [point["session_id"] for point in curve["points"]]
    assert set(lake.sessions()) == before | set(sessions)
    assert [(point["prompt_tokens"], point["batch_size"]) for point in curve["points"]] == [(4, 1), (4, 2)]
    assert lake.read("scaling", curve["campaign_id"]).drop("campaign_id").to_dicts() == curve["points"]
    for point in curve["points"]:
        (what,) = lake.read("sessions", point["session_id"]).to_dicts()
        assert what["campaign_id"] == curve["campaign_id"]
        assert (what["batch_size"], what["prompt_tokens"]) == (point["batch_size"], point["prompt_tokens"])
        metrics = lake.read("session_metrics", point["session_id"]).to_dicts()
        (median,) = [m["value"] for m in metrics if (m["metric"], m["pass"]) == ("request_latency_p50", "latency")]
        assert point["time_ns"] == median
        assert point["throughput_per_s"] == pytest.approx(point["batch_size"] * 3 * 1e9 / median)
    page = Path(aaco("report", sessions[0], project=copied).stdout.strip()).read_text()
    assert "How it scales" in page
    assert page.count("<circle") == len(sessions)


def test_a_point_that_cannot_be_measured_ends_the_sweep_and_the_others_keep_their_curve(
    aaco: Aaco, copied: Project
) -> None:
    answer = aaco("sweep", "--model", "squeezenet", "--batch", "1,2", "--iterations", "3", project=copied)
    assert answer.returncode == 2
    assert "batch 2: input 'data_0' has the fixed batch dimension 1" in answer.stderr
    assert answer.stderr.rstrip().endswith("1 of 2 points were measured")
    assert "There is one point: batch 1 gives" in answer.stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--batch", "1,x"), "'1,x' is not a list of sizes; expected 1,2,4,8"),
        (("--batch", "0"), "'0' is not a list of sizes"),
        (("--prompt", "4"), "go together"),
        (("--model", "no_such"), "no model has this name"),
    ],
)
def test_bad_sizes_are_refused_before_anything_is_measured(
    aaco: Aaco, copied: Project, options: tuple[str, ...], words: str
) -> None:
    before = TraceLake(copied.lake).sessions()
    answer = aaco("sweep", "--model", "squeezenet", *options, project=copied)
    assert answer.returncode == 2
    assert words in answer.stderr
    assert len(answer.stderr.splitlines()) == 1
    assert TraceLake(copied.lake).sessions() == before
