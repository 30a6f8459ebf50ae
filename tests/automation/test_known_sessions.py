"""What the lake holds and Dagster does not show becomes known with state and checks; nothing is measured again."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from unittest.mock import patch

import dagster as dg
import pytest
from dagster._core.event_api import PartitionKeyFilter

from aaco_pipeline.assets.stage import Stage, stages
from aaco_pipeline.automation import sensors
from aaco_pipeline.automation.known_sessions import events_of, make_known, unknown_sessions
from aaco_pipeline.automation.partitions import PARTITIONS_NAME
from aaco_pipeline.automation.resources import LakeResource
from aaco_pipeline.automation.sensors import lake_sessions
from aaco_pipeline.automation.stage_assets import check_specs
from aaco_pipeline.automation.stage_events import data_version
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.session_stages import run_session
from tests.conftest import CapturedLake
from tests.places import CONFIGS


@pytest.fixture
def lake(captured: CapturedLake, lake_path: object, monkeypatch: pytest.MonkeyPatch) -> TraceLake:
    """The captured sessions, which nobody may touch or compute again."""

    def forbidden(*_: object) -> None:
        raise AssertionError("a stage ran")

    monkeypatch.setattr(Stage, "__call__", forbidden)
    return captured.lake


def tick(instance: dg.DagsterInstance, lake: TraceLake, cursors: list[str | None] | None = None) -> list[str]:
    """One tick of the sensor; the sessions that became known.

    The last of `cursors` is the one it has, and the one it leaves is added.
    """
    cursors = [None] if cursors is None else cursors
    resources = {"lake": LakeResource(path=str(lake.path))}
    with (
        patch.object(sensors, "make_known", side_effect=make_known) as made,
        dg.build_sensor_context(instance, cursor=cursors[-1], resources=resources) as context,
    ):
        lake_sessions(context)
        cursors.append(context.cursor)
    return [call.args[2] for call in made.call_args_list]


def stored(instance: dg.DagsterInstance, session: str) -> Iterator[tuple[str, str, bool]]:
    """Every check result that Dagster has of a session."""
    for one in stages().values():
        for spec in check_specs(one):
            for record in instance.event_log_storage.get_asset_check_execution_history(
                spec.key, limit=5, partition_filter=PartitionKeyFilter(key=session)
            ):
                assert record.event is not None
                evaluation = record.event.dagster_event.asset_check_evaluation_data  # type: ignore[union-attr]
                yield one.name, spec.name, evaluation.passed


def test_a_new_home_is_told_of_every_session_with_state_and_checks_within_two_ticks(
    lake: TraceLake, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sensors, "MOST_SESSIONS", 1)
    newest_first = sorted(lake.sessions(), reverse=True)
    assert [tick(instance, lake) for _ in range(3)] == [[newest_first[0]], [newest_first[1]], []]
    assert set(instance.get_dynamic_partitions(PARTITIONS_NAME)) == set(newest_first)
    for session in newest_first:
        manifest = lake.manifest(session)
        for name, one in stages().items():
            record = instance.get_latest_data_version_record(dg.AssetKey(name), partition_key=session)
            assert record is not None
            made = record.asset_materialization
            assert made is not None
            assert made.metadata["dagster/row_count"].value == sum(entry.rows for entry in manifest.of_stage(name))
            tags = made.tags or {}
            assert tags["dagster/data_version"] == data_version(manifest.of_stage(name))
            assert tags["dagster/code_version"] == one.code_version
        checks = list(stored(instance, session))
        assert [(name, check) for name, check, _ in checks] == [
            (one.name, spec.name) for one in stages().values() for spec in check_specs(one)
        ]
        assert {passed for *_, passed in checks} == {True}


def test_what_was_cut_off_in_the_middle_goes_on_where_it_was(lake: TraceLake, instance: dg.DagsterInstance) -> None:
    session = lake.sessions()[0]
    events = list(events_of(lake, instance, session, ()))
    for event in events[: len(events) // 2]:
        instance.report_runless_asset_event(event)
    shown = unknown_sessions(lake, instance)[session]
    assert set() < shown < set(stages())
    make_known(lake, instance, session, shown)
    assert session not in unknown_sessions(lake, instance)
    checks = [(name, check) for name, check, _ in stored(instance, session)]
    assert len(checks) == len(set(checks)) == sum(len(check_specs(one)) for one in stages().values())


def test_a_session_that_somebody_is_at_work_on_is_left_to_it(lake: TraceLake, instance: dg.DagsterInstance) -> None:
    older, newer = lake.sessions()
    assert list(unknown_sessions(lake, instance, {older})) == [newer]


def test_a_torn_table_is_told_by_its_check_and_hides_nothing_else(
    captured: CapturedLake, empty_lake: TraceLake, instance: dg.DagsterInstance
) -> None:
    lake = captured.copy(empty_lake.path)
    session = captured.sessions["control_flow"]
    (entry,) = lake.manifest(session).of_table("dispatches")
    (lake.path / entry.file).write_bytes(b"torn")
    make_known(lake, instance, session, ())
    checks = {(name, check): passed for name, check, passed in stored(instance, session)}
    assert not checks["kernel_trace", "contract"]
    assert checks["capture", "contract"]
    assert session not in unknown_sessions(lake, instance)


def test_dagster_is_not_asked_about_sessions_that_were_found_known_but_for_once_an_hour(
    lake: TraceLake, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    cursors: list[str | None] = [None]
    older, newer = lake.sessions()
    assert [tick(instance, lake, cursors) for _ in range(2)] == [[newer, older], []]
    asked: list[set[str] | None] = []
    storage = instance.event_log_storage
    ask = storage.get_latest_storage_id_by_partition

    def noted(key: dg.AssetKey, made: dg.DagsterEventType, partitions: set[str] | None = None) -> Mapping[str, int]:
        asked.append(partitions)
        return ask(key, made, partitions)

    monkeypatch.setattr(storage, "get_latest_storage_id_by_partition", noted)
    assert tick(instance, lake, cursors) == []
    assert asked == []
    instance.delete_dynamic_partition(PARTITIONS_NAME, older)
    assert tick(instance, lake, cursors) == [older]
    assert asked == [{older}] * len(stages())
    instance.wipe_assets([dg.AssetKey("telemetry")])
    assert tick(instance, lake, cursors) == []
    assert len(set(cursors[1:])) == 1
    an_hour_ago, _, name = str(cursors[-1]).partition(" ")
    cursors.append(f"{int(an_hour_ago) - 3601} {name}")
    assert tick(instance, lake, cursors) == [newer, older]


def test_a_stage_that_another_host_publishes_of_a_known_session_is_found(
    captured: CapturedLake, empty_lake: TraceLake, instance: dg.DagsterInstance
) -> None:
    lake = captured.copy(empty_lake.path)
    session = captured.sessions["control_flow"]
    whole = lake.manifest(session)
    path = lake.manifest_path(session, "session")
    path.write_bytes(replace(whole, stages=whole.stages[:-1]).to_bytes())
    cursors: list[str | None] = [None]
    assert session in tick(instance, lake, cursors)
    assert tick(instance, lake, cursors) == []
    path.write_bytes(whole.to_bytes())
    assert tick(instance, lake, cursors) == [session]


def test_what_was_found_known_from_a_home_that_was_deleted_is_told_to_the_next(
    lake: TraceLake, instance: dg.DagsterInstance
) -> None:
    cursors: list[str | None] = [None]
    assert len(tick(instance, lake, cursors)) == 2
    assert tick(instance, lake, cursors) == []
    with dg.DagsterInstance.ephemeral() as other:
        other.add_dynamic_partitions(PARTITIONS_NAME, lake.sessions())
        assert len(tick(other, lake)) == 2


def test_after_a_run_of_its_own_a_session_is_known(
    captured: CapturedLake, empty_lake: TraceLake, instance: dg.DagsterInstance
) -> None:
    lake = captured.copy(empty_lake.path)
    session = captured.sessions["control_flow"]
    instance.add_dynamic_partitions(PARTITIONS_NAME, [session])
    run_session(lake, instance, session, CONFIGS, only=("telemetry",))
    assert unknown_sessions(lake, instance)[session] == {"telemetry"}
