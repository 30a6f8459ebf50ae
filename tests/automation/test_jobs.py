"""Beginning a session from the launchpad's settings: what is registered, and what is refused in which words."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import dagster as dg
import pytest

from aaco_pipeline.automation.dead_runs import slot_holders
from aaco_pipeline.automation.jobs import StartSession, start_session
from aaco_pipeline.automation.partitions import PARTITIONS_NAME
from aaco_pipeline.automation.session_runs import SESSION_TAG
from aaco_pipeline.automation.stage_assets import EXIT_CODE_KEY
from aaco_pipeline.capture.request import MeasurementRequest, MeasurementSettings, Optimization, Precision
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.configuration import BUILT_IN_BACKENDS
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
        input_shapes={"x": [2, 64]},
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

    monkeypatch.setattr("aaco_pipeline.resources.measure.inference.capture_inference", measure)
    assert start(project, instance, model="squeezenet").success
    assert slot_holders(instance, "measurement") == set()
    assert not (project.lake / "raw").exists()


@pytest.mark.parametrize(
    ("config", "code", "words"),
    [
        ({"model": "squeezenett"}, 2, "did you mean squeezenet?"),
        ({"model": "squeezenet", "batch_size": 0}, 2, "batch_size is 0; expected at least 1"),
        ({"model": "squeezenet", "iterations": -5}, 2, "iterations is -5; expected at least 1"),
        ({"model": "squeezenet", "timeout_seconds": 0.0}, 2, "timeout_seconds is 0.0; expected more than 0"),
        (
            {"model": "squeezenet", "input_shapes": {"data_0": [-1]}},
            2,
            "data_0.0 is -1; expected at least 0",
        ),
        ({"model": "squeezenet", "backend": "migraphx", "counters": "basic,most"}, 2, "unknown set 'most'"),
        ({"model": "squeezenet", "backend": "migraphx", "thread_trace": "gemm\n"}, 2, "thread_trace is 'gemm\\n'"),
        ({"model": "squeezenet", "profile": True}, 2, "rocprofv3 sees AMD GPUs only"),
        ({"model": "squeezenet", "output_tokens": 4}, 2, "go together"),
        ({"model": "squeezenet", "input_shapes": {"data": [1]}}, 2, "no input 'data'; its inputs are data_0"),
        ({"model": "squeezenet", "batch_size": 2}, 2, "fixed batch dimension 1"),
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


def launchpad(job: dg.JobDefinition) -> dict[str, Any]:
    """The settings that the launchpad opens with."""
    settings: dict[str, Any] = job.run_config["ops"]["register_session"]["config"]  # type: ignore[index]
    return settings


def test_the_launchpad_opens_with_every_setting_and_the_commands_defaults() -> None:
    settings = launchpad(start_session)
    assert list(settings) == list(MeasurementSettings.model_fields)
    assert MeasurementRequest(**settings) == MeasurementRequest(model="squeezenet")


def test_what_the_launchpad_opens_with_begins_a_session(project: Project, instance: dg.DagsterInstance) -> None:
    assert start(project, instance, **launchpad(start_session)).success
    (session,) = instance.get_dynamic_partitions(PARTITIONS_NAME)
    requested = TraceLake(project.lake).requested(session)
    assert requested is not None
    assert MeasurementRequest.from_json(requested, "test") == MeasurementRequest(model="squeezenet")


def test_the_launchpad_offers_names_as_choices() -> None:
    schema = StartSession.to_fields_dict()
    offered = {
        name: [value.config_value for value in field.config_type.enum_values]
        for name, field in schema.items()
        if isinstance(field.config_type, dg.Enum)
    }
    assert offered == {
        "backend": list(BUILT_IN_BACKENDS),
        "precision": list(get_args(Precision)),
        "optimization": list(get_args(Optimization)),
    }


def test_settings_of_the_wrong_kind_are_refused_before_there_is_a_run(
    project: Project, instance: dg.DagsterInstance
) -> None:
    for wrong in ({"batch_size": "many"}, {"colour": "red"}, {"backend": "abacus"}, {"precision": "fp64"}):
        with pytest.raises(dg.DagsterInvalidConfigError, match=next(iter(wrong))):
            start(project, instance, **{"model": "squeezenet", **wrong})
    assert instance.get_runs() == []


def test_a_dead_run_is_cleared_away_before_a_session_begins(
    project: Project, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    gone = {**process_tags(), ".dagster/aaco/process/started": "1"}
    dead = instance.create_run_for_job(start_session, tags=gone, status=dg.DagsterRunStatus.STARTED)
    assert start(project, instance, model="control_flow").success
    run = instance.get_run_by_id(dead.run_id)
    assert run is not None
    assert run.status == dg.DagsterRunStatus.FAILURE
