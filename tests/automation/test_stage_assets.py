"""Stages as Dagster sees them: what it shows of each, what it checks, and what fails with which code."""

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import dagster as dg
import pytest

from aaco_pipeline.assets.capture import MEASUREMENT_POOL
from aaco_pipeline.assets.stage import stages, views
from aaco_pipeline.automation.resources import LakeResource, add_partition, session_partitions
from aaco_pipeline.automation.stage_assets import stage_assets
from aaco_pipeline.automation.stage_events import EXIT_CODE_KEY, data_version, expected_errors
from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.definitions import build_definitions
from aaco_pipeline.errors import AacoError, CaptureError, LakeError, ModelError, UnavailableError, UsageError
from aaco_pipeline.lake.layout import new_session_id
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.host.kernel_files import process_is_gone
from aaco_pipeline.resources.measure.runner import InferenceRunner
from tests.automation.conftest import (
    QUIET,
    Forbidden,
    failures,
    metadata_of,
    observe,
    raw_only,
    registered,
    slot_holders,
)
from tests.conftest import CapturedLake
from tests.places import CONFIGS
from tests.sessions import unlisted

CHECKS: Final = 27


# An expected error.


@pytest.mark.parametrize("kind", [UsageError, ModelError, UnavailableError, CaptureError, LakeError])
def test_an_expected_error_is_one_line_with_its_exit_code_and_is_not_retried(kind: type[AacoError]) -> None:
    with pytest.raises(dg.Failure) as caught, expected_errors():
        raise kind("what, where and what to do")
    assert caught.value.description == "what, where and what to do"
    assert caught.value.metadata[EXIT_CODE_KEY].value == kind.exit_code
    assert caught.value.allow_retries is False
    assert isinstance(caught.value.__cause__, kind)


def test_a_bug_is_not_dressed_up_as_an_expected_error() -> None:
    with pytest.raises(ZeroDivisionError), expected_errors():
        raise ZeroDivisionError


# The stages run by Dagster: nothing differs from the plain functions but the descriptions around them.


@dataclass(frozen=True)
class Replayed:
    """The captured sessions' raw files alone in a new lake, then observed; made once, to be looked at."""

    lake: TraceLake
    sessions: Mapping[str, str]
    results: Mapping[str, dg.ExecuteInProcessResult]


@pytest.fixture(scope="module")
def replayed(captured: CapturedLake, new_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replayed]:
    folder = tmp_path_factory.mktemp("replayed")
    shutil.copytree(new_home, folder / "home", symlinks=True)
    with dg.DagsterInstance.from_config(str(folder / "home")) as instance:
        lake = raw_only(captured, folder / "lake", instance)
        results = {model: observe(lake, instance, session) for model, session in captured.sessions.items()}
        yield Replayed(lake, captured.sessions, results)


@pytest.fixture
def runner() -> InferenceRunner:
    return InferenceRunner(configs=str(CONFIGS))


def test_a_session_is_measured_and_all_its_stages_and_checks_succeed(
    empty_lake: TraceLake, instance: dg.DagsterInstance, runner: InferenceRunner
) -> None:
    session = registered(empty_lake, instance, MeasurementRequest(model="control_flow", iterations=2, warmup=1))
    result = observe(empty_lake, instance, session, runner=runner)
    assert failures(result) == {}
    assert result.success
    assert set(metadata_of(result)) == set(stages())
    checks = result.get_asset_check_evaluations()
    assert len(checks) == CHECKS
    assert [f"{c.asset_key.to_user_string()}.{c.check_name}: {c.description}" for c in checks if not c.passed] == []
    assert {check.partition for check in checks} == {session}
    assert empty_lake.sessions() == [session]
    assert empty_lake.requests() == []
    assert {entry.stage for entry in empty_lake.manifest(session).entries} == set(stages())
    # The slot is given back, and the run says whose it was.
    assert slot_holders(instance, MEASUREMENT_POOL) == set()
    assert instance.event_log_storage.get_concurrency_info(MEASUREMENT_POOL).slot_count == 1
    run = instance.get_run_by_id(result.run_id)
    assert run is not None
    assert process_is_gone(run.tags) is False


def test_dagster_publishes_what_the_plain_functions_publish(replayed: Replayed, captured: CapturedLake) -> None:
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
        ("session_environment", "devices"),
        ("inference_run", "metrics"),
        ("inference_run", "latency of each measured iteration"),
        ("kernel_trace", "kernels"),
        ("timeline", "top kernels"),
        ("critical_path", "where the path's time went"),
        ("model_graph", "operators"),
        ("roofline", "kernels and their nearest roofs"),
        ("classification", "bottlenecks of the top kernels"),
        ("optimization_loop", "kernels to make faster, the first first"),
    }


