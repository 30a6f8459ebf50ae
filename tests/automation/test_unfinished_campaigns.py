"""A campaign that was killed is asked for once more and no more, and never beside whoever is at work on it."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest

from aaco_pipeline.automation.campaigns import run_campaign
from aaco_pipeline.automation.partitions import CAMPAIGN_PARTITIONS_NAME
from aaco_pipeline.automation.resources import LakeResource
from aaco_pipeline.automation.runs import ATTEMPT_TAG, PARTITION_TAG
from aaco_pipeline.automation.sensors import lake_sessions, unfinished_campaigns
from aaco_pipeline.automation.unfinished_campaigns import MOST_ATTEMPTS, due, half_campaigns
from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.definitions import build_definitions
from aaco_pipeline.lake.removals import Account, Removal
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.validation import empty_table
from aaco_pipeline.pipeline.comparing.plan import Subject, new_plan
from aaco_pipeline.pipeline.comparing.running import begin
from aaco_pipeline.pipeline.doctor import Problem, examine
from aaco_pipeline.resources.host.process_identity import process_tags
from aaco_pipeline.resources.measure.runner import InferenceRunner
from tests.places import CONFIGS

ARM = Subject(MeasurementRequest(model="control_flow"), Path("/models/m.onnx"), "ab" * 32)
NOW = datetime.now(UTC)
FAILED, STARTED = dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.STARTED


def begun(lake: TraceLake, instance: dg.DagsterInstance) -> str:
    plan = new_plan("compare", {"baseline": ARM, "candidate": ARM}, blocks=3, traced_blocks=0, seed=1)
    begin(lake, instance, plan)
    return plan.campaign


@pytest.fixture
def campaign(empty_lake: TraceLake, instance: dg.DagsterInstance) -> str:
    """A campaign that was planned, and of which nothing is measured."""
    return begun(empty_lake, instance)


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


def test_campaigns_that_are_judged_and_those_without_a_plan_are_not_half(
    empty_lake: TraceLake, instance: dg.DagsterInstance, job: dg.JobDefinition, campaign: str
) -> None:
    empty_lake.publish("a-sweep", "sweep", {"scaling": empty_table("scaling")}, scope="campaign")
    other = begun(empty_lake, instance)
    assert set(half_campaigns(empty_lake)) == {campaign, other}
    judged(empty_lake, campaign)
    assert half_campaigns(empty_lake) == [other]
    ran(instance, job, campaign, FAILED)
    assert due(empty_lake, instance, NOW).requests == []


def of_a_night(lake: TraceLake, instance: dg.DagsterInstance, night: date, confirms: str | None = None) -> str:
    plan = new_plan("nightly", {"baseline": ARM, "candidate": ARM}, night=night, confirms=confirms)
    begin(lake, instance, plan)
    return plan.campaign


def test_a_night_that_is_over_is_not_gone_on_with_but_what_confirms_it_is(
    empty_lake: TraceLake, instance: dg.DagsterInstance, job: dg.JobDefinition
) -> None:
    tonight, before = NOW.date(), NOW.date() - timedelta(days=1)
    tonights, over, confirming = (
        of_a_night(empty_lake, instance, tonight),
        of_a_night(empty_lake, instance, before),
        of_a_night(empty_lake, instance, before, confirms="nightly-first"),
    )
    for campaign in (tonights, over, confirming):
        ran(instance, job, campaign, FAILED)
    answer = due(empty_lake, instance, NOW)
    assert {campaign for campaign, _ in answer.requests} == {tonights, confirming}
    assert answer.notes == [f"{over}: its night, {before}, is over; `aaco rm {over}`"]
    told = {one.subject: one.explanation for one in examine(empty_lake, instance)}
    assert told[over] == f"its night, {before}, is over, so nobody goes on with it; `aaco rm {over}` removes it"
    assert "--resume" in told[tonights]


def test_campaigns_that_wait_for_another_of_their_night_are_no_problem(
    empty_lake: TraceLake, instance: dg.DagsterInstance
) -> None:
    first, second = (of_a_night(empty_lake, instance, NOW.date()) for _ in range(2))
    assert {one.subject for one in examine(empty_lake, instance)} == {first, second}
    with empty_lake.measuring(first):
        assert examine(empty_lake, instance) == []


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


def test_doctor_names_a_half_campaign_unless_somebody_is_at_work_on_it(
    empty_lake: TraceLake, instance: dg.DagsterInstance, job: dg.JobDefinition, campaign: str
) -> None:
    why = f"it has a plan and no verdict; `aaco compare --resume {campaign}` goes on, `aaco rm` gives it up"
    half = [Problem("half campaign", campaign, why)]
    assert examine(empty_lake, instance) == half
    assert examine(empty_lake, None) == half
    with empty_lake.measuring(campaign):
        assert examine(empty_lake, instance) == []
    ran(instance, job, campaign, STARTED)
    assert examine(empty_lake, instance) == []
    judged(empty_lake, campaign)
    assert examine(empty_lake, None) == []


def test_a_campaign_that_was_killed_before_dagster_knew_it_becomes_known_at_the_next_tick(
    empty_lake: TraceLake, instance: dg.DagsterInstance, campaign: str
) -> None:
    instance.delete_dynamic_partition(CAMPAIGN_PARTITIONS_NAME, campaign)
    resources = {"lake": LakeResource(path=str(empty_lake.path))}
    told = []
    for _ in range(2):
        with dg.build_sensor_context(instance, resources=resources) as context:
            answer = lake_sessions(context)
        assert isinstance(answer, dg.SkipReason)
        told.append(answer.skip_message)
        assert instance.get_dynamic_partitions(CAMPAIGN_PARTITIONS_NAME) == [campaign]
    assert told == [
        "made known: 0 of 0 sessions and 1 campaigns of the lake",
        "every session and campaign of the lake is known",
    ]


def test_doctor_puts_lake_and_dagster_in_step_on_campaigns(
    empty_lake: TraceLake, instance: dg.DagsterInstance, campaign: str
) -> None:
    judged(empty_lake, campaign)
    instance.delete_dynamic_partition(CAMPAIGN_PARTITIONS_NAME, campaign)
    instance.add_dynamic_partitions(CAMPAIGN_PARTITIONS_NAME, ["compare-gone", "compare-of-another-lake"])
    Account(empty_lake).begin(gone := [Removal("campaign", "compare-gone", 0, "asked", "removed by hand")])
    Account(empty_lake).end(gone)
    found = examine(empty_lake, instance)
    assert [(one.kind, one.subject) for one in found] == [
        ("campaign without partition", campaign),
        ("partition without campaign", "compare-gone"),
    ]
    for one in found:
        assert one.mend is not None
        assert one.mend()
    kept = {campaign, "compare-of-another-lake"}
    assert set(instance.get_dynamic_partitions(CAMPAIGN_PARTITIONS_NAME)) == kept
    assert examine(empty_lake, instance) == []
