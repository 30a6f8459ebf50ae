"""Definitions load in silence, and everything in the interface has a description."""

import importlib
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

import dagster as dg
import pytest
import yaml

from aaco_pipeline.assets.capture import MEASUREMENT_POOL
from aaco_pipeline.assets.stage import stages, views
from aaco_pipeline.automation.resources import LakeResource, session_partitions
from aaco_pipeline.automation.stage_assets import stage_assets
from aaco_pipeline.definitions import build_definitions
from aaco_pipeline.lake.contracts import all_tables
from aaco_pipeline.resources.measure.runner import InferenceRunner
from tests.places import ROOT

GROUPS: Final = {"capture", "analysis", "judgement", "optimization", "presentation"}
STAGE_ASSETS: Final = {spec.key.to_user_string(): asset for asset in stage_assets() for spec in asset.specs}
SPECS: Final = {spec.key.to_user_string(): spec for asset in stage_assets() for spec in asset.specs}
CHECKS: Final = {
    f"{spec.asset_key.to_user_string()}.{spec.name}": spec for asset in stage_assets() for spec in asset.check_specs
}


def test_the_definitions_load_anywhere_without_a_single_warning(tmp_path: Path) -> None:
    """In a fresh interpreter, because a module warns only when it is first imported, and in an empty folder."""
    code = "import dagster as dg, aaco_pipeline.definitions as d; dg.Definitions.validate_loadable(d.defs)"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert list(tmp_path.iterdir()) == []


def test_definitions_are_loadable_with_the_resources_of_a_test(lake_path: Path) -> None:
    lake, runner = LakeResource(path=str(lake_path)), InferenceRunner(configs="elsewhere")
    definitions = build_definitions(resource_overrides={"lake": lake, "runner": runner})
    dg.Definitions.validate_loadable(definitions)
    assert definitions.resources == {"lake": lake, "runner": runner}
    assert not lake_path.exists()


def test_one_resource_can_be_overridden_and_the_other_is_the_projects() -> None:
    runner = InferenceRunner(configs="elsewhere")
    resources = build_definitions(resource_overrides={"runner": runner}).resources
    assert resources == {"runner": runner, "lake": LakeResource()}


def test_the_projects_lake_and_settings_are_looked_for_when_they_are_used(
    lake_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, runner = LakeResource(), InferenceRunner()
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "inner")
    assert lake.open().path == tmp_path / "inner" / "tracelake"
    (tmp_path / "dagster.yaml").touch()
    assert (lake.open().path, runner.folder) == (tmp_path / "tracelake", tmp_path / "configs")
    monkeypatch.setenv("AACO_LAKE", str(lake_path))
    assert (lake.open().path, runner.folder) == (lake_path, tmp_path / "configs")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dagster.yaml", "inner"]


def test_every_stage_is_one_asset_of_its_name() -> None:
    assert set(SPECS) == set(STAGE_ASSETS) == {*stages(), *views()}
    assert len(SPECS) == 18


@pytest.mark.parametrize("stage", sorted(STAGE_ASSETS))
def test_every_asset_is_described(stage: str) -> None:
    spec = SPECS[stage]
    assert spec.group_name in GROUPS
    assert spec.kinds
    assert spec.owners
    assert spec.description is not None
    assert spec.description.strip().endswith((".", "?"))
    assert spec.partitions_def is session_partitions


@pytest.mark.parametrize("stage", sorted(STAGE_ASSETS))
def test_every_column_of_every_asset_has_a_meaning(stage: str) -> None:
    schema = SPECS[stage].metadata["dagster/column_schema"]
    assert isinstance(schema, dg.TableSchema)
    assert bool(schema.columns) == (stage not in views())
    for column in schema.columns:
        table, _, name = column.name.partition(".")
        declared = {c.name: c for c in all_tables()[table].all_columns}[name]
        assert column.type == declared.dtype
        assert column.description is not None
        assert column.description.startswith(declared.meaning)
        assert column.constraints.nullable == declared.nullable


def test_a_session_flows_from_its_capture_to_its_timeline() -> None:
    flow = {name: {dep.asset_key.to_user_string() for dep in spec.deps} for name, spec in SPECS.items()}
    first = {"inference_run", "kernel_trace", "completeness"}
    traced = {*first, "timeline"}
    started = {"capture", "session_environment"}
    assert flow == {
        "capture": set(),
        "session_environment": {"capture"},
        "inference_run": {"capture"},
        "kernel_trace": {"capture", "inference_run"},
        "telemetry": {"capture"},
        "kernel_plane": {"capture"},
        "iteration_delays": {"inference_run", "kernel_plane"},
        "completeness": {*started, "inference_run", "kernel_trace"},
        "timeline": first,
        "critical_path": {"session_environment", *traced},
        "model_graph": traced - {"completeness"},
        "att_enrichment": {"kernel_trace", "completeness"},
        "roofline": {"capture", "session_environment", "model_graph", *traced},
        "classification": {
            *("capture", "session_environment", "telemetry", "critical_path", "model_graph", "att_enrichment"),
            *("roofline", *traced),
        },
        "perfetto_trace": {
            "capture",
            "session_environment",
            "telemetry",
            "kernel_plane",
            "iteration_delays",
            "critical_path",
            *(traced - {"completeness"}),
        },
        "regression": {
            *("capture", "session_environment", "telemetry", "model_graph", "classification", "iteration_delays"),
            *(traced - {"completeness"}),
        },
        "optimization_loop": {"classification", "critical_path", "kernel_trace", "roofline", "timeline"},
        "report": {"model_graph", "perfetto_trace", "classification", "regression", "optimization_loop"},
    }


