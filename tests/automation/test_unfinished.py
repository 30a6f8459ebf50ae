"""A sensor asks for what half sessions lack: not beside a living run, each time as a new attempt, and not for ever.

A campaign that was killed is asked for once more and no more, and never beside whoever is at work on it.
"""

import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest

from aaco_pipeline.assets.stage import stages, stages_of
from aaco_pipeline.automation import unfinished
from aaco_pipeline.automation.campaigns import run_campaign
from aaco_pipeline.automation.resources import LakeResource
from aaco_pipeline.automation.runs import (
    ATTEMPT_TAG,
    FIRST_DELAY_SECONDS,
    MOST_ATTEMPTS,
    PARTITION_TAG,
    SESSION_TAG,
    attempts_at,
)
from aaco_pipeline.automation.sensors import unfinished_campaigns, unfinished_sessions
from aaco_pipeline.automation.stage_assets import JOB
from aaco_pipeline.automation.unfinished import MOST_CAMPAIGN_ATTEMPTS, DueSessions, due_campaigns, due_sessions
from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.definitions import build_definitions
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.validation import empty_table
from aaco_pipeline.pipeline.comparing.plan import Subject, new_plan, write_plan
from aaco_pipeline.resources.host.kernel_files import HOST_TAG, process_tags
from aaco_pipeline.resources.measure.runner import InferenceRunner
from tests.automation.conftest import job_of, registered
from tests.places import CONFIGS

REQUEST = MeasurementRequest(model="control_flow")
STILL = unfinished.STILL_SECONDS + 1.0


@pytest.fixture
def half(empty_lake: TraceLake, instance: dg.DagsterInstance) -> str:
    """A session that was asked for and killed."""
    return registered(empty_lake, instance, REQUEST)


def asked(lake: TraceLake, instance: dg.DagsterInstance, later: float = STILL) -> DueSessions:
    return due_sessions(lake, instance, time.time() + later)


def run_of(
    instance: dg.DagsterInstance, session: str, status: dg.DagsterRunStatus, tags: dict[str, str] | None = None
) -> None:
    instance.create_run_for_job(job_of(JOB), tags={PARTITION_TAG: session, **(tags or process_tags())}, status=status)


def test_what_a_killed_run_left_is_asked_for_once_it_has_been_still(
    empty_lake: TraceLake, instance: dg.DagsterInstance, half: str
) -> None:
    assert asked(empty_lake, instance, 0.0).requests == []
    (one,) = asked(empty_lake, instance).requests
    assert (one.session, one.attempt, one.stages, one.run_key) == (half, 1, stages_of("measured"), f"{half}-1")
    for name in one.stages[:-1]:
        empty_lake.publish(half, name, {table: empty_table(table) for table in stages()[name].tables})
    (one,) = asked(empty_lake, instance).requests
    assert one.stages == stages_of("measured")[-1:]


@pytest.mark.parametrize("status", [dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.STARTING])
@pytest.mark.parametrize("host", [None, "another host"])
def test_never_beside_a_living_run_here_or_elsewhere(
    status: dg.DagsterRunStatus, host: str | None, empty_lake: TraceLake, instance: dg.DagsterInstance, half: str
) -> None:
    run_of(instance, half, status, {**process_tags(), **({HOST_TAG: host} if host else {})})
    assert asked(empty_lake, instance).requests == []


def test_never_beside_whoever_holds_the_session_in_another_instance(
    empty_lake: TraceLake, instance: dg.DagsterInstance, half: str
) -> None:
    with empty_lake.running(half):
        assert asked(empty_lake, instance).requests == []
    assert len(asked(empty_lake, instance).requests) == 1


def test_each_attempt_waits_longer_has_a_key_of_its_own_and_there_is_a_last_one(
    empty_lake: TraceLake, instance: dg.DagsterInstance, half: str
) -> None:
    keys, now = set[str](), time.time() + STILL
    for attempt in range(1, MOST_ATTEMPTS + 1):
        (one,) = due_sessions(empty_lake, instance, now).requests
        assert one.attempt == attempt
        keys.add(one.run_key)
        run_of(instance, half, dg.DagsterRunStatus.FAILURE)
        ended = attempts_at(instance, JOB, half).ended
        assert ended is not None
        now = ended + FIRST_DELAY_SECONDS * 2.0 ** (attempt - 1)
        assert due_sessions(empty_lake, instance, now - 1.0).requests == []
        now = max(now, time.time() + STILL)
    assert len(keys) == MOST_ATTEMPTS
    answer = asked(empty_lake, instance, 9_999.0)
    assert (answer.requests, answer.notes) == (
        [],
        [f"{half}: {MOST_ATTEMPTS} attempts failed; `aaco show {half}` says why"],
    )


def test_a_stage_that_failed_outside_is_asked_for_once(
    empty_lake: TraceLake, instance: dg.DagsterInstance, half: str
) -> None:
    empty_lake.record_failure(half, "capture", "v", "no such device")
    assert len(asked(empty_lake, instance).requests) == 1
    run_of(instance, half, dg.DagsterRunStatus.FAILURE)
    answer = asked(empty_lake, instance, 9_999.0)
    assert (answer.requests, answer.notes) == ([], [f"{half}: capture failed; `aaco show {half}` says why"])


