"""The schedules of retention and compaction: each asks for a round by the file, which is that of its command."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from aaco_pipeline.automation import schedules
from aaco_pipeline.automation.resources import PARTITIONS_NAME, LakeResource, add_partition
from aaco_pipeline.automation.runs import PARTITION_TAG, SESSION_TAG, SESSIONS_TAG
from aaco_pipeline.automation.schedules import compaction, nightly_compaction, nightly_retention, retention
from aaco_pipeline.automation.stage_events import EXIT_CODE_KEY
from aaco_pipeline.errors import UsageError
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.configuration import load_form
from aaco_pipeline.resources.measure.runner import InferenceRunner
from aaco_pipeline.resources.project_settings import RETENTION_FILE, RetentionSettings
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


@pytest.mark.parametrize("wrong", ["keep: 90", "keep: soon", "keep_last: 0", "keep_baseline: true", "grace: null"])
def test_a_wrong_limit_is_named_with_its_file(wrong: str, tmp_path: Path) -> None:
    (tmp_path / RETENTION_FILE).write_text(wrong)
    with pytest.raises(UsageError, match=rf"{RETENTION_FILE}: (keep|grace)"):
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


def test_a_round_forgets_the_partitions_and_runs_of_what_it_removed(
    lake: TraceLake, instance: dg.DagsterInstance
) -> None:
    add_partition(instance, OLD, NEW)
    gone, stays, beside = (
        instance.add_run(dg.DagsterRun("observe", status=dg.DagsterRunStatus.SUCCESS, tags=tags)).run_id
        for tags in ({PARTITION_TAG: OLD}, {PARTITION_TAG: NEW}, {SESSIONS_TAG: f"{OLD},{NEW}"})
    )
    assert run(lake, instance, keep="90d").success
    assert instance.get_dynamic_partitions(PARTITIONS_NAME) == [NEW]
    left = {run.run_id for run in instance.get_runs()}
    assert (gone in left, stays in left, beside in left) == (False, True, True)


@pytest.mark.parametrize("batch", [1, 100])
def test_runs_that_ended_long_ago_go_once_their_sessions_have(
    batch: int, lake: TraceLake, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedules, "_BATCH", batch)
    lake.remove(OLD)
    ended, started = dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.STARTED
    runs = [
        instance.add_run(dg.DagsterRun("observe", status=status, tags=tags)).run_id
        for status, tags in ((ended, {}), (ended, {SESSION_TAG: NEW}), (ended, {}), (started, {}))
    ]
    assert schedules.forget_removed(lake, instance, datetime(2020, 1, 1, tzinfo=UTC)) == 0
    assert schedules.forget_removed(lake, instance, datetime(2126, 1, 1, tzinfo=UTC)) == 2
    assert {run.run_id for run in instance.get_runs()} == {runs[1], runs[3]}


def test_a_wrong_limit_in_the_launchpad_is_one_line(lake: TraceLake, instance: dg.DagsterInstance) -> None:
    for wrong in ({"keep": "soon"}, {"keep_last": 0}):
        (failed,) = [event for event in run(lake, instance, **wrong).all_events if event.is_step_failure]
        failure = failed.step_failure_data.user_failure_data
        assert failure is not None
        assert failure.metadata[EXIT_CODE_KEY].value == 2
    assert lake.sessions() == [OLD, NEW]


def asked_of_compaction(folder: Path) -> Any:
    with dg.build_schedule_context() as context:
        request = nightly_compaction(context, runner=InferenceRunner(configs=str(folder)))
    assert isinstance(request, dg.RunRequest)
    return request.run_config["ops"]["compact_tables"]["config"]


def test_compaction_is_asked_for_with_the_grace_of_the_file(tmp_path: Path) -> None:
    assert asked_of_compaction(tmp_path) == asked_of_compaction(CONFIGS) == {"grace": "1d"}
    (tmp_path / RETENTION_FILE).write_text("grace: 2w")
    assert asked_of_compaction(tmp_path) == {"grace": "2w"}


def test_a_round_of_compaction_puts_files_together_and_says_how_many(
    lake: TraceLake, instance: dg.DagsterInstance
) -> None:
    done = compaction.execute_in_process(
        instance=instance, run_config=QUIET, resources={"lake": LakeResource(path=str(lake.path))}
    )
    (materialized,) = [e for e in done.all_events if e.is_successful_output]
    told = {name: one.value for name, one in materialized.step_output_data.metadata.items()}
    assert (told["files put together"], told["segments written"], told["files waiting for their grace"]) == (2, 1, 2)
    assert lake.read("sessions").height == 2


def test_a_round_beside_another_fails_in_one_line(lake: TraceLake, instance: dg.DagsterInstance) -> None:
    with lake.compacting():
        done = compaction.execute_in_process(
            instance=instance,
            run_config=QUIET,
            resources={"lake": LakeResource(path=str(lake.path))},
            raise_on_error=False,
        )
    (failed,) = done.get_step_failure_events()
    assert "compaction is locked by process" in str(failed.step_failure_data.error)
