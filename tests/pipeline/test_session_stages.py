"""A session's stages run in this process: Dagster then knows of the run what its own executor would have left."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import dagster as dg
import polars as pl
import pytest
from dagster._core.remote_origin import InProcessCodeLocationOrigin
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import InProcessWorkspaceLoadTarget
from dagster_graphql.test.utils import execute_dagster_graphql

from aaco_pipeline.assets.stage import Outcome, Session, Stage, stages
from aaco_pipeline.automation import session_runs
from aaco_pipeline.automation.attempts import SESSION_TAG
from aaco_pipeline.automation.stage_assets import check_specs
from aaco_pipeline.automation.stage_events import EXIT_CODE_KEY, CheckError, data_version
from aaco_pipeline.errors import CaptureError
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.session_stages import run_session
from aaco_pipeline.resources.host.process_identity import process_is_gone
from tests.automation.conftest import metadata_of, observe, raw_only
from tests.conftest import CapturedLake
from tests.places import CONFIGS

MEASURING: Final = "aaco_pipeline.resources.measure.inference.capture_inference"
PARTITION_TAG: Final = "dagster/partition"

Ask = Callable[..., Any]


def asked(instance: dg.DagsterInstance, query: str, **variables: Any) -> Any:
    """What the interface shows: the answer of its GraphQL schema over this project's definitions."""
    origin = InProcessCodeLocationOrigin(
        LoadableTargetOrigin(module_name="aaco_pipeline.definitions"), location_name="aaco_pipeline"
    )
    with WorkspaceProcessContext(instance, InProcessWorkspaceLoadTarget(origin)) as context:
        answer = execute_dagster_graphql(context.create_request_context(), query, variables)
        assert not answer.errors, answer.errors
        return answer.data


def the_run(instance: dg.DagsterInstance) -> dg.DagsterRun:
    """The newest run."""
    return instance.get_runs(limit=1)[0]


def steps(instance: dg.DagsterInstance, run_id: str, kind: dg.DagsterEventType) -> list[str]:
    """Names of the stages with such an event, in order."""
    events = (entry.dagster_event for entry in instance.all_logs(run_id, of_type=kind))
    return [str(event.step_key) for event in events if event is not None]


def unmade(lake: TraceLake, session: str) -> list[str]:
    """Stages of which nothing is published."""
    return [stage for stage in stages() if not lake.manifest(session).of_stage(stage)]


@dataclass(frozen=True)
class Ran:
    """One captured session whose stages were run once, to be looked at."""

    instance: dg.DagsterInstance
    lake: TraceLake
    session: str
    run_id: str