def test_a_success_begins_the_count_again_and_no_key_twice(
    empty_lake: TraceLake, instance: dg.DagsterInstance, half: str
) -> None:
    run_of(instance, half, dg.DagsterRunStatus.FAILURE)
    run_of(instance, half, dg.DagsterRunStatus.SUCCESS)
    (one,) = asked(empty_lake, instance).requests
    assert (one.attempt, one.run_key) == (1, f"{half}-3")


def test_whole_sessions_those_of_nothing_and_those_without_a_partition_are_passed_over(
    empty_lake: TraceLake, instance: dg.DagsterInstance, half: str
) -> None:
    empty_lake.withdraw(half)
    whole, unknown = (registered(empty_lake, instance, REQUEST) for _ in range(2))
    for name in stages_of("measured"):
        empty_lake.publish(whole, name, {table: empty_table(table) for table in stages()[name].tables})
    instance.delete_dynamic_partition("session", unknown)
    assert asked(empty_lake, instance).requests == []


def test_only_so_many_are_finished_at_once(empty_lake: TraceLake, instance: dg.DagsterInstance) -> None:
    for _ in range(unfinished.MOST_AT_ONCE + 1):
        registered(empty_lake, instance, REQUEST)
    answer = asked(empty_lake, instance)
    assert (len(answer.requests), len(answer.notes)) == (unfinished.MOST_AT_ONCE, 1)


def test_the_sensor_asks_for_the_stages_alone_with_the_attempt(
    empty_lake: TraceLake, instance: dg.DagsterInstance, half: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unfinished, "STILL_SECONDS", 0.0)
    with dg.build_sensor_context(instance, resources={"lake": LakeResource(path=str(empty_lake.path))}) as context:
        made = unfinished_sessions(context)
        assert isinstance(made, Iterator)
        (one,) = made
        empty_lake.remove(half)
        again = unfinished_sessions(context)
        assert isinstance(again, Iterator)
        (skipped,) = again
    assert isinstance(one, dg.RunRequest)
    assert (one.run_key, one.partition_key) == (f"{half}-1", half)
    assert one.tags == {SESSION_TAG: half, ATTEMPT_TAG: "1"}
    assert [key.to_user_string() for key in one.asset_selection or ()] == list(stages_of("measured"))
    assert isinstance(skipped, dg.SkipReason)
    assert skipped.skip_message == "every session is whole"


ARM = Subject(MeasurementRequest(model="control_flow"), Path("/models/m.onnx"), "ab" * 32)
NOW = datetime.now(UTC)
FAILED, STARTED = dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.STARTED


def begun(lake: TraceLake) -> str:
    plan = new_plan("compare", {"baseline": ARM, "candidate": ARM}, blocks=3, traced_blocks=0, seed=1)
    write_plan(lake, plan)
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
    assert due_campaigns(empty_lake, instance, NOW).requests == []  # whoever planned it is about to run it
    ran(instance, job, campaign, FAILED)
    assert due_campaigns(empty_lake, instance, NOW).requests == [(campaign, 2)]
    ran(instance, job, campaign, FAILED)
    answer = due_campaigns(empty_lake, instance, NOW)
    assert answer.requests == []
    assert answer.notes == [f"{campaign}: {MOST_CAMPAIGN_ATTEMPTS} attempts failed; `aaco compare --resume {campaign}`"]


def test_a_run_whose_process_was_killed_counts_as_failed(
    empty_lake: TraceLake, instance: dg.DagsterInstance, job: dg.JobDefinition, campaign: str
) -> None:
    ran(instance, job, campaign, STARTED, dead=True)
    assert due_campaigns(empty_lake, instance, NOW).requests == [(campaign, 2)]


def test_never_beside_a_living_run_nor_whoever_measures_it_elsewhere(
    empty_lake: TraceLake, instance: dg.DagsterInstance, job: dg.JobDefinition, campaign: str
) -> None:
    ran(instance, job, campaign, FAILED)
    with empty_lake.measuring(campaign):
        assert due_campaigns(empty_lake, instance, NOW).requests == []
    assert due_campaigns(empty_lake, instance, NOW).requests == [(campaign, 2)]
    ran(instance, job, campaign, STARTED)
    assert due_campaigns(empty_lake, instance, NOW).requests == []


def test_campaigns_that_are_judged_are_not_asked_for(
    empty_lake: TraceLake, instance: dg.DagsterInstance, job: dg.JobDefinition, campaign: str
) -> None:
    ran(instance, job, campaign, FAILED)
    judged(empty_lake, campaign)
    assert due_campaigns(empty_lake, instance, NOW).requests == []


def of_a_night(lake: TraceLake, night: date, confirms: str | None = None) -> str:
    plan = new_plan("nightly", {"baseline": ARM, "candidate": ARM}, night=night, confirms=confirms)
    write_plan(lake, plan)
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
    answer = due_campaigns(empty_lake, instance, NOW)
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
