"""The sensors, each evaluated: what they request, and why they request nothing."""

from collections.abc import Iterator

import dagster as dg
import pytest

from aaco_pipeline.automation.jobs import start_session
from aaco_pipeline.automation.resources import LakeResource
from aaco_pipeline.automation.runs import SESSION_TAG
from aaco_pipeline.automation.sensors import dead_runs, start_observing
from aaco_pipeline.automation.stage_assets import observe
from aaco_pipeline.resources.host.kernel_files import process_tags
from aaco_pipeline.resources.measure.runner import InferenceRunner
from aaco_pipeline.resources.project import Project


@pytest.fixture
def started(project: Project, instance: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
    """A run of the job that begins a session."""
    return start_session.execute_in_process(
        instance=instance,
        run_config={
            "ops": {"register_session": {"config": {"model": "control_flow"}}},
            "loggers": {"console": {"config": {"log_level": "CRITICAL"}}},
        },
        resources={
            "lake": LakeResource(path=str(project.lake)),
            "runner": InferenceRunner(configs=str(project.configs)),
        },
    )


def decision(instance: dg.DagsterInstance, run: dg.DagsterRun, event: dg.DagsterEvent) -> object:
    """The one thing that the sensor makes of this run's success."""
    context = dg.build_run_status_sensor_context(
        sensor_name="start_observing", dagster_event=event, dagster_instance=instance, dagster_run=run
    )
    made = start_observing(context)
    assert isinstance(made, Iterator)
    (one,) = made
    return one


def test_a_session_that_was_started_is_observed_once(
    started: dg.ExecuteInProcessResult, instance: dg.DagsterInstance
) -> None:
    run = instance.get_run_by_id(started.run_id)
    assert run is not None
    (session,) = instance.get_dynamic_partitions("session")
    event = started.get_run_success_event()
    request = decision(instance, run, event)
    assert isinstance(request, dg.RunRequest)
    assert request.partition_key == session
    assert request.run_key == session  # Dagster runs a key once, however often the sensor asks
    assert request.tags == {SESSION_TAG: session}


def test_a_run_that_registered_no_session_is_passed_over(
    started: dg.ExecuteInProcessResult, instance: dg.DagsterInstance
) -> None:
    run = instance.create_run_for_job(start_session, status=dg.DagsterRunStatus.SUCCESS)
    skip = decision(instance, run, started.get_run_success_event())
    assert isinstance(skip, dg.SkipReason)
    assert skip.skip_message == f"run {run.run_id} registered no session"


def test_only_runs_that_begin_sessions_are_watched_and_observe_is_what_they_lead_to() -> None:
    assert [job.name for job in start_observing.jobs] == [observe.name]
    assert start_observing.default_status == dg.DefaultSensorStatus.RUNNING


def test_without_dead_runs_the_sensor_says_so(instance: dg.DagsterInstance) -> None:
    with dg.build_sensor_context(instance) as context:
        skip = dead_runs(context)
    assert isinstance(skip, dg.SkipReason)
    assert skip.skip_message == "no dead runs"


def test_dead_runs_are_reaped_and_named(instance: dg.DagsterInstance) -> None:
    gone = {**process_tags(), ".dagster/aaco/process/started": "1"}
    run = instance.create_run_for_job(start_session, tags=gone, status=dg.DagsterRunStatus.STARTED)
    with dg.build_sensor_context(instance) as context:
        skip = dead_runs(context)
    assert isinstance(skip, dg.SkipReason)
    assert skip.skip_message is not None
    assert skip.skip_message.startswith(f"freed: run {run.run_id} (its process ")
    after = instance.get_run_by_id(run.run_id)
    assert after is not None
    assert after.status == dg.DagsterRunStatus.FAILURE
