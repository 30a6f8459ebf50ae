"""The jobs: what a session begun or a capture taken in registers, and what is refused in which words."""

import errno
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import dagster as dg
import pytest

from aaco_pipeline.automation.inbox_runs import REFUSED_TAG
from aaco_pipeline.automation.jobs import StartSession, ingest_capture, start_session
from aaco_pipeline.automation.resources import PARTITIONS_NAME, LakeResource
from aaco_pipeline.automation.runs import SESSION_TAG
from aaco_pipeline.automation.sensors import start_observing
from aaco_pipeline.automation.stage_events import EXIT_CODE_KEY
from aaco_pipeline.capture.discovery import discover_runs
from aaco_pipeline.capture.request import MeasurementRequest, MeasurementSettings, Optimization, Precision
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline import ingestion
from aaco_pipeline.pipeline.ingestion import ingest
from aaco_pipeline.resources.configuration import BUILT_IN_BACKENDS
from aaco_pipeline.resources.host.kernel_files import process_is_gone, process_tags
from aaco_pipeline.resources.measure.runner import InferenceRunner
from aaco_pipeline.resources.project import Project
from tests.automation.conftest import slot_holders


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
        ({"model": "/nowhere/model.onnx"}, 2, "trusted_folders.yaml names these folders"),
        ({"model": "squeezenet", "provider_options": {"a": "b/c"}}, 2, "provider_options.a is 'b/c'"),
        ({"model": "squeezenet", "provider_options": {"backend_path": "x"}}, 2, "names no file"),
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
    assert list(settings) == [name for name in MeasurementSettings.model_fields if name != "interpreter"]
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
    names = ("interpreter", "artefact")  # a program, and a file that stands for the model: never a run's to name
    programs = [{name: sys.executable} for name in names]
    for wrong in ({"batch_size": "many"}, {"colour": "red"}, {"backend": "abacus"}, {"precision": "fp64"}, *programs):
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


KERNELS = (
    '"Kind","Agent_Id","Queue_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name","Correlation_Id",'
    '"Start_Timestamp","End_Timestamp","Workgroup_Size_X","Grid_Size_X"\n'
    '"KERNEL_DISPATCH","Agent 1",1,77,1,5,"scale",3,1000,2000,64,640\n'
)


@pytest.fixture
def dropped(tmp_path: Path) -> Path:
    """A capture in an inbox, without the mark."""
    folder = tmp_path / "inbox/run"
    folder.mkdir(parents=True)
    (folder / "out_kernel_trace.csv").write_text(KERNELS)
    return folder


def ingested(instance: dg.DagsterInstance, project: Project, path: Path) -> dg.ExecuteInProcessResult:
    return ingest_capture.execute_in_process(
        instance=instance,
        run_config={
            "ops": {"take_in_capture": {"config": {"path": str(path), "from_inbox": True}}},
            "loggers": {"console": {"config": {"log_level": "CRITICAL"}}},
        },
        resources={"lake": LakeResource(path=str(project.lake))},
        raise_on_error=False,
    )


def test_only_an_entry_of_the_inbox_is_moved(
    dropped: Path, instance: dg.DagsterInstance, project: Project, tmp_path: Path
) -> None:
    (elsewhere := tmp_path / "mine" / "run").mkdir(parents=True)
    (elsewhere / "out_kernel_trace.csv").write_text(KERNELS)
    (elsewhere / ".done").touch()
    (dropped.parent / "linked").symlink_to(elsewhere)
    (dropped.parent / "taken").mkdir()
    (tmp_path / "bin").symlink_to(tmp_path / "mine")
    inbox = dropped.parent
    hostile = [elsewhere, inbox / "linked", inbox / "taken", inbox / "run" / "..", inbox / ".." / "mine" / "run", inbox]
    for path in (*hostile, tmp_path / "bin" / "run", inbox / "none", Path("run"), dropped / "out_kernel_trace.csv"):
        result = ingested(instance, project, path)
        description, code = failure_of(result)
        assert f"is no entry of the inbox {inbox}" in description
        assert code == 2
        assert "\n" not in description
    assert (elsewhere / ".done").is_file()
    assert sorted(path.name for path in elsewhere.parent.iterdir()) == ["run"]
    assert sorted(path.name for path in inbox.iterdir()) == ["linked", "run", "taken"]
    assert TraceLake(project.lake).captured() == []


