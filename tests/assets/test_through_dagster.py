"""The same stages run by Dagster: nothing differs from the plain functions but the descriptions around them."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from aaco_pipeline.assets.capture import MEASUREMENT_POOL
from aaco_pipeline.assets.checks import STAGE_ASSETS
from aaco_pipeline.assets.stage import EXIT_CODE_KEY
from aaco_pipeline.automation.dead_runs import slot_holders
from aaco_pipeline.automation.sessions import PARTITIONS_NAME, register
from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.definitions import build_definitions
from aaco_pipeline.lake.identity import new_session_id
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.dagster_resources import InferenceRunner, LakeResource
from aaco_pipeline.resources.host.process_identity import process_is_gone
from aaco_pipeline.resources.project import Project

CHECKS = 21


class Forbidden(InferenceRunner):
    """Whoever measures again breaks the promise."""

    def capture(self, launch: MeasurementRequest, folder: Path, log: Callable[[str], None]) -> None:
        raise AssertionError("it measured again")


def observe(
    lake: TraceLake,
    instance: dg.DagsterInstance,
    session: str,
    runner: InferenceRunner,
    stages: list[str] | None = None,
) -> dg.ExecuteInProcessResult:
    """Run the job `observe`, or some of its stages, for one session."""
    definitions = build_definitions(resource_overrides={"lake": LakeResource(path=str(lake.path)), "runner": runner})
    return definitions.resolve_job_def("observe").execute_in_process(
        instance=instance,
        partition_key=session,
        asset_selection=None if stages is None else [dg.AssetKey(stage) for stage in stages],
        run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
        raise_on_error=False,
    )


def metadata_of(result: dg.ExecuteInProcessResult) -> dict[str, Mapping[str, dg.MetadataValue[Any]]]:
    events = result.get_asset_materialization_events()
    return {e.materialization.asset_key.to_user_string(): e.materialization.metadata for e in events}


def failures(result: dg.ExecuteInProcessResult) -> dict[str, tuple[str | None, Any]]:
    """Failed steps, each with its description and exit code."""
    found: dict[str, tuple[str | None, Any]] = {}
    for event in result.all_events:
        if event.is_step_failure and event.step_key is not None:
            failure = event.step_failure_data.user_failure_data
            assert failure is not None, event.step_failure_data.error
            found[event.step_key] = (failure.description, failure.metadata[EXIT_CODE_KEY].value)
    return found


@pytest.fixture
def runner(project: Project) -> InferenceRunner:
    return InferenceRunner(configs=str(project.configs))


@pytest.fixture
def forbidden(project: Project) -> InferenceRunner:
    return Forbidden(configs=str(project.configs))


@pytest.fixture
def lake(lake_path: Path) -> TraceLake:
    return TraceLake(lake_path)


@dataclass(frozen=True)
class Replayed:
    """The captured sessions' raw files alone in a new lake, then observed; made once, to be looked at."""

    lake: TraceLake
    sessions: Mapping[str, str]
    results: Mapping[str, dg.ExecuteInProcessResult]


@pytest.fixture(scope="module")
def replayed(captured: Any, new_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replayed]:
    folder = tmp_path_factory.mktemp("replayed")
    shutil.copytree(new_home, folder / "home", symlinks=True)
    lake, results = TraceLake(folder / "lake"), {}
    with dg.DagsterInstance.from_config(str(folder / "home")) as instance:
        for model, session in captured.sessions.items():
            shutil.copytree(captured.lake.raw(session), lake.raw(session))
            instance.add_dynamic_partitions(PARTITIONS_NAME, [session])
            results[model] = observe(lake, instance, session, Forbidden(configs="unused"))
        yield Replayed(lake, captured.sessions, results)


def test_a_session_is_measured_and_all_its_stages_and_checks_succeed(
    lake: TraceLake, instance: dg.DagsterInstance, runner: InferenceRunner
) -> None:
    session = register(lake, instance, MeasurementRequest(model="control_flow", iterations=2, warmup=1))
    result = observe(lake, instance, session, runner)
    assert failures(result) == {}
    assert result.success
    assert set(metadata_of(result)) == set(STAGE_ASSETS)
    checks = result.get_asset_check_evaluations()
    assert len(checks) == CHECKS
    assert [f"{c.asset_key.to_user_string()}.{c.check_name}: {c.description}" for c in checks if not c.passed] == []
    assert {check.partition for check in checks} == {session}
    assert lake.sessions() == [session]
    assert lake.requests() == []
    assert {entry.stage for entry in lake.manifest(session).entries} == set(STAGE_ASSETS)


def test_a_run_that_measured_has_given_the_slot_back_and_says_whose_it_was(
    lake: TraceLake, instance: dg.DagsterInstance, runner: InferenceRunner
) -> None:
    session = register(lake, instance, MeasurementRequest(model="control_flow", iterations=1, warmup=0))
    result = observe(lake, instance, session, runner, ["capture"])
    assert result.success
    assert slot_holders(instance, MEASUREMENT_POOL) == set()
    assert instance.event_log_storage.get_concurrency_info(MEASUREMENT_POOL).slot_count == 1
    run = instance.get_run_by_id(result.run_id)
    assert run is not None
    assert process_is_gone(run.tags) is False


def test_dagster_publishes_what_the_plain_functions_publish(replayed: Replayed, captured: Any) -> None:
    for model, session in replayed.sessions.items():
        assert replayed.results[model].success
        manifest = Path("manifests", f"{session}.json")
        assert (replayed.lake.path / manifest).read_bytes() == (captured.lake.path / manifest).read_bytes()


