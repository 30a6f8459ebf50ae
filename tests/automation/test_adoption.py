"""Runs of the job show in Dagster what it did not make: whole, once, and in its newest version."""

import shutil
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import dagster as dg
import pytest

from aaco_pipeline.assets.stage import Stage, stages
from aaco_pipeline.automation import adoption
from aaco_pipeline.automation.adoption import adopt_sessions, due, look_of
from aaco_pipeline.automation.resources import PARTITIONS_NAME, LakeResource, add_partition, session_partitions
from aaco_pipeline.automation.sensors import lake_sessions
from aaco_pipeline.automation.stage_events import data_version
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.reanalysis import plan, reanalyse
from aaco_pipeline.resources.host.kernel_files import process_tags
from tests.automation.conftest import QUIET, observe
from tests.conftest import CapturedLake
from tests.places import CONFIGS

RUNS: Final = 20


@pytest.fixture
def lake(captured: CapturedLake, lake_path: Path) -> TraceLake:
    """The captured sessions with all their tables, of which Dagster knows nothing."""
    return captured.copy(lake_path)


def tick(instance: dg.DagsterInstance, lake: TraceLake, cursors: list[str | None]) -> dg.RunRequest | dg.SkipReason:
    """One tick of the sensor; the last of `cursors` is the one it has, and the one it leaves is added."""
    resources = {"lake": LakeResource(path=str(lake.path))}
    with dg.build_sensor_context(instance, cursor=cursors[-1], resources=resources) as context:
        made = lake_sessions(context)
        cursors.append(context.cursor)
    assert isinstance(made, dg.RunRequest | dg.SkipReason)
    return made


def run(instance: dg.DagsterInstance, lake: TraceLake, request: dg.RunRequest) -> dg.ExecuteInProcessResult:
    """The run that the sensor asked for."""
    return adopt_sessions.execute_in_process(
        instance=instance,
        run_config={**request.run_config, **QUIET},
        resources={"lake": LakeResource(path=str(lake.path))},
        raise_on_error=False,
    )


def adopted(instance: dg.DagsterInstance, lake: TraceLake, cursors: list[str | None] | None = None) -> list[str]:
    """Tick and run until nothing is asked for; the sessions in the order they were asked for."""
    cursors, asked = cursors or [None], list[str]()
    for _ in range(RUNS):
        made = tick(instance, lake, cursors)
        if isinstance(made, dg.SkipReason):
            return asked
        asked += made.run_config["ops"]["adopt"]["config"]["sessions"]
        assert run(instance, lake, made).success
    raise AssertionError("it does not come to an end")


def materializations(instance: dg.DagsterInstance, session: str) -> dict[str, list[dg.AssetMaterialization]]:
    """Every materialization that Dagster has of a session, by stage, the newest first."""
    found: dict[str, list[dg.AssetMaterialization]] = {}
    for name in stages():
        asked = dg.AssetRecordsFilter(asset_key=dg.AssetKey(name), asset_partitions=[session])
        records = instance.fetch_materializations(asked, limit=100).records
        found[name] = [one.asset_materialization for one in records if one.asset_materialization is not None]
    return found


def evaluations(instance: dg.DagsterInstance) -> list[Any]:
    """Every check result that Dagster has, by the runs that told of it."""
    entries = [
        entry
        for record in instance.get_runs()
        for entry in instance.all_logs(record.run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION)
    ]
    return [entry.get_dagster_event().asset_check_evaluation_data for entry in entries]


def checks_of(lake: TraceLake, sessions: Sequence[str]) -> Counter[tuple[str, str, str]]:
    """One result of each check of each published stage of these sessions."""
    return Counter(
        (name, check, session)
        for session in sessions
        for name, one in stages().items()
        if lake.manifest(session).of_stage(name)
        for check in ("contract", *(each.name for each in one.checks))
    )


def told(instance: dg.DagsterInstance) -> Counter[tuple[str, str, str]]:
    return Counter((one.asset_key.to_user_string(), one.check_name, one.partition) for one in evaluations(instance))


