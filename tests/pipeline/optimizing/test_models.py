"""A model's search plans each campaign before it, keeps what decided it, and says how to run what was accepted."""

import math
import re
import shlex
from collections.abc import Mapping
from contextlib import nullcontext
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from aaco_pipeline.capture.request import MeasurementRequest, as_options
from aaco_pipeline.cli.compare import request_in
from aaco_pipeline.cli.main import main
from aaco_pipeline.cli.optimize import is_of_a_model
from aaco_pipeline.errors import UsageError
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.comparing.judging import judge_campaign
from aaco_pipeline.pipeline.comparing.plan import Subject, new_plan, read_plan, write_plan
from aaco_pipeline.pipeline.optimizing import models
from aaco_pipeline.pipeline.optimizing.models import ModelOrder, optimize_model
from aaco_pipeline.pipeline.optimizing.record import read_kept
from aaco_pipeline.pipeline.optimizing.search import decide_again
from aaco_pipeline.report.optimization.document import optimization_document, optimization_report
from aaco_pipeline.report.optimization.page import render_search
from aaco_pipeline.report.optimization.search import remarks, sentence, title
from aaco_pipeline.resources.measure.inference import answer_inference
from aaco_pipeline.resources.measure.measurement_slot import measurement_slot
from aaco_pipeline.resources.project import LAKE_VARIABLE
from tests.pipeline.comparing.made_up import measured
from tests.places import CONFIGS

BASIC = MeasurementRequest(model="control_flow", optimization="basic")
#: The first dimension of that model.
BATCH = 32


def took(held: str, asked: str) -> float:
    """Return the time of an iteration at one level relative to another."""
    return 0.5 if (held, asked) == ("basic", "all") else 1.0


def pairs(step: str, held: Mapping[str, Any], candidate: Mapping[str, Any], blocks: int) -> dict[str, Any]:
    """Return a campaign's result without measuring; items of larger batches take 0.8 of the time."""
    larger = int(candidate.get("batch_size", BATCH)) / BATCH
    ratio = took(held.get("optimization", "basic"), candidate.get("optimization", "basic"))
    times = [1e6 * (1 + 0.002 * math.cos(3 * block)) for block in range(blocks)]
    itself, gained = (
        [{"baseline_ns": [1e6], "candidate_ns": [time * factor]} for time in times]
        for factor in (1.0, ratio * (0.8 * larger if larger > 1 else 1.0))
    )
    both = {"candidate": [] if step == "aa" else gained, "itself": [] if step == "search" else itself}
    return {"campaign": f"configure-{step}", "pairs": both}


