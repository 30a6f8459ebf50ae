"""Beginning a session from the launchpad's settings: what is registered, and what is refused in which words."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from aaco_pipeline.assets.stage import EXIT_CODE_KEY
from aaco_pipeline.automation.dead_runs import slot_holders
from aaco_pipeline.automation.jobs import SESSION_TAG, StartSession, start_session
from aaco_pipeline.automation.sessions import PARTITIONS_NAME
from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.errors import UsageError
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.dagster_resources import InferenceRunner, LakeResource
from aaco_pipeline.resources.host.process_identity import process_is_gone, process_tags
from aaco_pipeline.resources.project import Project


def start(project: Project, instance: dg.DagsterInstance, **config: Any) -> dg.ExecuteInProcessResult:
    """Run the job with these settings, as the launchpad does."""
    return start_session.execute_in_process(
        instance=instance,
        run_config={
            "ops": {"register_session": {"config": config}},
            "loggers": {"console": {"config": {"log_level": "CRITICAL"}}},
        },
        resources={
            "lake": LakeResource(path=str(project.lake)),
            "runner": InferenceRunner(configs=str(project.configs)),
        },
        raise_on_error=False,
    )


def failure_of(result: dg.ExecuteInProcessResult) -> tuple[str, object]:
    """What the failed step says to a person, and the exit code it records."""
    (event,) = [event for event in result.all_events if event.is_step_failure]
    failure = event.step_failure_data.user_failure_data
    assert failure is not None, event.step_failure_data.error
    return failure.description or "", failure.metadata[EXIT_CODE_KEY].value


def test_settings_become_a_registered_session_and_a_tagged_run(project: Project, instance: dg.DagsterInstance) -> None:
    result = start(
        project,
        instance,
        model="control_flow",
        iterations=7,
        warmup=0,
        seed=3,
        batch_size=2,
        threads=1,
        timeout_seconds=30.0,
        allow_fallback=True,
        input_shapes={"x": [2, 64]},
    )
    assert result.success
    (session,) = instance.get_dynamic_partitions(PARTITIONS_NAME)
    lake = TraceLake(project.lake)
    requested = lake.requested(session)
    assert requested is not None
    assert MeasurementRequest.from_json(requested, "test") == MeasurementRequest(
        model="control_flow",
        iterations=7,
        warmup=0,
        seed=3,
        batch_size=2,
        threads=1,
        timeout_seconds=30.0,
        allow_fallback=True,
        input_shapes={"x": (2, 64)},
    )
    run = instance.get_run_by_id(result.run_id)
    assert run is not None
    assert run.tags[SESSION_TAG] == session
    assert process_is_gone(run.tags) is False


def test_starting_measures_nothing_and_holds_no_slot(
    project: Project, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(*_: object) -> None:
        raise AssertionError("it measured")

    monkeypatch.setattr("aaco_pipeline.resources.dagster_resources.capture_inference", measure)
    assert start(project, instance, model="squeezenet").success
    assert slot_holders(instance, "measurement") == set()
    assert not (project.lake / "raw").exists()


@pytest.mark.parametrize(
    ("config", "code", "words"),
    [
        ({"model": "squeezenett"}, 2, "did you mean squeezenet?"),
        ({"model": "squeezenet", "backend": "abacus"}, 2, "unknown backend 'abacus'; known: cpu"),
        ({"model": "squeezenet", "batch_size": 0}, 2, "batch_size is 0; expected 1 or more"),
        ({"model": "squeezenet", "iterations": -5}, 2, "iterations is -5; expected 1 or more"),
        ({"model": "squeezenet", "precision": "fp64"}, 2, "precision is 'fp64'; expected one of"),
        ({"model": "squeezenet", "timeout_seconds": 0.0}, 2, "timeout is 0 s"),
        ({"model": "squeezenet", "input_shapes": {"data_0": [-1]}}, 2, "no dimension is negative"),
        ({"model": "squeezenet", "precision": "int8"}, 4, "cannot convert a model to int8"),
        ({"model": "/nowhere/model.onnx"}, 3, "/nowhere/model.onnx: no such file"),
    ],
)
def test_settings_that_cannot_be_meant_fail_in_one_line_and_register_nothing(
    config: Mapping[str, Any], code: int, words: str, project: Project, instance: dg.DagsterInstance
) -> None:
    result = start(project, instance, **config)
    assert not result.success
    description, recorded = failure_of(result)
    assert words in description
    assert "\n" not in description
    assert recorded == code
    assert instance.get_dynamic_partitions(PARTITIONS_NAME) == []
    assert not project.lake.exists()


def test_the_launchpads_defaults_are_the_commands_defaults() -> None:
    assert StartSession.model_validate({"model": "m"}).launch() == MeasurementRequest(model="m")


def test_settings_out_of_range_are_usage_errors() -> None:
    with pytest.raises(UsageError, match="seed is -1"):
        StartSession.model_validate({"model": "m", "seed": -1}).launch()


def test_settings_of_the_wrong_kind_are_refused_by_dagster(project: Project, instance: dg.DagsterInstance) -> None:
    with pytest.raises(dg.DagsterInvalidConfigError, match="batch_size"):
        start(project, instance, model="squeezenet", batch_size="many")
    with pytest.raises(dg.DagsterInvalidConfigError, match="colour"):
        start(project, instance, model="squeezenet", colour="red")


def test_a_dead_run_is_cleared_away_before_a_session_begins(
    project: Project, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    gone = {**process_tags(), "aaco/process/started": "1"}
    dead = instance.create_run_for_job(start_session, tags=gone, status=dg.DagsterRunStatus.STARTED)
    assert start(project, instance, model="control_flow").success
    run = instance.get_run_by_id(dead.run_id)
    assert run is not None
    assert run.status == dg.DagsterRunStatus.FAILURE