def test_only_what_measures_holds_the_measurement_pool() -> None:
    pools = {stage: asset.op.pool for stage, asset in STAGE_ASSETS.items()}
    assert pools == {stage: MEASUREMENT_POOL if stage == "capture" else None for stage in STAGE_ASSETS}


@pytest.mark.parametrize("name", CHECKS)
def test_every_check_is_partitioned_and_described(name: str) -> None:
    assert CHECKS[name].partitions_def is session_partitions
    assert CHECKS[name].description


def test_checks_block_where_a_wrong_table_would_poison_what_follows() -> None:
    assert {name: check.blocking for name, check in CHECKS.items()} == {
        **{f"{stage}.contract": True for stage in stages()},
        "inference_run.conservation": True,
        "inference_run.plausibility": True,
        "kernel_trace.conservation": True,
        "kernel_plane.conservation": True,
        "iteration_delays.conservation": True,
        "kernel_trace.coverage": False,
        "timeline.conservation": True,
        "critical_path.conservation": True,
        "model_graph.conservation": True,
        "att_enrichment.conservation": True,
        "roofline.plausibility": False,
    }


def test_views_are_made_when_somebody_asks_and_never_by_themselves() -> None:
    assert {"perfetto_trace", "report"} == set(views()) < set(STAGE_ASSETS)
    for name in views():
        assert SPECS[name].automation_condition is None
        assert SPECS[name].code_version is None
        assert not [check for check in CHECKS if check.startswith(f"{name}.")]


def test_observe_is_every_stage_and_every_check_of_one_session_and_no_view() -> None:
    job = build_definitions().resolve_job_def("observe")
    selected = job.asset_layer.executable_asset_keys
    assert {key.to_user_string() for key in selected} == set(stages())
    checks = {f"{k.asset_key.to_user_string()}.{k.name}" for k in job.asset_layer.asset_graph.asset_check_keys}
    assert checks == set(CHECKS)
    assert job.partitions_def == session_partitions
    assert job.executor_def is dg.in_process_executor


def test_the_launchpad_explains_every_setting_and_can_be_launched_as_it_is() -> None:
    job = build_definitions().resolve_job_def("start_session")
    assert job.description
    op = job.graph.node_defs[0]
    assert isinstance(op, dg.OpDefinition)
    assert op.config_field is not None
    settings = op.config_field.config_type.fields  # type: ignore[attr-defined]
    assert settings
    assert [name for name, setting in settings.items() if not setting.description] == []
    assert [name for name, setting in settings.items() if setting.is_required] == []


def test_sensors_are_on_by_default_and_described_but_for_the_one_that_reruns_what_is_stale() -> None:
    sensors = build_definitions().sensors
    assert sensors is not None
    found = {sensor.name: sensor for sensor in sensors if isinstance(sensor, dg.SensorDefinition)}
    assert set(found) == {
        *("start_observing", "dead_runs", "capture_inbox", "lake_sessions"),
        *("unfinished_sessions", "unfinished_campaigns", "due_confirmations"),
        *("rocm_stack_changed", "run_failed", "regression_found", "stale_stages"),
    }
    off = {name for name, sensor in found.items() if sensor.default_status == dg.DefaultSensorStatus.STOPPED}
    assert off == {"stale_stages"}
    assert all(sensor.description for sensor in found.values())


def test_schedules_are_off_until_the_user_switches_them_on() -> None:
    found = {one.name: one for one in build_definitions().schedules or () if isinstance(one, dg.ScheduleDefinition)}
    assert set(found) == {"nightly_baseline", "nightly_retention", "nightly_compaction"}
    assert {one.default_status for one in found.values()} == {dg.DefaultScheduleStatus.STOPPED}
    assert all(one.description for one in found.values())


def test_dagster_yaml_lets_old_ticks_go() -> None:
    kept = yaml.safe_load((ROOT / "dagster.yaml").read_text())["retention"]["sensor"]["purge_after_days"]
    assert (kept["skipped"], kept["failure"], kept["success"]) == (7, 30, 90)


def test_dagster_yaml_gives_the_measurement_one_slot(dagster_home: Path) -> None:
    with dg.DagsterInstance.from_config(str(dagster_home)) as instance:
        assert instance.get_concurrency_config().pool_config.default_pool_limit == 1
        storage = instance.event_log_storage
        assert storage.initialize_concurrency_limit_to_default(MEASUREMENT_POOL)
        first = storage.claim_concurrency_slot(MEASUREMENT_POOL, "run-1", "capture")
        second = storage.claim_concurrency_slot(MEASUREMENT_POOL, "run-2", "capture")
        assert (first.is_claimed, second.is_claimed) == (True, False)
        assert storage.get_concurrency_info(MEASUREMENT_POOL).slot_count == 1


def test_dagster_yaml_keeps_everything_on_this_host_and_reports_nothing(dagster_home: Path) -> None:
    with dg.DagsterInstance.from_config(str(dagster_home)) as instance:
        assert not instance.telemetry_enabled
        assert instance.run_monitoring_enabled
        assert Path(instance.root_directory) == dagster_home
        assert type(instance.run_storage).__name__ == "SqliteRunStorage"


def test_the_workspace_names_the_one_definitions_object() -> None:
    (entry,) = yaml.safe_load((ROOT / "workspace.yaml").read_text())["load_from"]
    name = entry["python_module"]["module_name"]
    found = [value for value in vars(importlib.import_module(name)).values() if isinstance(value, dg.Definitions)]
    assert len(found) == 1
    assert entry["python_module"]["location_name"] == "aaco_pipeline"
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert settings["tool"]["dg"]["project"]["code_location_target_module"] == name