@pytest.fixture
def searched(empty_lake: TraceLake, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Search on a host where all rewritings of the graph take half the time, and nothing else changes anything."""

    def run(configs: Path, lake: TraceLake, campaign: str, log: object) -> None:
        plan = read_plan(lake, campaign)
        held, asked = (plan.arms[arm].request for arm in ("baseline", "candidate"))
        measured(lake, plan, took(held.optimization, asked.optimization))

    def answers(request: MeasurementRequest, *_: Any, runs: int, joined: int = 1, **how: Any) -> list[dict[str, Any]]:
        drawn = np.repeat(np.arange(runs, dtype=np.float32), 3)
        return [{"y": one} for one in np.split(drawn, runs // joined)]

    monkeypatch.setattr(models, "run", run)
    monkeypatch.setattr(models, "answer_inference", answers)
    monkeypatch.setattr(models, "measurement_slot", lambda on_wait: nullcontext(0))
    monkeypatch.setattr(models, "cores_of", lambda cpus: 1)

    def search(request: MeasurementRequest = BASIC, threshold: float = 0.02, budget_ns: int = 10**12) -> str:
        order = ModelOrder(request, None, budget_ns, threshold)
        return optimize_model(CONFIGS, empty_lake, order, log=lambda line: None, shown=nullcontext)

    return search


def test_what_was_accepted_is_reported_with_the_command_that_runs_it_and_decided_again_from_its_journal(
    searched: Any, empty_lake: TraceLake
) -> None:
    name = searched()
    document = optimization_document(empty_lake, name)
    assert document["kernel"] is None and document["gain"]["speedup_ratio"] == pytest.approx(2.0, rel=0.02)
    gain = document["gain"]
    assert f"control_flow runs {gain['speedup_ratio']:.2f} [" in sentence(document)
    assert "with --optimization all" in sentence(document)
    assert remarks(document)[-1] == "No file was changed. To run it so: `aaco run --model control_flow`"
    assert title(document) == "control_flow"
    accepted = document["attempts"][0]
    assert (accepted["decision"], accepted["ratio_of"], accepted["layouts"]) == ("accepted", "iteration", 16)
    plans = empty_lake.read("campaigns").filter(pl.col("campaign_id").is_in(accepted["campaigns"]))
    assert set(plans.get_column("kind").cast(pl.String)) == {"configure"}
    assert [read_plan(empty_lake, one).blocks for one in accepted["campaigns"]] == [4, 12]
    assert list(read_plan(empty_lake, accepted["campaigns"][1]).arms) == ["baseline", "candidate", "placebo"]
    _, again = decide_again(read_kept(empty_lake, name), name)
    assert len(again) > 1 and all(one.differs is None for one in again)


@pytest.mark.parametrize(
    ("request_", "threshold", "words"),
    [
        (MeasurementRequest(model="gpt_tiny", prompt_tokens=2, output_tokens=2), 0.02, "generates tokens"),
        (BASIC, 0.0, "least gain"),
        (MeasurementRequest(model="nothing"), 0.02, "no model has this name"),
    ],
)
def test_what_cannot_be_searched_is_refused_before_the_lake_is_written(
    searched: Any, empty_lake: TraceLake, request_: MeasurementRequest, threshold: float, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        searched(request_, threshold)
    assert empty_lake.read("optimizations").is_empty()


def test_arms_of_different_batches_get_no_verdict(empty_lake: TraceLake) -> None:
    arms: Any = {
        arm: Subject(MeasurementRequest(model="m", batch_size=batch), Path("/m.onnx"), "ab" * 32)
        for arm, batch in (("baseline", 1), ("candidate", 4))
    }
    plan = new_plan("configure", arms, blocks=6, traced_blocks=0, seed=1)
    write_plan(empty_lake, plan)
    measured(empty_lake, plan, 2.0)
    verdicts = judge_campaign(empty_lake, plan.campaign)["verdicts"]
    assert set(verdicts.get_column("verdict").cast(pl.String)) == {"withheld"}
    assert verdicts.get_column("effect_ratio").null_count() == verdicts.height
    assert "do not do the same work" in verdicts.item(0, "reasons")[0]


def test_the_answers_of_two_processes_on_the_same_inputs_are_the_same(tmp_path: Path) -> None:
    (first := tmp_path / "first").mkdir()
    (again := tmp_path / "again").mkdir()
    with measurement_slot(tmp_path / "slot") as slot:
        drawn = answer_inference(BASIC, first, CONFIGS, slot, runs=2)
        same = answer_inference(BASIC, again, CONFIGS, slot, runs=2, inputs_of=first)
    assert drawn[0].keys() == same[0].keys()
    assert all(np.array_equal(one[name], other[name]) for one, other in zip(drawn, same, strict=True) for name in one)


def test_settings_as_options_are_read_back_as_they_were() -> None:
    settings: dict[str, Any] = {
        "threads": 2,
        "batch_size": 4,
        "optimization": "basic",
        "allow_fallback": True,
        "provider_options": {"a": "1", "b": "2"},
        "input_shapes": {"x": [1, 3]},
    }
    read = request_in(shlex.join(["m.onnx", *as_options(settings)]))
    assert {name: getattr(read, name) for name in settings} == settings


@pytest.mark.parametrize(
    ("source", "session", "is_model"),
    [
        ("squeezenet", None, True),
        ("squeezenet --threads 2", None, True),
        ("some/where.onnx --batch 2", None, True),
        ("no.hip", None, False),
        ("some/kernel", None, False),
        ("kernel.hip", "latest", False),
        (None, "latest", True),
        (None, None, False),
    ],
)
def test_a_model_is_distinguished_from_a_source(source: str | None, session: str | None, is_model: bool) -> None:
    assert is_of_a_model(source and Path(source), session) is is_model  # type: ignore[arg-type]


def test_every_form_of_its_report_speaks_of_a_model_and_holds_what_decided_it(
    searched: Any, empty_lake: TraceLake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(models._Work, "_batch_is_free", lambda work: True)
    monkeypatch.setattr(models._Work, "measure", lambda work, *asked: pairs(*asked))
    monkeypatch.setenv(LAKE_VARIABLE, str(empty_lake.path))
    name = searched()
    document = optimization_report(empty_lake, name)
    told = {row["transformation"]: (row["ratio_of"], row["decision"]) for row in document["attempts"]}
    assert told["--batch 64"] == ("item", "accepted") and document["gain"]["of"] == "confirmation"
    row = empty_lake.read("optimizations", name).row(0, named=True)
    assert (row["speedup_ratio"], row["ci_low"]) == (document["gain"]["speedup_ratio"], document["gain"]["ci_low"])
    assert row["speedup_ratio"] == pytest.approx(2.0, rel=0.02), "what a batch gains for each item is no part of it"
    for step in document["evidence"]["timings"]:
        assert math.exp(np.median(np.log(step["layouts"]))) == pytest.approx(step["speedup_ratio"])
    page = unescape(render_search(document))
    assert "control_flow: a search for a faster configuration" in page and "Block by block" in page
    assert "<code>aaco run --model control_flow --optimization basic</code>" in page and " per item" in page
    for form in ("terminal", "markdown", "json"):
        assert main(["report", name, "--format", form]) == 0
        printed = capsys.readouterr().out
        assert "--batch 64" in printed.replace("\\", "")
        if form != "json":
            page += printed
    text = re.sub(r"(?s)<(style|script)>.*?</\1>|<[^>]*>", " ", page)
    assert re.findall(r"\b(?:None|layouts?|the source|static)\b", text) == []


def test_a_search_that_ended_before_a_look_decided_has_its_page(searched: Any, empty_lake: TraceLake) -> None:
    document = optimization_report(empty_lake, searched(budget_ns=1))
    assert document["evidence"]["timings"] == [] and document["gain"] is None
    page = unescape(render_search(document))
    assert "Nothing was decided about control_flow" in page and "None" not in page