def test_a_session_of_the_command_is_complete_after_the_adopting_run(
    lake: TraceLake, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: object) -> None:
        raise AssertionError("a stage ran")

    monkeypatch.setattr(Stage, "__call__", forbidden)
    sessions = sorted(lake.sessions(), reverse=True)
    assert adopted(instance, lake) == sessions
    assert set(instance.get_dynamic_partitions(PARTITIONS_NAME)) == set(sessions)
    for session in sessions:
        manifest = lake.manifest(session)
        for name, made in materializations(instance, session).items():
            (one,) = made
            tags = one.tags or {}
            assert one.metadata["dagster/row_count"].value == sum(entry.rows for entry in manifest.of_stage(name))
            assert str(one.metadata["made by"].value).startswith("aaco run on ")
            assert tags["dagster/data_version"] == data_version(manifest.of_stage(name))
            assert tags["dagster/code_version"] == stages()[name].code_version
            for needed in stages()[name].dependencies:
                assert tags[f"dagster/input_data_version/{needed}"] == data_version(manifest.of_stage(needed))
    assert told(instance) == checks_of(lake, sessions)
    for one in evaluations(instance):
        record = instance.fetch_materializations(
            dg.AssetRecordsFilter(asset_key=one.asset_key, asset_partitions=[one.partition]), limit=1
        ).records[0]
        assert (one.passed, one.target_materialization_data.storage_id) == (True, record.storage_id)


def test_the_newest_first_and_no_more_at_once_than_a_run_takes(
    lake: TraceLake, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adoption, "MOST_ADOPTED", 1)
    older, newer = sorted(lake.sessions())
    cursors: list[str | None] = [None]
    for expected in (newer, older):
        made = tick(instance, lake, cursors)
        assert isinstance(made, dg.RunRequest)
        assert made.run_config["ops"]["adopt"]["config"]["sessions"] == [expected]
        assert run(instance, lake, made).success
    assert isinstance(tick(instance, lake, cursors), dg.SkipReason)


def test_nothing_is_asked_for_beside_a_living_run_and_a_dead_one_is_in_nobodys_way(
    lake: TraceLake, instance: dg.DagsterInstance
) -> None:
    living = instance.create_run_for_job(adopt_sessions, tags=process_tags(), status=dg.DagsterRunStatus.STARTED)
    assert isinstance(tick(instance, lake, [None]), dg.SkipReason)
    instance.add_run_tags(living.run_id, {".dagster/aaco/process/started": "1"})
    assert isinstance(tick(instance, lake, [None]), dg.RunRequest)


