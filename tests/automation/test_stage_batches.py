"""A backfill's run over several sessions: each told of by itself, and one that fails takes none of the others along.

What Dagster shows of a stage: its metadata, tables, versions and column schema.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import dagster as dg
import polars as pl
import pytest

from aaco_pipeline.analysis.sessions.invariants import Finding
from aaco_pipeline.assets.stage import Outcome, Session, Stage, publish, stages
from aaco_pipeline.automation import stage_assets as stage_batches
from aaco_pipeline.automation import stage_events
from aaco_pipeline.automation.resources import LakeResource, session_partitions
from aaco_pipeline.automation.stage_assets import MOST_RETRIES, MOST_SESSIONS_A_RUN, column_schema, stage_assets
from aaco_pipeline.automation.stage_events import data_version, described, markdown_table
from aaco_pipeline.errors import CaptureError, LakeError, PassingLakeError
from aaco_pipeline.lake.evidence import Evidence
from aaco_pipeline.lake.layout import new_session_id
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline import session_stages
from aaco_pipeline.pipeline.session_stages import CheckResult, checked
from tests.automation.conftest import QUIET, Forbidden, failures, observe
from tests.conftest import CapturedLake
from tests.places import CONFIGS

CHOSEN: Final = ("timeline", "critical_path")


def backfilled(
    lake: TraceLake, instance: dg.DagsterInstance, sessions: Sequence[str], chosen: Sequence[str] = CHOSEN
) -> dg.ExecuteInProcessResult:
    """One run of those stages over all sessions, as Dagster's backfill starts it."""
    return dg.materialize(
        [asset for asset in stage_assets() if len(asset.keys) > 1],
        selection=dg.AssetSelection.assets(*chosen),
        instance=instance,
        resources={"lake": LakeResource(path=str(lake.path)), "runner": Forbidden(configs=str(CONFIGS))},
        tags={"dagster/asset_partition_range_start": sessions[0], "dagster/asset_partition_range_end": sessions[-1]},
        run_config=QUIET,
        raise_on_error=False,
    )


@pytest.fixture
def sessions(captured: CapturedLake, instance: dg.DagsterInstance) -> list[str]:
    """The captured sessions in the order of their partitions."""
    return list(captured.sessions.values())


@pytest.fixture(autouse=True)
def _without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_batches, "FIRST_WAIT_SECONDS", 0.0)


def with_stage(monkeypatch: pytest.MonkeyPatch, name: str, before: Callable[[str], None]) -> None:
    """Have `before` called with the session's id before the stage does its work."""

    def called(one: Stage, session: Session) -> Outcome:
        if one.name == name:
            before(session.id)
        return one.function(session)

    monkeypatch.setattr(Stage, "__call__", called)


def partitions_of(
    instance: dg.DagsterInstance, done: dg.ExecuteInProcessResult, stage: str
) -> dict[str, dg.AssetMaterialization]:
    """Return the stored materializations of a stage in a run, by session."""
    entries = instance.all_logs(done.run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION)
    made = [entry.asset_materialization for entry in entries]
    return {str(one.partition): one for one in made if one is not None and one.asset_key.to_user_string() == stage}


def test_each_session_is_materialized_once_with_its_own_metadata_and_versions(
    analysed: TraceLake, instance: dg.DagsterInstance, sessions: list[str]
) -> None:
    done = backfilled(analysed, instance, sessions)
    assert done.success
    assert len(done.get_asset_materialization_events()) == len(CHOSEN) * len(sessions)
    for stage in CHOSEN:
        made = partitions_of(instance, done, stage)
        assert list(made) == sessions
        for session, one in made.items():
            entries = analysed.manifest(session).of_stage(stage)
            tags: Mapping[str, str] = one.tags or {}
            assert one.metadata["dagster/row_count"].value == sum(entry.rows for entry in entries)
            assert tags["dagster/data_version"] == data_version(entries)
            assert tags["dagster/code_version"] == stages()[stage].code_version
        versions = {(one.tags or {})["dagster/data_version"] for one in made.values()}
        assert len(versions) == len(sessions)


def test_each_session_has_its_own_check_results(
    analysed: TraceLake, instance: dg.DagsterInstance, sessions: list[str]
) -> None:
    done = backfilled(analysed, instance, sessions)
    found = {
        (one.asset_key.to_user_string(), one.check_name, one.partition, one.passed)
        for one in done.get_asset_check_evaluations()
    }
    expected = {
        (stage, check, session, True)
        for stage in CHOSEN
        for check in ("contract", *(each.name for each in stages()[stage].checks))
        for session in sessions
    }
    assert found == expected