def tags_of(instance: dg.DagsterInstance, result: dg.ExecuteInProcessResult) -> Mapping[str, str]:
    run = instance.get_run_by_id(result.run_id)
    assert run is not None
    return run.tags


def test_a_good_capture_becomes_a_session_whose_stages_are_then_asked_for(
    dropped: Path, instance: dg.DagsterInstance, project: Project
) -> None:
    result = ingested(instance, project, dropped)
    assert result.success
    assert dropped.is_dir()  # whoever copies may only have paused
    (session,) = instance.get_dynamic_partitions(PARTITIONS_NAME)
    tags = tags_of(instance, result)
    assert tags[SESSION_TAG] == session
    assert process_is_gone(tags) is False
    run = instance.get_run_by_id(result.run_id)
    assert run is not None
    context = dg.build_run_status_sensor_context(
        sensor_name="start_observing",
        dagster_event=result.get_run_success_event(),
        dagster_instance=instance,
        dagster_run=run,
    )
    requests = start_observing(context)
    assert isinstance(requests, Iterator)
    (request,) = requests
    assert isinstance(request, dg.RunRequest)
    assert request.partition_key == session


def test_what_a_killed_job_left_is_gone_on_with_and_registered(
    dropped: Path, instance: dg.DagsterInstance, project: Project
) -> None:
    """Killed between the raw copy and the partition: Dagster does not know the session."""

    class Killed(BaseException):
        pass

    def killed(session: str) -> None:
        raise Killed

    with pytest.raises(Killed):
        list(ingest(TraceLake(project.lake), discover_runs(dropped), finish=killed))
    (session,) = TraceLake(project.lake).captured()
    result = ingested(instance, project, dropped)
    assert result.success
    assert instance.get_dynamic_partitions(PARTITIONS_NAME) == [session]
    assert tags_of(instance, result)[SESSION_TAG] == session


def test_a_taken_capture_that_says_done_leaves_the_inbox(
    dropped: Path, instance: dg.DagsterInstance, project: Project
) -> None:
    (dropped / ".done").touch()
    (dropped / "other").mkdir()
    (dropped / "other/9_results.db").write_bytes(
        b"SQLite format 3\0 rocpd_metadata_x rocpd_kernel_dispatch" + b"\0" * 99
    )
    assert ingested(instance, project, dropped).success
    assert not dropped.exists()
    assert (dropped.parent / "taken/run/out_kernel_trace.csv").is_file()
    assert "9_results.db" in (dropped.parent / "taken/run.reason.txt").read_text()


def test_a_refused_capture_fails_the_run_with_its_reason_and_is_set_aside(
    dropped: Path, instance: dg.DagsterInstance, project: Project
) -> None:
    (dropped / "out_kernel_trace.csv").unlink()
    (dropped / "photo.png").write_bytes(b"png")
    result = ingested(instance, project, dropped)
    assert failure_of(result)[1] == 6
    assert REFUSED_TAG in tags_of(instance, result)
    assert instance.get_dynamic_partitions(PARTITIONS_NAME) == []
    assert "nothing in it is a capture" in (dropped.parent / "rejected/run.reason.txt").read_text()
    assert (dropped.parent / "rejected/run/photo.png").is_file()


@pytest.mark.parametrize(("number", "code"), [(errno.ENOSPC, 8), (errno.EIO, 6)])
def test_an_error_of_the_system_leaves_the_capture_where_it_is(
    *,
    number: int,
    code: int,
    dropped: Path,
    instance: dg.DagsterInstance,
    project: Project,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*arguments: object, **settings: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(ingestion, "copy_capture", fails)
        result = ingested(instance, project, dropped)
    assert failure_of(result)[1] == code
    assert REFUSED_TAG not in tags_of(instance, result)
    assert dropped.is_dir()
    assert ingested(instance, project, dropped).success