@pytest.fixture(scope="module")
def ran(captured: CapturedLake, new_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    folder = tmp_path_factory.mktemp("ran")
    shutil.copytree(new_home, folder / "home", symlinks=True)
    session = captured.sessions["squeezenet"]
    with dg.DagsterInstance.from_config(str(folder / "home")) as instance:
        lake = raw_only(captured, folder / "lake", instance)
        run_session(lake, instance, session, CONFIGS)
        yield Ran(instance, lake, session, the_run(instance).run_id)


# A run that succeeds.


def test_the_run_is_one_of_the_job_observe_that_succeeded_with_its_session_and_its_process(ran: Ran) -> None:
    run = ran.instance.get_run_by_id(ran.run_id)
    assert run is not None
    assert (run.job_name, run.status) == ("observe", dg.DagsterRunStatus.SUCCESS)
    assert (run.tags[PARTITION_TAG], run.tags[SESSION_TAG]) == (ran.session, ran.session)
    assert process_is_gone(run.tags) is False
    (record,) = ran.instance.get_run_records(dg.RunsFilter(run_ids=[ran.run_id]))
    assert record.start_time is not None
    assert record.end_time is not None
    assert record.start_time <= record.end_time


def test_every_stage_is_a_step_that_began_and_succeeded_in_order(ran: Ran) -> None:
    for kind in (dg.DagsterEventType.STEP_START, dg.DagsterEventType.STEP_SUCCESS):
        assert steps(ran.instance, ran.run_id, kind) == list(stages())


def test_the_stages_publish_what_the_plain_functions_publish(ran: Ran, captured: CapturedLake) -> None:
    manifest = Path("manifests", f"{ran.session}.json")
    assert (ran.lake.path / manifest).read_bytes() == (captured.lake.path / manifest).read_bytes()


def materializations(instance: dg.DagsterInstance, run_id: str) -> dict[str, dg.AssetMaterialization]:
    entries = instance.all_logs(run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION)
    made = [entry.asset_materialization for entry in entries]
    return {one.asset_key.to_user_string(): one for one in made if one is not None}


def test_every_stage_is_materialized_with_its_versions_and_those_of_what_it_read(ran: Ran) -> None:
    found = materializations(ran.instance, ran.run_id)
    assert list(found) == list(stages())
    manifest = ran.lake.manifest(ran.session)
    for name, made in found.items():
        one, tags = stages()[name], dict(made.tags or {})
        assert made.partition == ran.session
        assert tags.pop("dagster/code_version") == one.code_version
        assert tags.pop("dagster/data_version") == data_version(manifest.of_stage(name))
        for needed in one.dependencies:
            read = data_version(manifest.of_stage(needed))
            assert tags.pop(f"dagster/input_data_version/{needed}") == read
            assert tags.pop(f"dagster/input_event_pointer/{needed}").isdigit()
        assert not [tag for tag in tags if tag.startswith("dagster/input")]


def test_what_is_shown_and_checked_is_what_dagsters_own_executor_leaves(
    ran: Ran, captured: CapturedLake, instance: dg.DagsterInstance, lake_path: Path
) -> None:
    lake = raw_only(captured, lake_path, instance)
    result = observe(lake, instance, ran.session)

    def comparable(metadata: Mapping[str, Any]) -> dict[str, str]:
        return {name: str(value).replace(str(lake.path), str(ran.lake.path)) for name, value in metadata.items()}

    own = {name: made.metadata for name, made in materializations(ran.instance, ran.run_id).items()}
    theirs = metadata_of(result)
    assert {name: comparable(told) for name, told in own.items()} == {name: comparable(theirs[name]) for name in own}
    entries = ran.instance.all_logs(ran.run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION)
    checks = [entry.dagster_event.asset_check_evaluation_data for entry in entries if entry.dagster_event is not None]

    def told(one: Any) -> tuple[Any, ...]:
        figures = tuple(sorted((name, str(value)) for name, value in one.metadata.items()))
        return one.asset_key, one.check_name, one.passed, one.severity, one.blocking, one.partition, figures

    assert sorted(map(str, map(told, checks))) == sorted(map(str, map(told, result.get_asset_check_evaluations())))


NODES: Final = """
query Nodes($partitions: [String!], $assets: [AssetKeyInput!]) {
  assetNodes(assetKeys: $assets) {
    assetKey { path }
    staleStatusByPartition(partitions: $partitions)
    staleCausesByPartition(partitions: $partitions) { reason key { path } }
    partitionStats { numMaterialized numFailed numMaterializing }
    assetPartitionStatuses { ... on DefaultPartitionStatuses { materializedPartitions failedPartitions } }
    latestMaterializationByPartition(partitions: $partitions) { runId metadataEntries { label } }
  }
}
"""
CHECK: Final = """
query Check($asset: AssetKeyInput!, $check: String!, $partition: String) {
  assetCheckExecutions(assetKey: $asset, checkName: $check, limit: 5, partition: $partition) {
    runId status partition
    evaluation { success severity description partition targetMaterialization { runId } metadataEntries { label } }
  }
}
"""


def nodes(instance: dg.DagsterInstance, session: str) -> dict[str, Any]:
    """What the interface shows of a session's stages."""
    own = [{"path": [name]} for name in stages()]
    found = asked(instance, NODES, partitions=[session], assets=own)["assetNodes"]
    return {"/".join(node["assetKey"]["path"]): node for node in found}


def stale(instance: dg.DagsterInstance, session: str) -> dict[str, Any]:
    """Stages that the interface does not show as fresh, with why."""
    return {
        name: (node["staleStatusByPartition"], node["staleCausesByPartition"])
        for name, node in nodes(instance, session).items()
        if node["staleStatusByPartition"] != ["FRESH"]
    }


def test_the_interface_shows_the_session_materialized_and_fresh_throughout(ran: Ran) -> None:
    found = nodes(ran.instance, ran.session)
    assert set(found) == set(stages())
    for node in found.values():
        assert node["assetPartitionStatuses"] == {"materializedPartitions": [ran.session], "failedPartitions": []}
        assert node["partitionStats"] == {"numMaterialized": 1, "numFailed": 0, "numMaterializing": 0}
        (latest,) = node["latestMaterializationByPartition"]
        assert latest["runId"] == ran.run_id
        assert "dagster/row_count" in {entry["label"] for entry in latest["metadataEntries"]}
    assert stale(ran.instance, ran.session) == {}


@pytest.mark.parametrize("stage", ["inference_run", "kernel_trace", "roofline", "report"])
def test_the_interface_shows_every_check_of_the_session_by_its_partition(stage: str, ran: Ran) -> None:
    for spec in check_specs(stages()[stage]):
        variables = {"asset": {"path": [stage]}, "check": spec.name}
        answer = asked(ran.instance, CHECK, **variables, partition=ran.session)
        (execution,) = answer["assetCheckExecutions"]
        evaluation = execution.pop("evaluation")
        assert execution == {"runId": ran.run_id, "status": "SUCCEEDED", "partition": ran.session}
        assert evaluation["success"] is True
        assert evaluation["severity"] == ("ERROR" if spec.blocking else "WARN")
        assert evaluation["targetMaterialization"] == {"runId": ran.run_id}
        assert evaluation["description"]
        assert evaluation["metadataEntries"]
        assert asked(ran.instance, CHECK, **variables, partition="another") == {"assetCheckExecutions": []}


@pytest.mark.parametrize("stage", ["kernel_trace", "report"])
def test_nothing_is_stale_after_one_stage_was_run_again_alone(
    stage: str, unanalysed: TraceLake, session: str, instance: dg.DagsterInstance
) -> None:
    run_session(unanalysed, instance, session, CONFIGS)
    run_session(unanalysed, instance, session, CONFIGS, only=(stage,))
    assert the_run(instance).status == dg.DagsterRunStatus.SUCCESS
    assert steps(instance, the_run(instance).run_id, dg.DagsterEventType.STEP_SUCCESS) == [stage]
    assert stale(instance, session) == {}


def test_what_is_derived_is_forgotten_once_no_later_stage_asks_for_it(
    unanalysed: TraceLake, session: str, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, call = [], Stage.__call__

    def telling(one: Stage, opened: Session) -> Outcome:
        told.append(one.name)
        return call(one, opened)

    monkeypatch.setattr(Stage, "__call__", telling)
    monkeypatch.setattr(Session, "forget", lambda _: told.append("forgotten"))
    run_session(unanalysed, instance, session, CONFIGS)
    before = told[: told.index("forgotten")]
    assert {"completeness", "timeline", "critical_path"} < set(before)
    assert before[-1] == "classification"


def test_stages_that_derive_are_known_where_their_source_is_not_there() -> None:
    """As in a bytecode-only installation; words about it do not count."""
    made: dict[str, Callable[[Session], Outcome]] = {}
    exec("def asks(session):\n    return session.derive(len, ())\ndef tells(session):\n    'session.derive'", made)
    one = stages()["telemetry"]
    assert session_runs._derives(replace(one, function=made["asks"]))
    assert not session_runs._derives(replace(one, function=made["tells"]))
    deriving = {name for name, one in stages().items() if session_runs._derives(one)}
    assert deriving == {"classification", "completeness", "critical_path", "timeline"}


def test_a_stage_that_changed_makes_what_reads_from_it_stale_until_that_is_run_again(
    unanalysed: TraceLake, session: str, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_session(unanalysed, instance, session, CONFIGS)
    real = Stage.__call__

    def fewer(one: Stage, opened: Session) -> Outcome:
        outcome = real(one, opened)
        if one.name != "telemetry":
            return outcome
        return replace(outcome, tables={**outcome.tables, "system_samples": outcome.tables["system_samples"].head(1)})

    monkeypatch.setattr(Stage, "__call__", fewer)
    run_session(unanalysed, instance, session, CONFIGS, only=("telemetry",))
    found = stale(instance, session)
    reading = {name for name, one in stages().items() if "telemetry" in one.dependencies}
    assert reading == {"classification", "perfetto_trace", "regression"} <= set(found)
    assert "telemetry" not in found
    run_session(unanalysed, instance, session, CONFIGS, only=(*reading, "report"))
    assert stale(instance, session) == {}


# A run that fails.


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, BaseException], None]:
    """Makes one stage raise instead of doing anything."""
    real = Stage.__call__

    def arrange(name: str, error: BaseException) -> None:
        def call(one: Stage, opened: Session) -> Outcome:
            if one.name == name:
                raise error
            return real(one, opened)

        monkeypatch.setattr(Stage, "__call__", call)

    return arrange


def test_a_stage_that_fails_fails_the_run_with_its_stack_and_those_after_it_keep_what_they_had(
    unanalysed: TraceLake,
    session: str,
    instance: dg.DagsterInstance,
    failing: Callable[[str, BaseException], None],
) -> None:
    failing("timeline", CaptureError("what, where and what to do"))
    with pytest.raises(CaptureError, match="what, where and what to do"):
        run_session(unanalysed, instance, session, CONFIGS)
    run = the_run(instance)
    assert run.status == dg.DagsterRunStatus.FAILURE
    (entry,) = instance.all_logs(run.run_id, of_type=dg.DagsterEventType.STEP_FAILURE)
    assert entry.dagster_event is not None
    assert entry.dagster_event.step_key == "timeline"
    failure = entry.dagster_event.step_failure_data
    assert failure.error is not None
    assert failure.error.cls_name == "CaptureError"
    assert any("session_runs.py" in line for line in failure.error.stack)
    assert failure.user_failure_data is not None
    assert failure.user_failure_data.description == "what, where and what to do"
    assert failure.user_failure_data.metadata[EXIT_CODE_KEY].value == CaptureError.exit_code
    order = list(stages())
    assert unmade(unanalysed, session) == order[order.index("timeline") :]
    assert steps(instance, run.run_id, dg.DagsterEventType.STEP_START) == order[: order.index("timeline") + 1]
    found = nodes(instance, session)
    assert found["timeline"]["assetPartitionStatuses"] == {"materializedPartitions": [], "failedPartitions": [session]}
    assert found["report"]["assetPartitionStatuses"] == {"materializedPartitions": [], "failedPartitions": []}
    assert found["kernel_trace"]["assetPartitionStatuses"]["materializedPartitions"] == [session]


def test_a_failed_stage_is_no_longer_failed_once_it_was_run_again(
    unanalysed: TraceLake,
    session: str,
    instance: dg.DagsterInstance,
    failing: Callable[[str, BaseException], None],
) -> None:
    failing("inference_run", ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        run_session(unanalysed, instance, session, CONFIGS)
    failing("no stage", ZeroDivisionError())
    assert nodes(instance, session)["inference_run"]["partitionStats"]["numFailed"] == 1
    run_session(unanalysed, instance, session, CONFIGS)
    assert unmade(unanalysed, session) == []
    assert stale(instance, session) == {}
    assert {node["partitionStats"]["numFailed"] for node in nodes(instance, session).values()} == {0}


def test_a_broken_promise_that_blocks_ends_the_run_and_is_shown_as_failed(
    unanalysed: TraceLake, session: str, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Stage.__call__

    def wrong(one: Stage, opened: Session) -> Outcome:
        outcome = real(one, opened)
        if one.name != "kernel_trace":
            return outcome
        slower = outcome.tables["dispatches"].with_columns(pl.col("self_ns") + 10**9)
        return replace(outcome, tables={**outcome.tables, "dispatches": slower})

    monkeypatch.setattr(Stage, "__call__", wrong)
    with pytest.raises(CheckError, match="Check conservation of kernel_trace failed: "):
        run_session(unanalysed, instance, session, CONFIGS)
    assert the_run(instance).status == dg.DagsterRunStatus.FAILURE
    order = list(stages())
    assert unmade(unanalysed, session) == order[order.index("kernel_trace") + 1 :]
    asset = {"path": ["kernel_trace"]}
    answer = asked(instance, CHECK, asset=asset, check="conservation", partition=session)
    (execution,) = answer["assetCheckExecutions"]
    assert (execution["status"], execution["evaluation"]["success"]) == ("FAILED", False)


def test_an_interrupted_run_is_canceled(
    unanalysed: TraceLake,
    session: str,
    instance: dg.DagsterInstance,
    failing: Callable[[str, BaseException], None],
) -> None:
    failing("telemetry", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        run_session(unanalysed, instance, session, CONFIGS)
    assert the_run(instance).status == dg.DagsterRunStatus.CANCELED


def test_a_run_that_is_deleted_takes_its_events_along(
    unanalysed: TraceLake, session: str, instance: dg.DagsterInstance
) -> None:
    run_session(unanalysed, instance, session, CONFIGS, only=("capture",))
    run = the_run(instance)
    assert instance.all_logs(run.run_id)
    instance.delete_run(run.run_id)
    assert instance.get_runs() == []
    assert instance.all_logs(run.run_id) == []
    assert nodes(instance, session)["capture"]["latestMaterializationByPartition"] == [None]


# The measurement slot.
