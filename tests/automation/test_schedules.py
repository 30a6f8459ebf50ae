"""The schedule of retention: it asks for a round by the file's limits, and the round is that of `aaco gc`."""

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from aaco_pipeline.automation.schedules import RETENTION_FILE, RetentionSettings, nightly_retention, retention
from aaco_pipeline.automation.stage_assets import EXIT_CODE_KEY
from aaco_pipeline.errors import UsageError
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.configuration import load_form
from aaco_pipeline.resources.dagster_resources import InferenceRunner, LakeResource
from tests.automation.conftest import QUIET
from tests.lake.conftest import _filled
from tests.places import CONFIGS

OLD, NEW = "20200101T000000Z-0000000a", "21200101T000000Z-0000000b"


def asked(folder: Path) -> Any:
    """The configuration of the round that the schedule asks for with the settings in `folder`."""
    with dg.build_schedule_context() as context:
        request = nightly_retention(context, runner=InferenceRunner(configs=str(folder)))
    assert isinstance(request, dg.RunRequest)
    return request.run_config["ops"]["remove_what_is_not_kept"]["config"]


def test_the_package_s_file_and_no_file_are_the_same_limits(tmp_path: Path) -> None:
    assert load_form(CONFIGS / RETENTION_FILE, RetentionSettings) == RetentionSettings()
    assert asked(tmp_path) == asked(CONFIGS) == {"keep": "90d", "keep_last": 10, "keep_baselines": True}


def test_a_project_s_file_holds(tmp_path: Path) -> None:
    (tmp_path / RETENTION_FILE).write_text("{keep: 2w, keep_last: null, keep_baselines: false}")
    assert asked(tmp_path) == {"keep": "2w", "keep_last": None, "keep_baselines": False}


@pytest.mark.parametrize("wrong", ["keep: 90", "keep: soon", "keep_last: 0", "keep_baseline: true"])
def test_a_wrong_limit_is_named_with_its_file(wrong: str, tmp_path: Path) -> None:
    (tmp_path / RETENTION_FILE).write_text(wrong)
    with pytest.raises(UsageError, match=rf"{RETENTION_FILE}: keep"):
        asked(tmp_path)


def run(lake: TraceLake, instance: dg.DagsterInstance, **limits: object) -> dg.ExecuteInProcessResult:
    return retention.execute_in_process(
        instance=instance,
        run_config={"ops": {"remove_what_is_not_kept": {"config": limits}}, **QUIET},
        resources={"lake": LakeResource(path=str(lake.path))},
        raise_on_error=False,
    )


@pytest.fixture
def lake(empty_lake: TraceLake) -> TraceLake:
    for session in (OLD, NEW):
        empty_lake.publish(session, "capture", {"sessions": _filled("sessions", {"workload": ["w"]})})
    return empty_lake


def test_a_round_in_dagster_removes_and_tells(lake: TraceLake, instance: dg.DagsterInstance) -> None:
    assert run(lake, instance, keep="90d", dry_run=True).success
    assert lake.sessions() == [OLD, NEW]
    done = run(lake, instance, keep="90d")
    assert done.success
    assert lake.sessions() == [NEW]
    (output,) = [event for event in done.all_events if event.is_successful_output]
    told = output.step_output_data.metadata
    assert (told["sessions"].value, told["sessions kept"].value) == (1, 1)


def test_a_wrong_limit_in_the_launchpad_is_one_line(lake: TraceLake, instance: dg.DagsterInstance) -> None:
    for wrong in ({"keep": "soon"}, {"keep_last": 0}):
        (failed,) = [event for event in run(lake, instance, **wrong).all_events if event.is_step_failure]
        failure = failed.step_failure_data.user_failure_data
        assert failure is not None
        assert failure.metadata[EXIT_CODE_KEY].value == 2
    assert lake.sessions() == [OLD, NEW]