def test_what_was_found_adopted_is_not_asked_of_dagster_again(
    lake: TraceLake, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    cursors: list[str | None] = [None]
    adopted(instance, lake, cursors)
    asked: list[int] = []
    real = adoption.lacks

    def counted(instance: dg.DagsterInstance, manifests: Any) -> Any:
        asked.append(len(manifests))
        return real(instance, manifests)

    monkeypatch.setattr(adoption, "lacks", counted)
    look = cursors[-1]
    assert look is not None
    assert not due(lake, instance, look)
    assert sum(asked) == 0
    assert not due(lake, instance, look_of(None, time.time()))  # another home, or everything again
    assert sum(asked) == 2


def test_a_session_that_dagster_ran_is_not_adopted(lake: TraceLake, instance: dg.DagsterInstance, session: str) -> None:
    adopted(instance, lake)
    before = {name: len(made) for name, made in materializations(instance, session).items()}
    assert observe(lake, instance, session).success
    assert adopted(instance, lake) == []
    after = {name: len(made) for name, made in materializations(instance, session).items()}
    assert after == {name: count + 1 for name, count in before.items()}


def changed(lake: TraceLake, session: str, version: str) -> None:
    """Publish a stage of a session as other code would: what it had, under another version."""
    manifest = lake.manifest(session)
    lake.commit(manifest.with_stage("timeline", manifest.of_stage("timeline"), version), manifest)


def test_after_three_reanalyses_the_newest_result_shows(
    lake: TraceLake, instance: dg.DagsterInstance, session: str
) -> None:
    cursors: list[str | None] = [None]
    adopted(instance, lake, cursors)
    for version in ("1", "2"):
        changed(lake, session, version)
        assert adopted(instance, lake, cursors) == [session]
    done = reanalyse(lake, plan(lake, ["timeline"], f"session_id = '{session}'"), CONFIGS)
    assert done.sessions == [session]
    assert adopted(instance, lake, cursors) == [session]
    versions = [(one.tags or {})["dagster/code_version"] for one in materializations(instance, session)["timeline"]]
    assert versions == [stages()["timeline"].code_version, "2", "1", stages()["timeline"].code_version]
    assert len(materializations(instance, session)["critical_path"]) == 1


def test_a_stage_that_failed_and_then_passed_shows_as_passed(
    lake: TraceLake, instance: dg.DagsterInstance, session: str
) -> None:
    lake.record_failure(session, "timeline", "broken", "division by zero")
    assert session in adopted(instance, lake)
    assert materializations(instance, session)["timeline"] == []
    assert len(materializations(instance, session)["critical_path"]) == 1
    assert reanalyse(lake, plan(lake, ["timeline"], f"session_id = '{session}'"), CONFIGS).sessions == [session]
    assert adopted(instance, lake) == [session]
    assert len(materializations(instance, session)["timeline"]) == 1
    shown = instance.get_status_by_partition(dg.AssetKey("timeline"), [session], session_partitions) or {}
    assert [status and status.value for status in shown.values()] == ["MATERIALIZED"]


class Killed(BaseException):
    """The process is gone."""


@pytest.mark.parametrize(
    "after", [0, 2, 16, 42, *(pytest.param(after, marks=pytest.mark.nightly) for after in (1, 11, 15, 17, 30))]
)
def test_killed_between_any_two_events_it_doubles_nothing_and_misses_nothing(
    after: int, lake: TraceLake, instance: dg.DagsterInstance, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for other in {*lake.sessions()} - {session}:
        lake.remove(other)
    real, count = dg.OpExecutionContext.log_event, iter(range(1000))

    def logged(context: dg.OpExecutionContext, event: Any) -> None:
        if next(count) == after:
            raise Killed
        real(context, event)

    request = tick(instance, lake, [None])
    assert isinstance(request, dg.RunRequest)
    with monkeypatch.context() as patch:
        patch.setattr(dg.OpExecutionContext, "log_event", logged)
        assert not run(instance, lake, request).success
    assert adopted(instance, lake) == [session]
    assert {name: len(made) for name, made in materializations(instance, session).items()} == dict.fromkeys(stages(), 1)
    assert told(instance) == checks_of(lake, [session])


def test_a_torn_table_shows_as_a_failed_contract(lake: TraceLake, instance: dg.DagsterInstance, session: str) -> None:
    (entry,) = lake.manifest(session).of_table("gaps")
    (lake.path / entry.file).write_bytes(b"torn")
    adopted(instance, lake)
    broken = {(one.asset_key.to_user_string(), one.check_name) for one in evaluations(instance) if not one.passed}
    assert broken == {("timeline", "contract")}


def test_a_torn_session_is_in_no_others_way(lake: TraceLake, instance: dg.DagsterInstance) -> None:
    torn, *others = reversed(lake.sessions())
    for entry in lake.manifest(torn).of_table("sessions"):
        (lake.path / entry.file).write_bytes(b"torn")
    assert adopted(instance, lake)[0] == torn
    for session in (torn, *others):
        assert all(len(made) == 1 for made in materializations(instance, session).values())
    broken = {(one.asset_key.to_user_string(), one.check_name) for one in evaluations(instance) if not one.passed}
    assert ("capture", "contract") in broken


def test_a_materialization_that_the_user_reported_is_of_no_lake(lake: TraceLake, instance: dg.DagsterInstance) -> None:
    add_partition(instance, "reported")
    instance.report_runless_asset_event(dg.AssetMaterialization("capture", partition="reported"))
    assert adoption.once_of(lake, instance, ["reported"]) == set()


def test_what_is_worked_on_is_left_for_later(lake: TraceLake, instance: dg.DagsterInstance, session: str) -> None:
    cursors: list[str | None] = [None]
    with lake.running(session):
        assert session not in adopted(instance, lake, cursors)
    assert adopted(instance, lake, cursors) == [session]


def test_partitions_of_removed_sessions_go_and_those_of_another_lake_stay(
    lake: TraceLake, instance: dg.DagsterInstance, session: str, captured: CapturedLake
) -> None:
    adopted(instance, lake)
    add_partition(instance, "20200101T000000Z-0000000a")
    lake.remove(session)
    shutil.rmtree(lake.raw(session), ignore_errors=True)
    tick(instance, lake, [None])
    assert set(instance.get_dynamic_partitions(PARTITIONS_NAME)) == {
        captured.sessions["squeezenet"],
        "20200101T000000Z-0000000a",
    }


def test_what_the_user_wiped_is_shown_again_at_the_next_look_at_everything(
    lake: TraceLake, instance: dg.DagsterInstance, session: str
) -> None:
    cursors: list[str | None] = [None]
    adopted(instance, lake, cursors)
    instance.wipe_assets([dg.AssetKey("timeline")])
    assert adopted(instance, lake, cursors) == []
    assert set(adopted(instance, lake)) == set(lake.sessions())
    assert len(materializations(instance, session)["timeline"]) == 1


def test_a_look_lasts_as_long_as_it_says() -> None:
    first = look_of(None, 1000.0)
    last = 1000.0 + adoption.EVERYTHING_SECONDS
    assert look_of(first, last - 1.0) == first
    assert look_of(first, last) != first
    assert look_of(first, 999.0) != first, "the clock was set back"
