"""`aaco run`: measures one session with the options given, runs all its stages, and prints the answer.

`aaco sweep`: one session a point, one campaign, and a curve in the terminal, the lake and the report.
"""

import io
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from rich.console import Console

from aaco_pipeline.cli import output
from aaco_pipeline.lake.sql import select_rows
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.project import Project

Aaco = Callable[..., "subprocess.CompletedProcess[str]"]
QUICK: Final = ("run", "--model", "control_flow", "--iterations", "4", "--warmup", "1")


def test_run_prints_the_answer_first_and_nothing_on_standard_error(aaco: Aaco, copied: Project) -> None:
    answer = aaco(*QUICK, project=copied)
    assert (answer.returncode, answer.stderr) == (0, "")
    newest = TraceLake(copied.lake).sessions()[-1]
    first, second = answer.stdout.splitlines()[:2]
    assert first.startswith(f"{newest}  control_flow, on CPUExecutionProvider")
    # Where the time went on a loaded machine differs from run to run; that it is said first does not.
    assert " of the measured " in second
    assert "The median inference takes " in answer.stdout
    for heading in ("Where the time went", "By kind of work", "latency", "By kernel", "FusedGemm"):
        assert heading in answer.stdout
    evidence = aaco("show", "--evidence", project=copied)
    assert (evidence.returncode, evidence.stderr) == (0, "")
    for heading in (second, "What the answer rests on", "What was missing, and why"):
        assert heading in evidence.stdout
    assert answer.stdout == aaco("show", project=copied).stdout


def test_run_with_json_prints_what_show_prints_and_the_options_are_in_it(aaco: Aaco, elsewhere: Project) -> None:
    options = ("--iterations", "3", "--warmup", "2", "--seed", "7", "--threads", "2", "--shape", "x=16x64")
    answer = aaco("run", "--model", "control_flow", *options, "--json", project=elsewhere)
    assert (answer.returncode, answer.stderr) == (0, "")
    document = json.loads(answer.stdout)
    lake = TraceLake(elsewhere.lake)
    assert document["session_id"] == lake.sessions()[-1]
    assert (document["source_kind"], document["model_name"], document["backend"]) == ("live", "control_flow", "cpu")
    assert (document["batch_size"], document["threads"], document["seed"]) == (16, 2, 7)
    assert {"metrics", "timeline", "top_kernels", "missing", "disk_bytes"} <= document.keys()
    assert document["answer"]["class"] == document["bottleneck_class"] == document["answers"][0]["class"]
    medians = {m["pass"]: m for m in document["metrics"] if m["metric"] == "latency_p50"}
    assert {name: (m["n"], m["unit"]) for name, m in medians.items()} == {"latency": (3, "ns"), "trace": (3, "ns")}
    counts = select_rows(
        lake,
        f"""SELECT "pass", phase, count(*) FROM iterations WHERE session_id = '{document["session_id"]}'
            GROUP BY ALL ORDER BY ALL""",
    )
    assert counts.rows == [(p, phase, n) for p in ("latency", "trace") for phase, n in (("measure", 3), ("warmup", 2))]
    assert json.loads(aaco("show", "--json", project=elsewhere).stdout) == document


def test_sessions_have_every_table_of_every_stage(measured: Project) -> None:
    lake = TraceLake(measured.lake)
    stages = [{(e.table, e.stage) for e in lake.manifest(session).entries} for session in lake.sessions()]
    assert stages[0] == stages[1]
    assert {"capture", "inference_run", "kernel_trace", "timeline"} <= {stage for _, stage in stages[0]}


def test_run_takes_a_registered_model_with_its_iterations_and_a_path_from_where_one_stands(
    aaco: Aaco, elsewhere: Project, cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert elsewhere.root is not None
    model = next(cache_folder.glob("control_flow-*.onnx"))
    (elsewhere.root / "mine.onnx").symlink_to(model)
    (elsewhere.root / "configs" / "models.yaml").write_text(
        "models: {mine: {path: ../mine.onnx, input_shapes: {x: [8, 64]}, iterations: 2, warmup: 0}}\n"
    )
    registered = json.loads(aaco("run", "--model", "mine", "--json", project=elsewhere).stdout)
    assert (registered["model_name"], registered["batch_size"]) == ("mine", 8)
    assert {m["n"] for m in registered["metrics"] if m["metric"] == "latency_p50"} == {2}
    arguments = ("--model", "mine.onnx", "--batch", "4", "--iterations", "2", "--warmup", "0", "--json")
    by_path = json.loads(aaco("run", *arguments, project=elsewhere).stdout)
    assert (by_path["model_name"], by_path["batch_size"]) == ("mine", 4)
    assert by_path["model_sha256"] == registered["model_sha256"]


def test_progress_is_shown_on_a_terminal_and_never_in_the_output(
    aaco: Aaco, copied: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Console(file=io.StringIO(), force_terminal=True)
    monkeypatch.setattr(output, "console", lambda *, stderr: terminal)
    printed = aaco(*QUICK, project=copied)
    assert (printed.returncode, printed.stderr) == (0, "")
    assert isinstance(terminal.file, io.StringIO)
    for doing in ("latency pass", "trace pass", "stages"):
        assert doing in terminal.file.getvalue()
        assert doing not in printed.stdout
    assert "\x1b" not in printed.stdout


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
