"""A campaign that was killed is asked for once more and no more, and never beside whoever is at work on it."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest

from aaco_pipeline.automation.campaigns import run_campaign
from aaco_pipeline.automation.resources import LakeResource
from aaco_pipeline.automation.runs import ATTEMPT_TAG, PARTITION_TAG
from aaco_pipeline.automation.sensors import unfinished_campaigns
from aaco_pipeline.automation.unfinished_campaigns import MOST_ATTEMPTS, due
from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.definitions import build_definitions
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.validation import empty_table
from aaco_pipeline.pipeline.comparing.plan import Subject, new_plan
from aaco_pipeline.pipeline.comparing.running import begin
from aaco_pipeline.resources.host.kernel_files import process_tags
from aaco_pipeline.resources.measure.runner import InferenceRunner
from tests.places import CONFIGS

ARM = Subject(MeasurementRequest(model="control_flow"), Path("/models/m.onnx"), "ab" * 32)
NOW = datetime.now(UTC)
FAILED, STARTED = dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.STARTED


def begun(lake: TraceLake) -> str:
    plan = new_plan("compare", {"baseline": ARM, "candidate": ARM}, blocks=3, traced_blocks=0, seed=1)
    begin(lake, plan)
    return plan.campaign


@pytest.fixture
def campaign(empty_lake: TraceLake) -> str:
    """A campaign that was planned, and of which nothing is measured."""
    return begun(empty_lake)


@pytest.fixture
def job(empty_lake: TraceLake) -> dg.JobDefinition:
    resources = {"lake": LakeResource(path=str(empty_lake.path)), "runner": InferenceRunner(configs=str(CONFIGS))}
    return build_definitions(resource_overrides=resources).resolve_job_def(run_campaign.name)


def ran(
    instance: dg.DagsterInstance,
    job: dg.JobDefinition,
    campaign: str,
    status: dg.DagsterRunStatus,
    *,
    dead: bool = False,
) -> None:
    tags = {PARTITION_TAG: campaign, **process_tags(), **({".dagster/aaco/process/started": "1"} if dead else {})}
    instance.create_run_for_job(job, tags=tags, status=status)


def judged(lake: TraceLake, campaign: str) -> None:
    lake.publish(campaign, "judging", {"verdicts": empty_table("verdicts")}, scope="campaign")


def test_a_killed_campaign_is_asked_for_once_more_and_no_more(
    empty_lake: TraceLake, instance: dg.DagsterInstance, job: dg.JobDefinition, campaign: str
) -> None:
    assert due(empty_lake, instance, NOW).requests == []  # whoever planned it is about to run it
    ran(instance, job, campaign, FAILED)
    assert due(empty_lake, instance, NOW).requests == [(campaign, 2)]
    ran(instance, job, campaign, FAILED)
    answer = due(empty_lake, instance, NOW)
    assert answer.requests == []
    assert answer.notes == [f"{campaign}: {MOST_ATTEMPTS} attempts failed; `aaco compare --resume {campaign}`"]


def test_a_run_whose_process_was_killed_counts_as_failed(
    empty_lake: TraceLake, instance: dg.DagsterInstance, job: dg.JobDefinition, campaign: str
) -> None:
    ran(instance, job, campaign, STARTED, dead=True)
    assert due(empty_lake, instance, NOW).requests == [(campaign, 2)]


def test_never_beside_a_living_run_nor_whoever_measures_it_elsewhere(
    empty_lake: TraceLake, instance: dg.DagsterInstance, job: dg.JobDefinition, campaign: str
) -> None:
    ran(instance, job, campaign, FAILED)
    with empty_lake.measuring(campaign):
        assert due(empty_lake, instance, NOW).requests == []
    assert due(empty_lake, instance, NOW).requests == [(campaign, 2)]
    ran(instance, job, campaign, STARTED)
    assert due(empty_lake, instance, NOW).requests == []


def test_campaigns_that_are_judged_are_not_asked_for(
    empty_lake: TraceLake, instance: dg.DagsterInstance, job: dg.JobDefinition, campaign: str
) -> None:
    ran(instance, job, campaign, FAILED)
    judged(empty_lake, campaign)
    assert due(empty_lake, instance, NOW).requests == []


def of_a_night(lake: TraceLake, night: date, confirms: str | None = None) -> str:
    plan = new_plan("nightly", {"baseline": ARM, "candidate": ARM}, night=night, confirms=confirms)
    begin(lake, plan)
    return plan.campaign


def test_a_night_that_is_over_is_not_gone_on_with_but_what_confirms_it_is(
    empty_lake: TraceLake, instance: dg.DagsterInstance, job: dg.JobDefinition
) -> None:
    tonight, before = NOW.date(), NOW.date() - timedelta(days=1)
    tonights, over, confirming = (
        of_a_night(empty_lake, tonight),
        of_a_night(empty_lake, before),
        of_a_night(empty_lake, before, confirms="nightly-first"),
    )
    for campaign in (tonights, over, confirming):
        ran(instance, job, campaign, FAILED)
    answer = due(empty_lake, instance, NOW)
    assert {campaign for campaign, _ in answer.requests} == {tonights, confirming}
    assert answer.notes == [f"{over}: its night, {before}, is over; `aaco rm {over}`"]


def test_the_sensor_asks_for_the_job_with_the_campaign_and_the_attempt(
    empty_lake: TraceLake, instance: dg.DagsterInstance, job: dg.JobDefinition, campaign: str
) -> None:
    ran(instance, job, campaign, FAILED)

    def tick() -> dg.RunRequest | dg.SkipReason:
        with dg.build_sensor_context(instance, resources={"lake": LakeResource(path=str(empty_lake.path))}) as context:
            made = unfinished_campaigns(context)
            assert isinstance(made, Iterator)
            (one,) = made
        assert isinstance(one, dg.RunRequest | dg.SkipReason)
        return one

    request = tick()
    assert isinstance(request, dg.RunRequest)
    assert (request.run_key, request.partition_key) == (f"{campaign}-2", campaign)
    assert request.tags == {ATTEMPT_TAG: "2"}
    ran(instance, job, campaign, FAILED)
    given_up = tick()
    assert isinstance(given_up, dg.SkipReason)
    assert f"`aaco compare --resume {campaign}`" in str(given_up.skip_message)
    judged(empty_lake, campaign)
    skipped = tick()
    assert isinstance(skipped, dg.SkipReason)
    assert skipped.skip_message == "every campaign is judged or in work"
    assert unfinished_campaigns.job_name == run_campaign.name
    assert unfinished_campaigns.default_status == dg.DefaultSensorStatus.RUNNING
