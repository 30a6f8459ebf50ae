"""The campaign's assets as Dagster runs them: what they show, and that a failure is one line with its exit code."""

from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest

from aaco_pipeline.automation.campaigns import ASSETS, run_campaign
from aaco_pipeline.automation.resources import CAMPAIGN_PARTITIONS_NAME, LakeResource, add_campaigns
from aaco_pipeline.definitions import build_definitions
from aaco_pipeline.lake.files import file_digest
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.comparing import measuring
from aaco_pipeline.pipeline.comparing.plan import Plan, Subject
from aaco_pipeline.pipeline.comparing.running import begin, run
from aaco_pipeline.resources.measure.runner import InferenceRunner
from tests.automation.conftest import QUIET, failures, metadata_of
from tests.automation.test_adoption import adopted
from tests.pipeline.comparing.made_up import BASELINE, measured, planned
from tests.places import CONFIGS


@pytest.fixture
def arm(tmp_path: Path) -> Subject:
    """What both arms measure: a file that is there, as the plan found it."""
    model = tmp_path / "m.onnx"
    model.write_bytes(b"a model")
    return replace(BASELINE, artefact=model, artefact_sha256=file_digest(model))


@pytest.fixture
def plan(empty_lake: TraceLake, instance: dg.DagsterInstance, arm: Subject, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """A campaign whose blocks are all measured: the candidate takes half as long again."""
    monkeypatch.setattr(measuring, "finish_session", lambda *arguments: True)  # nobody captured them
    made = planned(empty_lake, arm, baseline=arm)
    begin(empty_lake, made)
    add_campaigns(instance, made.campaign)
    measured(empty_lake, made, ratio=1.5)
    return made


def ran(lake: TraceLake, instance: dg.DagsterInstance, plan: Plan) -> dg.ExecuteInProcessResult:
    resources = {"lake": LakeResource(path=str(lake.path)), "runner": InferenceRunner(configs=str(CONFIGS))}
    job = build_definitions(resource_overrides=resources).resolve_job_def(run_campaign.name)
    return job.execute_in_process(
        instance=instance, partition_key=plan.campaign, run_config=QUIET, raise_on_error=False
    )


def test_a_run_shows_the_sessions_and_then_the_verdict(
    empty_lake: TraceLake, instance: dg.DagsterInstance, plan: Plan
) -> None:
    result = ran(empty_lake, instance, plan)
    assert result.success
    shown = metadata_of(result)
    assert set(shown) == {asset.key.to_user_string() for asset in ASSETS}
    assert list(shown)[:2] == ["campaign_sessions", "campaign_verdicts"]
    assert shown["history"]["finding"].value == "no change of level"
    assert shown["alerts"]["finding"].value == "no event"
    sessions, verdicts = shown["campaign_sessions"], shown["campaign_verdicts"]
    assert sessions["dagster/row_count"].value == 10
    assert sessions["baseline latency sessions finished"].value == 5
    assert sessions["candidate latency sessions finished"].value == 5
    rows = empty_lake.read("verdicts", plan.campaign)
    assert verdicts["dagster/row_count"].value == rows.height
    assert str(verdicts["verdict"].value).startswith("Regressed: the median of candidate is 1.")
    assert "| latency\\_p50 | regressed | 1." in str(verdicts["verdicts"].value)
    events = result.get_asset_materialization_events()
    assert {event.partition for event in events} == {plan.campaign}


def test_a_file_that_changed_fails_the_run_in_one_line_and_judges_nothing(
    empty_lake: TraceLake, instance: dg.DagsterInstance, plan: Plan, arm: Subject
) -> None:
    arm.artefact.write_bytes(b"another model")
    result = ran(empty_lake, instance, plan)
    assert not result.success
    ((step, (line, code)),) = failures(result).items()
    assert (step, code) == ("campaign_sessions", 2)
    assert line is not None
    assert line.startswith(f"{arm.artefact}: changed, or its weights, since campaign {plan.campaign} was planned")
    assert "\n" not in line
    assert empty_lake.read("verdicts", plan.campaign).is_empty()


def test_a_campaign_of_the_command_is_adopted_once_as_a_run_would_have_shown_it(
    empty_lake: TraceLake, instance: dg.DagsterInstance, plan: Plan
) -> None:
    instance.delete_dynamic_partition(CAMPAIGN_PARTITIONS_NAME, plan.campaign)
    run(CONFIGS, empty_lake, plan.campaign)
    adopted(instance, empty_lake)
    assert instance.get_dynamic_partitions(CAMPAIGN_PARTITIONS_NAME) == [plan.campaign]
    shown = {name: [one.metadata for one in some] for name, some in materialized(instance, plan.campaign).items()}
    published = {"campaign_sessions": 1, "campaign_verdicts": 1, "history": 1}  # it is no night, which has alerts
    assert {name: len(some) for name, some in shown.items()} == {**published, "alerts": 0}
    again = metadata_of(ran(empty_lake, instance, plan))
    own = {"made by", "rolling baseline", "between nights"}
    for name in published:
        assert {key: value for key, value in shown[name][0].items() if key not in own} == {
            key: value for key, value in again[name].items() if key not in own
        }
    adopted(instance, empty_lake)
    counts = {name: len(some) for name, some in materialized(instance, plan.campaign).items()}
    assert counts == {**dict.fromkeys(published, 2), "alerts": 1}, "what the run shows is not adopted"


def materialized(instance: dg.DagsterInstance, campaign: str) -> dict[str, list[dg.AssetMaterialization]]:
    """Every materialization of a campaign's assets, by asset."""
    found = {}
    for asset in ASSETS:
        asked = dg.AssetRecordsFilter(asset_key=asset.key, asset_partitions=[campaign])
        records = instance.fetch_materializations(asked, limit=10).records
        made = [one.asset_materialization for one in records if one.asset_materialization is not None]
        found[asset.key.to_user_string()] = made
    return found
