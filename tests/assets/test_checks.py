"""The asset checks, each passing on what was really measured and failing on what was tampered with."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import dagster as dg
import polars as pl
import pytest

from aaco_pipeline.assets import inference_run, kernel_trace
from aaco_pipeline.assets.checks import ALL_CHECKS, STAGE_ASSETS, published_tables_fulfil_contracts
from aaco_pipeline.assets.stage import Outcome
from aaco_pipeline.automation.sessions import PARTITIONS_NAME
from aaco_pipeline.definitions import build_definitions
from aaco_pipeline.lake.identity import new_session_id
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.resources.dagster_resources import InferenceRunner, LakeResource

BY_NAME: Final = {
    f"{spec.asset_key.to_user_string()}.{spec.name}": check for check in ALL_CHECKS for spec in check.check_specs
}


def evaluated(lake: TraceLake, session: str) -> dict[str, dg.AssetCheckResult]:
    """What every check says of one session, asked as Dagster asks it."""
    # Dagster's public builder of such a context cannot name a partition; the class that it builds can.
    context_class = type(dg.build_asset_check_context())
    found = {}
    for name, check in BY_NAME.items():
        context = context_class(op_execution_context=dg.build_op_context(partition_key=session))
        result = check(context, lake=LakeResource(path=str(lake.path)))
        assert isinstance(result, dg.AssetCheckResult)
        found[name] = result
    return found


def failed(lake: TraceLake, session: str) -> set[str]:
    return {name for name, result in evaluated(lake, session).items() if not result.passed}


@dataclass(frozen=True)
class Bug:
    """A stage that publishes one of its tables wrong."""

    stage: str
    table: str
    change: Callable[[pl.DataFrame], pl.DataFrame]


def column(stage: str, table: str, value: pl.Expr) -> Bug:
    """Writes wrong values into one column."""
    return Bug(stage, table, lambda frame: frame.with_columns(value))


HOLE_IN_GAPS: Final = Bug("timeline", "gaps", lambda frame: frame.slice(1))
TOO_BUSY: Final = column("timeline", "timeline", pl.col("busy_ns") + 1)
TOO_MUCH_KERNEL_TIME: Final = column("kernel_trace", "dispatches", pl.col("self_ns") + 10**9)
NEGATIVE_KERNEL_TIME: Final = column("kernel_trace", "dispatches", pl.lit(-1, pl.Int64).alias("self_ns"))
KERNELS_LOST: Final = Bug("kernel_trace", "dispatches", lambda frame: frame.filter(pl.col("iteration") != 3))
KERNELS_HOMELESS: Final = column("kernel_trace", "dispatches", pl.lit(None, pl.Int32).alias("iteration"))
NEGATIVE_CPU_TIME: Final = column("inference_run", "iterations", pl.col("cpu_time_ns") - 10**10)
OVERLAPPING: Final = column("inference_run", "iterations", pl.col("end_ns") + 60 * 10**9)


def republish(lake: TraceLake, session: str, bug: Bug) -> None:
    """Publish the stage again with one of its tables changed, as a bug in the stage would."""
    tables = {entry.table: lake.read_entry(entry) for entry in lake.manifest(session).of_stage(bug.stage)}
    changed = bug.change(tables[bug.table])
    assert not changed.equals(tables[bug.table])
    lake.publish(session, bug.stage, {**tables, bug.table: changed})


@pytest.fixture
def lake(captured: Any, lake_path: Path) -> TraceLake:
    copied = captured.copy(lake_path)
    assert isinstance(copied, TraceLake)
    return copied


@pytest.fixture
def session(captured: Any) -> str:
    return str(captured.sessions["control_flow"])


@pytest.mark.parametrize("model", ["control_flow", "squeezenet"])
def test_every_check_passes_on_what_was_measured(model: str, lake: TraceLake, captured: Any) -> None:
    found = evaluated(lake, captured.sessions[model])
    assert {name: result.description for name, result in found.items() if not result.passed} == {}
    assert all(result.description for result in found.values())
    assert found["timeline.conservation"].metadata["largest_difference_ns"].value == 0
    assert found["kernel_trace.conservation"].metadata["iterations"].value == 7


@pytest.mark.parametrize(
    ("bug", "broken"),
    [
        (HOLE_IN_GAPS, "timeline.conservation"),
        (TOO_BUSY, "timeline.conservation"),
        (TOO_MUCH_KERNEL_TIME, "kernel_trace.conservation"),
        (NEGATIVE_KERNEL_TIME, "kernel_trace.conservation"),
        (KERNELS_LOST, "kernel_trace.coverage"),
        (KERNELS_HOMELESS, "kernel_trace.coverage"),
        (NEGATIVE_CPU_TIME, "inference_run.plausibility"),
        (OVERLAPPING, "inference_run.plausibility"),
    ],
)
def test_a_table_that_breaks_its_promise_fails_its_check_and_no_other(
    bug: Bug, broken: str, lake: TraceLake, session: str
) -> None:
    republish(lake, session, bug)
    assert failed(lake, session) == {broken}


def test_one_sessions_broken_promise_does_not_fail_anothers_check(lake: TraceLake, captured: Any) -> None:
    republish(lake, captured.sessions["control_flow"], HOLE_IN_GAPS)
    assert failed(lake, captured.sessions["squeezenet"]) == set()


def test_a_hole_in_the_coverage_is_a_warning_and_a_broken_conservation_an_error(lake: TraceLake, session: str) -> None:
    republish(lake, session, KERNELS_LOST)
    republish(lake, session, HOLE_IN_GAPS)
    found = evaluated(lake, session)
    assert found["kernel_trace.coverage"].severity == dg.AssetCheckSeverity.WARN
    assert "1 iterations without kernels" in (found["kernel_trace.coverage"].description or "")
    assert found["timeline.conservation"].severity == dg.AssetCheckSeverity.ERROR


@pytest.mark.parametrize("stage", STAGE_ASSETS)
def test_a_published_file_whose_bytes_were_changed_fails_the_contract_check(
    stage: str, lake: TraceLake, session: str
) -> None:
    entry = lake.manifest(session).of_stage(stage)[0]
    path = lake.path / entry.file
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    found = published_tables_fulfil_contracts(lake, session, stage)
    assert not found.holds
    assert "its bytes are not the published ones" in found.statement
    assert found.figures["broken"] == 1


def test_a_changed_file_fails_the_contract_check_of_its_stage_alone(lake: TraceLake, session: str) -> None:
    (entry,) = lake.manifest(session).of_table("devices")
    (lake.path / entry.file).write_bytes(b"something else")
    assert failed(lake, session) == {"session_environment.contract"}


def test_a_published_file_that_is_gone_fails_the_contract_check(lake: TraceLake, session: str) -> None:
    (entry,) = lake.manifest(session).of_table("gaps")
    (lake.path / entry.file).unlink()
    assert not published_tables_fulfil_contracts(lake, session, "timeline").holds


def test_a_stage_that_published_nothing_does_not_pass(lake_path: Path) -> None:
    found = published_tables_fulfil_contracts(TraceLake(lake_path), new_session_id(), "timeline")
    assert (found.holds, found.statement) == (False, "nothing is published")


MADE_FROM_BOTH: Final = {
    *("timeline", "critical_path", "model_graph", "att_enrichment", "roofline"),
    *("classification", "perfetto_trace", "report"),
}
READ: Final = {
    "kernel_trace": (kernel_trace, "read_kernel_trace"),
    "inference_run": (inference_run, "read_inference_run"),
}


@pytest.mark.parametrize(
    ("bug", "not_done"), [(TOO_MUCH_KERNEL_TIME, MADE_FROM_BOTH), (OVERLAPPING, MADE_FROM_BOTH), (KERNELS_LOST, set())]
)
def test_a_stage_that_breaks_a_promise_stops_what_would_be_computed_from_it(
    bug: Bug, not_done: set[str], replayed: TraceLake, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, function = READ[bug.stage]
    real = getattr(module, function)

    def wrong(lake: TraceLake, session: str) -> Outcome:
        outcome: Outcome = real(lake, session)
        return replace(outcome, tables={**outcome.tables, bug.table: bug.change(outcome.tables[bug.table])})

    monkeypatch.setattr(module, function, wrong)
    (session,) = [folder.name.partition("=")[2] for folder in (replayed.path / "raw").iterdir()]
    instance.add_dynamic_partitions(PARTITIONS_NAME, [session])
    resources = {"lake": LakeResource(path=str(replayed.path)), "runner": InferenceRunner(configs="unused")}
    job = build_definitions(resource_overrides=resources).resolve_job_def("observe")
    result = job.execute_in_process(
        instance=instance,
        partition_key=session,
        run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
        raise_on_error=False,
    )
    done = {e.materialization.asset_key.to_user_string() for e in result.get_asset_materialization_events()}
    assert set(STAGE_ASSETS) - done == not_done
    assert {stage for stage in STAGE_ASSETS if not replayed.manifest(session).of_stage(stage)} == not_done
    assert [e.partition for e in result.get_asset_check_evaluations() if not e.passed] == [session]


@pytest.fixture
def replayed(captured: Any, session: str, lake_path: Path) -> TraceLake:
    """A lake that holds one raw capture and nothing made of it."""
    lake = TraceLake(lake_path)
    shutil.copytree(captured.lake.raw(session), lake.raw(session))
    return lake