def test_numbers_keep_their_names_from_session_to_session(replayed: Replayed) -> None:
    """So that Dagster draws each as a line over all sessions. A figure that was not found is a hole in its line."""
    holes = {"score"}  # where no label has enough support
    numbers = {
        model: {
            stage: {name for name, value in metadata.items() if isinstance(value.value, int | float)} - holes
            for stage, metadata in metadata_of(result).items()
        }
        for model, result in replayed.results.items()
    }
    assert numbers["control_flow"] == numbers["squeezenet"]
    for stage, names in numbers["squeezenet"].items():
        assert {"dagster/row_count", "published_bytes", "evidence_rows"} <= names, stage
    assert {"latency_p50_ns", "latency_p90_ns", "throughput_per_s"} <= numbers["squeezenet"]["inference_run"]
    assert {"active_ratio", "busy_ns"} <= numbers["squeezenet"]["timeline"]


def test_figures_in_the_interface_are_those_of_the_tables(replayed: Replayed) -> None:
    session = replayed.sessions["squeezenet"]
    for stage, metadata in metadata_of(replayed.results["squeezenet"]).items():
        entries = replayed.lake.manifest(session).of_stage(stage)
        assert metadata["dagster/row_count"].value == sum(entry.rows for entry in entries)
        assert metadata["dagster/uri"].value == str(replayed.lake.path)
        for entry in entries:
            assert metadata[f"{entry.table}_rows"].value == entry.rows


def test_every_stage_that_has_something_to_show_shows_a_table(replayed: Replayed) -> None:
    shown = {
        (stage, name)
        for stage, metadata in metadata_of(replayed.results["squeezenet"]).items()
        for name, value in metadata.items()
        if isinstance(value, dg.MarkdownMetadataValue)
    }
    assert shown == {
        ("session_environment", "environment"),
        ("inference_run", "metrics"),
        ("inference_run", "latency"),
        ("kernel_trace", "operators"),
        ("timeline", "top kernels"),
        ("critical_path", "where the path's time went"),
        ("model_graph", "operators"),
        ("roofline", "kernels and their nearest roofs"),
        ("classification", "bottlenecks of the top kernels"),
    }


@pytest.mark.parametrize("stages", [None, *([stage] for stage in STAGE_ASSETS)], ids=lambda s: s[0] if s else "all")
def test_materializing_again_measures_nothing_and_leaves_the_same_bytes(
    stages: list[str] | None,
    captured: Any,
    lake_path: Path,
    instance: dg.DagsterInstance,
    forbidden: InferenceRunner,
) -> None:
    lake, session = captured.copy(lake_path), captured.sessions["control_flow"]
    instance.add_dynamic_partitions(PARTITIONS_NAME, [session])
    before = {path: path.read_bytes() for path in lake.path.rglob("*") if path.is_file() and ".locks" not in path.parts}
    result = observe(lake, instance, session, forbidden, stages)
    assert failures(result) == {}
    assert result.success
    after = {path: path.read_bytes() for path in lake.path.rglob("*") if path.is_file() and ".locks" not in path.parts}
    assert after == before


def test_the_data_version_is_the_same_when_the_data_are(
    captured: Any, lake_path: Path, instance: dg.DagsterInstance, forbidden: InferenceRunner
) -> None:
    lake, session = captured.copy(lake_path), captured.sessions["control_flow"]
    instance.add_dynamic_partitions(PARTITIONS_NAME, [session])

    def versions() -> dict[str, str | None]:
        events = observe(lake, instance, session, forbidden).get_asset_materialization_events()
        return {
            e.materialization.asset_key.to_user_string(): (e.materialization.tags or {}).get("dagster/data_version")
            for e in events
        }

    first = versions()
    assert None not in first.values()
    assert versions() == first


# What fails, and what then does not happen.


def test_a_session_that_nobody_asked_for_fails_with_the_code_of_bad_usage(
    lake: TraceLake, instance: dg.DagsterInstance, forbidden: InferenceRunner
) -> None:
    session = new_session_id()
    instance.add_dynamic_partitions(PARTITIONS_NAME, [session])
    result = observe(lake, instance, session, forbidden)
    assert not result.success
    ((step, (description, code)),) = failures(result).items()
    assert (step, code) == ("capture", 2)
    assert description is not None
    assert f"session {session} has neither a capture nor a launch request" in description


def test_a_capture_that_fails_leaves_no_raw_publishes_nothing_and_frees_the_slot(
    lake: TraceLake, instance: dg.DagsterInstance, runner: InferenceRunner, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"not a model")
    session = register(lake, instance, MeasurementRequest(model=str(broken)))
    result = observe(lake, instance, session, runner)
    assert not result.success
    ((step, (description, code)),) = failures(result).items()
    assert (step, code) == ("capture", 3)
    assert "broken.onnx: cannot be loaded" in (description or "")
    assert metadata_of(result) == {}
    assert not lake.raw(session).exists()
    assert lake.sessions() == []
    assert lake.requests() == [session]
    assert slot_holders(instance, MEASUREMENT_POOL) == set()


def test_a_stage_without_what_it_reads_fails_as_itself_and_stops_only_what_needs_it(
    captured: Any, lake_path: Path, instance: dg.DagsterInstance, forbidden: InferenceRunner
) -> None:
    lake, session = captured.copy(lake_path), captured.sessions["control_flow"]
    (lake.raw(session) / "onnxruntime_profile.json.gz").write_bytes(b"damaged")
    instance.add_dynamic_partitions(PARTITIONS_NAME, [session])
    result = observe(lake, instance, session, forbidden)
    assert {step: code for step, (_, code) in failures(result).items()} == {"kernel_trace": 6}
    assert set(metadata_of(result)) == {"capture", "session_environment", "inference_run", "telemetry"}
