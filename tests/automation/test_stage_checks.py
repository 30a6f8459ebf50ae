"""The checks of stages: passing on what was measured, failing on what was tampered with, each of its own session."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import dagster as dg
import polars as pl
import pytest

from aaco_pipeline.assets.stage import Outcome, Session, Stage, stages
from aaco_pipeline.lake.identity import new_session_id
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.checks import CheckResult, checked, contract_is_fulfilled
from tests.automation.conftest import observe
from tests.conftest import CapturedLake
from tests.places import CONFIGS
from tests.sessions import republished, tables_of

CHECKS: Final = 29


def evaluated(lake: TraceLake, session: str) -> dict[str, CheckResult]:
    """What every check says of one session."""
    opened = Session(lake, session, CONFIGS)
    return {f"{name}.{result.name}": result for name, one in stages().items() for result in checked(opened, one)}


def failed(lake: TraceLake, session: str) -> set[str]:
    return {name for name, result in evaluated(lake, session).items() if not result.finding.holds}


@dataclass(frozen=True)
class Bug:
    """A stage that publishes one of its tables wrong."""

    stage: str
    table: str
    change: Callable[[pl.DataFrame], pl.DataFrame]

    def publish(self, lake: TraceLake, session: str) -> None:
        wrong = self.change(tables_of(lake, session, self.stage)[self.table])
        republished(lake, session, self.stage, **{self.table: wrong})


def column(stage: str, table: str, value: pl.Expr) -> Bug:
    """Writes wrong values into one column."""
    return Bug(stage, table, lambda frame: frame.with_columns(value))


HOLE_IN_GAPS: Final = Bug("timeline", "gaps", lambda frame: frame.slice(1))
TOO_BUSY: Final = column("timeline", "timeline", pl.col("busy_ns") + 1)
TOO_MUCH_KERNEL_TIME: Final = column("kernel_trace", "dispatches", pl.col("self_ns") + 10**9)
NEGATIVE_KERNEL_TIME: Final = column("kernel_trace", "dispatches", pl.lit(-1, pl.Int64).alias("self_ns"))
KERNELS_LOST: Final = Bug("kernel_trace", "dispatches", lambda frame: frame.filter(pl.col("iteration") != 3))
KERNELS_HOMELESS: Final = column("kernel_trace", "dispatches", pl.lit(None, pl.Int32).alias("iteration"))
NEGATIVE_CPU_TIME: Final = column("inference_run", "iteration_blocks", pl.col("cpu_time_ns") - 10**12)
HOLE_BETWEEN_ITERATIONS: Final = Bug("inference_run", "iteration_gaps", lambda frame: frame.slice(1))
OVERLAPPING: Final = column("inference_run", "iterations", pl.col("end_ns") + 60 * 10**9)


@pytest.fixture
def lake(captured: CapturedLake, lake_path: Path) -> TraceLake:
    return captured.copy(lake_path)


@pytest.mark.parametrize("model", ["control_flow", "squeezenet"])
def test_every_check_passes_on_what_was_measured(model: str, captured: CapturedLake) -> None:
    found = evaluated(captured.lake, captured.sessions[model])
    assert {name: result.finding.statement for name, result in found.items() if not result.finding.holds} == {}
    assert len(found) == CHECKS
    assert all(result.finding.statement for result in found.values())
    assert found["timeline.conservation"].finding.figures["largest_difference_ns"] == 0
    assert found["kernel_trace.conservation"].finding.figures["iterations"] == 7


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
        (HOLE_BETWEEN_ITERATIONS, "inference_run.conservation"),
        (OVERLAPPING, "inference_run.plausibility"),
    ],
)
def test_a_table_that_breaks_its_promise_fails_its_check_and_no_other(
    bug: Bug, broken: str, lake: TraceLake, session: str
) -> None:
    bug.publish(lake, session)
    assert failed(lake, session) == {broken}


def test_one_sessions_broken_promise_does_not_fail_anothers_check(lake: TraceLake, captured: CapturedLake) -> None:
    HOLE_IN_GAPS.publish(lake, captured.sessions["control_flow"])
    assert failed(lake, captured.sessions["squeezenet"]) == set()


def test_a_hole_in_the_coverage_is_a_warning_and_a_broken_conservation_an_error(lake: TraceLake, session: str) -> None:
    KERNELS_LOST.publish(lake, session)
    HOLE_IN_GAPS.publish(lake, session)
    found = evaluated(lake, session)
    assert not found["kernel_trace.coverage"].is_blocking
    assert "1 iterations without kernels" in found["kernel_trace.coverage"].finding.statement
    assert found["timeline.conservation"].is_blocking


@pytest.mark.parametrize("stage", stages())
def test_a_published_file_whose_bytes_were_changed_fails_the_contract_check(
    stage: str, lake: TraceLake, session: str
) -> None:
    entry = next(entry for entry in lake.manifest(session).of_stage(stage) if entry.rows)
    path = lake.path / entry.file
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    found = contract_is_fulfilled(Session(lake, session, CONFIGS), stages()[stage])
    assert not found.holds
    assert "its bytes are not those published" in found.statement
    assert found.figures["broken"] == 1


def test_a_changed_file_fails_the_contract_check_of_its_stage_alone(lake: TraceLake, session: str) -> None:
    (entry,) = lake.manifest(session).of_table("devices")
    (lake.path / entry.file).write_bytes(b"something else")
    assert failed(lake, session) == {"session_environment.contract"}


def test_a_published_file_that_is_gone_fails_the_contract_check(lake: TraceLake, session: str) -> None:
    (entry,) = lake.manifest(session).of_table("system_samples")
    (lake.path / entry.file).unlink()
    assert failed(lake, session) == {"telemetry.contract"}


def test_a_stage_that_published_nothing_does_not_pass(empty_lake: TraceLake) -> None:
    found = contract_is_fulfilled(Session(empty_lake, new_session_id(), CONFIGS), stages()["timeline"])
    assert (found.holds, found.statement) == (False, "nothing is published")


FROM_KERNELS: Final = {
    *("completeness", "timeline", "critical_path", "model_graph", "att_enrichment", "roofline"),
    *("classification", "optimization_loop", "perfetto_trace", "regression", "report"),
}


@pytest.mark.parametrize(
    ("bug", "not_done"),
    [
        (TOO_MUCH_KERNEL_TIME, FROM_KERNELS),
        (OVERLAPPING, FROM_KERNELS | {"kernel_trace", "iteration_delays"}),
        (KERNELS_LOST, set()),
    ],
)
def test_a_stage_that_breaks_a_promise_stops_what_would_be_computed_from_it(
    bug: Bug, not_done: set[str], unanalysed: TraceLake, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, session = Stage.__call__, unanalysed.captured()[0]

    def wrong(one: Stage, opened: Session) -> Outcome:
        outcome = real(one, opened)
        if one.name != bug.stage:
            return outcome
        return replace(outcome, tables={**outcome.tables, bug.table: bug.change(outcome.tables[bug.table])})

    monkeypatch.setattr(Stage, "__call__", wrong)
    result = observe(unanalysed, instance, session)
    shown = {name for name in stages() if session in instance.get_materialized_partitions(dg.AssetKey(name))}
    assert set(stages()) - shown == not_done
    assert {stage for stage in stages() if not unanalysed.manifest(session).of_stage(stage)} == not_done
    told = instance.all_logs(result.run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION)
    evaluations = [each.get_dagster_event().asset_check_evaluation_data for each in told]
    assert [one.partition for one in evaluations if not one.passed] == [session]