def everything_of(lake: TraceLake) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in lake.path.rglob("*") if path.is_file() and ".locks" not in path.parts}


@pytest.mark.parametrize("chosen", [None, *([stage] for stage in stages())], ids=lambda s: s[0] if s else "all")
def test_materializing_again_measures_nothing_and_leaves_the_same_bytes(
    chosen: list[str] | None, analysed: TraceLake, session: str, instance: dg.DagsterInstance
) -> None:
    before = everything_of(analysed)
    result = observe(analysed, instance, session, chosen)
    assert failures(result) == {}
    assert result.success
    assert everything_of(analysed) == before


@pytest.mark.nightly
def test_the_versions_are_the_same_when_code_and_data_are(
    analysed: TraceLake, session: str, instance: dg.DagsterInstance
) -> None:
    def versions() -> dict[str, tuple[str | None, str | None]]:
        events = observe(analysed, instance, session).get_asset_materialization_events()
        told = ((e.materialization.asset_key.to_user_string(), e.materialization.tags or {}) for e in events)
        return {name: (tags.get("dagster/data_version"), tags.get("dagster/code_version")) for name, tags in told}

    first = versions()
    for name, one in stages().items():
        assert first[name] == (data_version(analysed.manifest(session).of_stage(name)), one.code_version)
    assert versions() == first


# What fails, and what then does not happen.


def test_a_session_that_nobody_asked_for_fails_with_the_code_of_bad_usage(
    empty_lake: TraceLake, instance: dg.DagsterInstance
) -> None:
    session = new_session_id()
    add_partition(instance, session)
    result = observe(empty_lake, instance, session)
    assert not result.success
    ((step, (description, code)),) = failures(result).items()
    assert (step, code) == ("capture", 2)
    assert description is not None
    assert f"session {session} has neither a capture nor a request to measure" in description


def test_a_capture_that_fails_leaves_no_raw_publishes_nothing_and_frees_the_slot(
    empty_lake: TraceLake, instance: dg.DagsterInstance, runner: InferenceRunner, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"not a model")
    session = registered(empty_lake, instance, MeasurementRequest(model=str(broken)))
    result = observe(empty_lake, instance, session, runner=runner)
    assert not result.success
    ((step, (description, code)),) = failures(result).items()
    assert (step, code) == ("capture", 3)
    assert "broken.onnx: cannot be loaded" in (description or "")
    assert metadata_of(result) == {}
    assert not empty_lake.raw(session).exists()
    assert empty_lake.manifest(session).entries == ()
    assert [state.stage for state in empty_lake.progress(session).failed] == ["capture"]
    assert empty_lake.requests() == [session]
    assert slot_holders(instance, MEASUREMENT_POOL) == set()


def test_a_stage_without_what_it_reads_fails_as_itself_and_stops_only_what_needs_it(
    analysed: TraceLake, session: str, instance: dg.DagsterInstance
) -> None:
    (unlisted(analysed.raw(session)) / "onnxruntime_profile.json.gz").write_bytes(b"damaged")
    result = observe(analysed, instance, session)
    assert {step: code for step, (_, code) in failures(result).items()} == {"stages": 6}
    untouched = {"session_environment", "inference_run", "telemetry", "kernel_plane", "iteration_delays"}
    shown = {name for name in stages() if session in instance.get_materialized_partitions(dg.AssetKey(name))}
    assert shown == {"capture", *untouched}
    statuses = instance.get_status_by_partition(dg.AssetKey("kernel_trace"), [session], session_partitions)
    assert [status and status.value for status in (statuses or {}).values()] == ["FAILED"]


def test_the_definitions_hold_the_assets_of_all_stages_and_of_campaigns() -> None:
    keys = build_definitions().resolve_asset_graph().get_all_asset_keys()
    assert {key.to_user_string() for key in keys} == {
        *stages(),
        *views(),
        *("campaign_sessions", "campaign_verdicts", "history", "alerts", "optimization"),
    }


def test_a_stage_that_may_measure_is_of_one_session_a_run(
    unanalysed: TraceLake, captured: CapturedLake, instance: dg.DagsterInstance
) -> None:
    sessions = list(captured.sessions.values())
    done = dg.materialize(
        [asset for asset in stage_assets() if dg.AssetKey("capture") in asset.keys],
        instance=instance,
        resources={"lake": LakeResource(path=str(unanalysed.path)), "runner": Forbidden(configs=str(CONFIGS))},
        tags={"dagster/asset_partition_range_start": sessions[0], "dagster/asset_partition_range_end": sessions[-1]},
        run_config=QUIET,
        raise_on_error=False,
    )
    assert not done.success
    assert unanalysed.sessions() == []
