"""The checks of stages: passing on what was measured, failing on what was tampered with, each of its own session."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import polars as pl
import pytest

from aaco_pipeline.analysis.sessions.invariants import Finding
from aaco_pipeline.assets.stage import Session, stages
from aaco_pipeline.lake.identity import new_session_id
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.checks import (
    CONTRACT,
    CheckError,
    CheckResult,
    checked,
    contract_is_fulfilled,
    require_kept,
)
from tests.conftest import CapturedLake
from tests.places import CONFIGS
from tests.sessions import republished, tables_of


def evaluated(lake: TraceLake, session: str) -> dict[str, CheckResult]:
    """What every check says of one session."""
    opened = Session(lake, session, CONFIGS)
    published = {entry.stage for entry in lake.manifest(session).entries}
    every = [(name, one) for name, one in stages().items() if name in published]
    return {f"{name}.{result.name}": result for name, one in every for result in checked(opened, one)}


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


@pytest.mark.parametrize("model", ["control_flow", "squeezenet"])
def test_every_check_passes_on_what_was_measured(model: str, captured: CapturedLake) -> None:
    session = captured.sessions[model]
    found = evaluated(captured.lake, session)
    assert {name: result.finding.statement for name, result in found.items() if not result.finding.holds} == {}
    published = {entry.stage for entry in captured.lake.manifest(session).entries}
    assert len(found) == sum(1 + len(stages()[name].checks) for name in published)
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
    bug: Bug, broken: str, analysed: TraceLake, session: str
) -> None:
    bug.publish(analysed, session)
    assert failed(analysed, session) == {broken}


def test_one_sessions_broken_promise_does_not_fail_anothers_check(analysed: TraceLake, captured: CapturedLake) -> None:
    HOLE_IN_GAPS.publish(analysed, captured.sessions["control_flow"])
    assert failed(analysed, captured.sessions["squeezenet"]) == set()


def test_a_hole_in_the_coverage_blocks_nothing_and_a_broken_conservation_does(
    analysed: TraceLake, session: str
) -> None:
    KERNELS_LOST.publish(analysed, session)
    HOLE_IN_GAPS.publish(analysed, session)
    opened = Session(analysed, session, CONFIGS)
    kernels, timeline = (list(checked(opened, stages()[name])) for name in ("kernel_trace", "timeline"))
    (lost,) = [one for one in kernels if one.name == "coverage"]
    assert (lost.is_blocking, lost.finding.holds) == (False, False)
    assert "1 iterations without kernels" in lost.finding.statement
    require_kept(stages()["kernel_trace"], kernels)
    with pytest.raises(CheckError, match=r"^Check conservation of timeline failed: "):
        require_kept(stages()["timeline"], timeline)


def test_every_broken_promise_is_named() -> None:
    found = [CheckResult(name, Finding(False, f"{name} is off", {}), is_blocking=True) for name in ("one", "other")]
    with pytest.raises(CheckError) as raised:
        require_kept(stages()["timeline"], [*found, CheckResult("kept", Finding(True, "", {}), is_blocking=True)])
    assert str(raised.value) == (
        "Check one of timeline failed: one is off; Check other of timeline failed: other is off"
    )


def test_the_contract_comes_first_and_only_blocking_checks_are_evaluated_where_asked(captured: CapturedLake) -> None:
    opened = Session(captured.lake, captured.sessions["control_flow"], CONFIGS)
    one = stages()["kernel_trace"]
    every, blocking = (list(checked(opened, one, only_blocking=only)) for only in (False, True))
    assert [result.name for result in every] == [CONTRACT, *(check.name for check in one.checks)]
    assert blocking == [result for result in every if result.is_blocking]
    assert 1 < len(blocking) < len(every)


@pytest.mark.parametrize("table", ["dispatches", "gaps", "answers"])
def test_a_published_file_whose_bytes_were_changed_fails_the_contract_of_its_stage_alone(
    table: str, analysed: TraceLake, session: str
) -> None:
    (entry,) = analysed.manifest(session).of_table(table)
    path = analysed.path / entry.file
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    for name in ("kernel_trace", "timeline", "classification"):
        found = contract_is_fulfilled(Session(analysed, session, CONFIGS), stages()[name])
        assert found.holds is (name != entry.stage)
        assert ("its bytes are not those published" in found.statement) is (name == entry.stage)
        assert found.figures["broken"] == (name == entry.stage)


def test_a_changed_file_fails_the_contract_check_of_its_stage_alone(analysed: TraceLake, session: str) -> None:
    (entry,) = analysed.manifest(session).of_table("devices")
    (analysed.path / entry.file).write_bytes(b"something else")
    assert failed(analysed, session) == {"session_environment.contract"}


def test_a_published_file_that_is_gone_fails_the_contract_check(analysed: TraceLake, session: str) -> None:
    (entry,) = analysed.manifest(session).of_table("system_samples")
    (analysed.path / entry.file).unlink()
    assert failed(analysed, session) == {"telemetry.contract"}


def test_a_stage_that_published_nothing_does_not_pass(empty_lake: TraceLake) -> None:
    found = contract_is_fulfilled(Session(empty_lake, new_session_id(), CONFIGS), stages()["timeline"])
    assert (found.holds, found.statement) == (False, "nothing is published")
