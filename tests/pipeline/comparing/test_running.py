"""A campaign run from its plan to its alerts: what it publishes, and that what ended it comes through."""

from dataclasses import replace
from pathlib import Path

import pytest

from aaco_pipeline.errors import UsageError
from aaco_pipeline.lake.files import file_digest
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.comparing import measuring, running
from aaco_pipeline.pipeline.comparing.judging import half_campaigns
from aaco_pipeline.pipeline.comparing.plan import Plan, new_plan, read_plan
from tests.pipeline.comparing.made_up import BASELINE, measured
from tests.places import CONFIGS


@pytest.fixture
def plan(empty_lake: TraceLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """A campaign that was begun, whose sessions are measured and whole."""
    monkeypatch.setattr(measuring, "finish_session", lambda *arguments: False)
    model = tmp_path / "m.onnx"
    model.write_bytes(b"a model")
    arm = replace(BASELINE, artefact=model, artefact_sha256=file_digest(model))
    made = new_plan("compare", {"baseline": arm, "candidate": arm}, blocks=5, traced_blocks=0, seed=1)
    running.begin(empty_lake, made)
    measured(empty_lake, made, 1.5)
    return made


def test_beginning_writes_the_plan_and_a_second_time_nothing(empty_lake: TraceLake, plan: Plan) -> None:
    manifest = empty_lake.manifest(plan.campaign, "campaign")
    running.begin(empty_lake, plan)
    assert empty_lake.manifest(plan.campaign, "campaign") == manifest
    assert read_plan(empty_lake, plan.campaign) == plan


def test_it_ends_with_its_verdict_and_its_alerts_and_running_it_again_changes_nothing(
    empty_lake: TraceLake, plan: Plan
) -> None:
    running.run(CONFIGS, empty_lake, plan.campaign)
    assert half_campaigns(empty_lake) == []
    verdicts = empty_lake.read("verdicts", plan.campaign)
    assert verdicts.filter(role="primary").get_column("verdict").to_list() == ["regressed"]
    manifest = empty_lake.manifest(plan.campaign, "campaign")
    assert {"plan", "measuring", "judging", "history"} <= {entry.stage for entry in manifest.entries}
    running.run(CONFIGS, empty_lake, plan.campaign)
    assert empty_lake.manifest(plan.campaign, "campaign") == manifest


def test_what_ends_the_measuring_comes_through_and_nothing_is_judged(empty_lake: TraceLake, plan: Plan) -> None:
    plan.arms["baseline"].artefact.write_bytes(b"another model")
    with pytest.raises(UsageError, match=r"m\.onnx"):
        running.run(CONFIGS, empty_lake, plan.campaign)
    assert half_campaigns(empty_lake) == [plan.campaign]