def test_a_session_that_fails_is_named_and_the_others_get_all_their_stages(
    analysed: TraceLake, instance: dg.DagsterInstance, sessions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = sessions

    def broken(session: str) -> None:
        if session == bad:
            raise CaptureError("its file is torn")

    with_stage(monkeypatch, "timeline", broken)
    done = backfilled(analysed, instance, sessions)
    assert not done.success
    ((step, (description, code)),) = failures(done).items()
    assert (step, code) == ("stages", CaptureError.exit_code)
    assert description is not None
    assert description.startswith(f"1 of 2 sessions are not done: {bad} ")
    for stage in CHOSEN:
        assert list(partitions_of(instance, done, stage)) == [good]
    assert [state.stage for state in analysed.progress(bad).failed] == ["timeline"]
    assert analysed.progress(good).failed == ()
    for stage in CHOSEN:
        assert instance.get_materialized_partitions(dg.AssetKey(stage)) == {good}
        found = instance.get_status_by_partition(dg.AssetKey(stage), sessions, session_partitions) or {}
        assert {session: status and status.value for session, status in found.items()} == {
            bad: "FAILED",
            good: "MATERIALIZED",
        }


def test_a_stage_run_alone_fails_at_its_end_with_the_code_of_what_failed(
    analysed: TraceLake, instance: dg.DagsterInstance, sessions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(session: str) -> None:
        if session == sessions[0]:
            raise CaptureError("its file is torn")

    with_stage(monkeypatch, "timeline", broken)
    done = backfilled(analysed, instance, sessions, ["timeline"])
    assert failures(done) == {
        "stages": (f"1 of 2 sessions are not done: {sessions[0]} (its file is torn)", CaptureError.exit_code)
    }
    assert list(partitions_of(instance, done, "timeline")) == [sessions[1]]


def test_a_session_whose_check_blocks_is_left_out_of_what_follows_and_its_failed_check_shows(
    analysed: TraceLake, instance: dg.DagsterInstance, sessions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(session: Session, one: Stage, **options: bool) -> Iterator[CheckResult]:
        for result in checked(session, one, **options):
            fails = (session.id, one.name, result.name) == (sessions[0], "timeline", "conservation")
            yield replace(result, finding=Finding(not fails, "made up", {}))

    monkeypatch.setattr(session_stages, "checked", broken)
    monkeypatch.setattr(stage_events, "checked", broken)
    done = backfilled(analysed, instance, sessions)
    assert not done.success
    assert list(partitions_of(instance, done, "timeline")) == sessions
    assert list(partitions_of(instance, done, "critical_path")) == [sessions[1]]
    assert [state.stage for state in analysed.progress(sessions[0]).failed] == ["timeline"]
    told = instance.all_logs(done.run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION)
    found = [each.get_dagster_event().asset_check_evaluation_data for each in told]
    assert [(one.check_name, one.partition) for one in found if not one.passed] == [("conservation", sessions[0])]


def test_an_error_that_may_pass_is_tried_again_for_that_session_alone(
    analysed: TraceLake, instance: dg.DagsterInstance, sessions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []

    def busy(session: str) -> None:
        called.append(session)
        if session == sessions[0] and called.count(session) < 3:
            raise PassingLakeError("the disk is full")

    with_stage(monkeypatch, "timeline", busy)
    done = backfilled(analysed, instance, sessions)
    assert done.success
    assert called == [sessions[0], sessions[1], sessions[0], sessions[0]]
    assert set(partitions_of(instance, done, "critical_path")) == set(sessions)
    assert all(analysed.progress(session).failed == () for session in sessions)


def test_a_session_that_somebody_is_at_work_on_is_waited_for_a_few_times_and_then_named(
    analysed: TraceLake, instance: dg.DagsterInstance, sessions: list[str]
) -> None:
    with analysed.running(sessions[0]):
        done = backfilled(analysed, instance, sessions, ["timeline"])
    assert list(partitions_of(instance, done, "timeline")) == [sessions[1]]
    ((_, (description, code)),) = failures(done).items()
    assert code == LakeError.exit_code
    assert f"the stages of session {sessions[0]} is locked by process" in (description or "")


@pytest.mark.parametrize(("error", "tries"), [(PassingLakeError, MOST_RETRIES + 1), (LakeError, 1), (ValueError, 1)])
def test_of_one_session_only_an_error_that_may_pass_is_tried_again(
    error: type[Exception], tries: int, analysed: TraceLake, instance: dg.DagsterInstance, session: str
) -> None:
    called: list[str] = []

    def broken(session: str) -> None:
        called.append(session)
        raise error("no")

    with pytest.MonkeyPatch.context() as patch:
        with_stage(patch, "timeline", broken)
        done = observe(analysed, instance, session, ["timeline"])
    assert not done.success
    assert len(called) == tries
    if error is PassingLakeError:
        assert failures(done) == {"stages": ("no", LakeError.exit_code)}


def test_a_thousand_sessions_are_one_run_but_of_the_stage_that_may_measure() -> None:
    policies = {key.to_user_string(): asset.backfill_policy for asset in stage_assets() for key in asset.keys}
    assert policies.pop("capture") is None
    assert set(policies.values()) == {dg.BackfillPolicy.multi_run(MOST_SESSIONS_A_RUN)}
    assert MOST_SESSIONS_A_RUN >= 1000


@dataclass(frozen=True)
class Shown:
    """Return what was published of a stage without tables, and its events."""

    metadata: dict[str, Any]
    version: str
    bytes: int


def shown(lake: TraceLake, *items: str, **rest: Any) -> Shown:
    session = Session(lake, new_session_id(), CONFIGS)
    outcome = Outcome({}, [Evidence(item, "present") for item in items], **rest)
    one = replace(stages()["capture"], publishes=(), plots={}, file=None)
    entries = publish(session, one, outcome)
    return Shown(described(session, one, outcome, entries), data_version(entries), entries[0].bytes)


def test_what_was_published_is_described(empty_lake: TraceLake) -> None:
    found = shown(empty_lake, "a", "b", headline={"latency_ns": 5, "unknown": None, "model": "m"})
    assert found.metadata == {
        "dagster/row_count": 2,
        "dagster/uri": str(empty_lake.path),
        "evidence_rows": 2,
        "published_bytes": found.bytes,
        "latency_ns": 5,
        "model": "m",
    }


def test_the_data_version_is_of_what_was_published(empty_lake: TraceLake) -> None:
    def version(*items: str) -> str:
        session = Session(empty_lake, "20260102T030405Z-0a1b2c3d", CONFIGS)
        outcome = Outcome({}, [Evidence(item, "present") for item in items])
        return data_version(publish(session, replace(stages()["capture"], publishes=()), outcome))

    assert version("a") == version("a") != version("b")


def test_a_small_table_is_shown_up_to_ten_rows(empty_lake: TraceLake) -> None:
    preview = pl.DataFrame({"n": range(30)})
    table = shown(empty_lake, "a", preview=preview, preview_title="numbers").metadata["numbers"]
    assert isinstance(table, dg.MarkdownMetadataValue)
    assert table.value is not None
    assert len(table.value.splitlines()) == 2 + 10


def test_an_empty_table_is_not_shown(empty_lake: TraceLake) -> None:
    preview = pl.DataFrame({"n": []}, schema={"n": pl.Int64})
    assert "preview" not in shown(empty_lake, "a", preview=preview).metadata


def test_markdown_escapes_bars_and_tells_nothing_from_zero() -> None:
    frame = pl.DataFrame({"name": ["a|b", None], "count": [1234567, 0], "score": [0.5, None]})
    assert markdown_table(frame).splitlines() == [
        "| name | count | score |",
        "| --- | ---: | ---: |",
        "| a\\|b | 1,234,567 | 0.500 |",
        "| – | 0 | – |",
    ]


def test_a_small_table_is_in_units_that_the_user_reads() -> None:
    frame = pl.DataFrame({"total_ns": [71_516_523, None], "share_ratio": [0.735, 0.0], "read_bytes": [2048, 0]})
    assert markdown_table(frame).splitlines() == [
        "| total | share | read |",
        "| ---: | ---: | ---: |",
        "| 71.52\N{NO-BREAK SPACE}ms | 73.5\N{NO-BREAK SPACE}% | 2.0\N{NO-BREAK SPACE}KiB |",
        "| – | 0.0\N{NO-BREAK SPACE}% | 0\N{NO-BREAK SPACE}B |",
    ]
    assert len(markdown_table(pl.DataFrame({"kernel": ["k" * 300]})).splitlines()[2]) == 40 + 4


def test_the_headline_stands_before_the_amounts(empty_lake: TraceLake) -> None:
    names = list(shown(empty_lake, "a", headline={"class": "device"}, preview=pl.DataFrame({"n": [1]})).metadata)
    assert names[:2] == ["class", "preview"]
    assert names[-1] == "published_bytes"


def test_the_column_schema_names_table_and_column_with_unit() -> None:
    columns = {column.name: column for column in column_schema(stages()["timeline"]).columns}
    assert {name.partition(".")[0] for name in columns} == set(stages()["timeline"].tables)
    start = columns["gaps.start_ns"]
    assert start.type == "int64"
    assert start.description is not None
    assert start.description.endswith("[ns]")
    assert not str(columns["gaps.cause"].description).endswith("]")
    assert not start.constraints.nullable
