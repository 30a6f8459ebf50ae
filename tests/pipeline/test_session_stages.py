"""A session's stages run one after another in this process: each published and checked before the next begins.

The checks of stages: passing on what was measured, failing on what was tampered with, each of its own session.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import polars as pl
import pytest

from aaco_pipeline.analysis.sessions.invariants import Finding
from aaco_pipeline.assets.stage import Outcome, Session, Stage, stages, stages_of, standing
from aaco_pipeline.errors import CaptureError
from aaco_pipeline.lake.layout import new_session_id
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline import session_stages
from aaco_pipeline.pipeline.session_stages import (
    CONTRACT,
    CheckError,
    CheckResult,
    checked,
    contract_is_fulfilled,
    require_kept,
    run_session,
    run_stages,
)
from aaco_pipeline.resources.progress import progress_listener
from tests.conftest import CapturedLake
from tests.pipeline.conftest import raw_only
from tests.places import CONFIGS
from tests.sessions import republished, tables_of

ORDER = stages_of("measured")
Change = Callable[[Outcome], Outcome]


@contextmanager
def changed(patch: pytest.MonkeyPatch, name: str, change: Change) -> Iterator[list[str]]:
    """A block in which a stage makes something else; yields the stages that ran, in order."""
    ran: list[str] = []
    real = Stage.__call__

    def call(one: Stage, session: Session) -> Outcome:
        ran.append(one.name)
        outcome = real(one, session)
        return change(outcome) if one.name == name else outcome

    with patch.context() as inner:
        inner.setattr(Stage, "__call__", call)
        yield ran


def raising(error: BaseException) -> Change:
    def change(outcome: Outcome) -> Outcome:
        raise error

    return change


def unmade(lake: TraceLake, session: str) -> tuple[str, ...]:
    """Stages of which nothing is published."""
    return tuple(name for name in ORDER if not lake.manifest(session).of_stage(name))


def before(name: str) -> tuple[str, ...]:
    return ORDER[: ORDER.index(name)]


@pytest.fixture(scope="module")
def ran(captured: CapturedLake, tmp_path_factory: pytest.TempPathFactory) -> tuple[TraceLake, str, list[str]]:
    """A lake with a captured session whose stages were run once, and the stages in the order they ran."""
    session = captured.sessions["squeezenet"]
    lake = raw_only(captured, tmp_path_factory.mktemp("ran") / "lake")
    with pytest.MonkeyPatch.context() as patch, changed(patch, "none", lambda outcome: outcome) as order:
        run_session(lake, session, CONFIGS)
    return lake, session, order


def test_every_stage_of_its_kind_runs_once_in_order_and_the_session_is_whole(
    ran: tuple[TraceLake, str, list[str]],
) -> None:
    lake, session, order = ran
    assert tuple(order) == ORDER
    assert standing(lake, session).is_whole
    versions = {state.stage: state.code_version for state in lake.progress(session).published}
    assert versions == {name: stages()[name].code_version for name in ORDER}


def test_the_stages_publish_what_the_plain_functions_publish(
    ran: tuple[TraceLake, str, list[str]], captured: CapturedLake
) -> None:
    lake, session, _ = ran
    manifest = Path("manifests", f"{session}.json")
    assert (lake.path / manifest).read_bytes() == (captured.lake.path / manifest).read_bytes()


def test_progress_and_what_was_published_are_reported_stage_after_stage(analysed: TraceLake, session: str) -> None:
    shown: list[tuple[str, int, int]] = []
    published: list[tuple[str, int]] = []
    chosen = [stages()[name] for name in ("telemetry", "session_environment")]
    with progress_listener(lambda *report: shown.append(report)), analysed.running(session):
        run_stages(
            Session(analysed, session, CONFIGS),
            chosen,
            lambda one, outcome, entries: published.append((one.name, len(entries))),
        )
    assert shown[:2] == [("stages", 0, 2), ("stages", 1, 2)]
    assert published == [(one.name, len(one.tables)) for one in chosen]


def test_what_is_derived_is_forgotten_once_no_later_stage_asks_for_it(
    analysed: TraceLake, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    deriving = [name for name in ORDER if session_stages._derives(stages()[name])]
    with changed(monkeypatch, "none", lambda outcome: outcome) as told:
        monkeypatch.setattr(Session, "forget", lambda _: told.append("forgotten"))
        run_session(analysed, session, CONFIGS)
    first = told[: told.index("forgotten")]
    assert set(deriving) <= set(first)
    assert first[-1] == deriving[-1]


def test_stages_that_derive_are_known_where_their_source_is_not_there() -> None:
    """As in a bytecode-only installation; words about it do not count."""
    made: dict[str, Callable[[Session], Outcome]] = {}
    exec("def asks(session):\n    return session.derive(len, ())\ndef tells(session):\n    'session.derive'", made)
    one = stages()["telemetry"]
    assert session_stages._derives(replace(one, function=made["asks"]))
    assert not session_stages._derives(replace(one, function=made["tells"]))
    deriving = {name for name, one in stages().items() if session_stages._derives(one)}
    assert deriving == {"classification", "completeness", "critical_path", "timeline"}


# A run that fails.


def test_a_stage_that_fails_ends_the_run_with_its_error_and_is_recorded(
    unanalysed: TraceLake, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = CaptureError("what, where and what to do")
    with changed(monkeypatch, "timeline", raising(error)) as order, pytest.raises(CaptureError) as raised:
        run_session(unanalysed, session, CONFIGS)
    assert raised.value is error
    assert tuple(order) == (*before("timeline"), "timeline")
    assert unmade(unanalysed, session) == ORDER[ORDER.index("timeline") :]
    (failed,) = unanalysed.progress(session).failed
    assert (failed.stage, failed.failure) == ("timeline", "what, where and what to do")
    assert failed.code_version == stages()["timeline"].code_version
    assert standing(unanalysed, session).is_whole is False
    run_session(unanalysed, session, CONFIGS)
    assert (unmade(unanalysed, session), unanalysed.progress(session).failed) == ((), ())
    assert standing(unanalysed, session).is_whole


def test_stages_after_one_that_fails_keep_what_they_had(
    analysed: TraceLake, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = analysed.manifest(session).entries
    with changed(monkeypatch, "kernel_trace", raising(ZeroDivisionError())), pytest.raises(ZeroDivisionError):
        run_session(analysed, session, CONFIGS)
    assert analysed.manifest(session).entries == whole
    assert [state.failure for state in analysed.progress(session).failed] == ["ZeroDivisionError"]


def slower(outcome: Outcome) -> Outcome:
    dispatches = outcome.tables["dispatches"].with_columns(pl.col("self_ns") + 10**9)
    return replace(outcome, tables={**outcome.tables, "dispatches": dispatches})


def gappy(outcome: Outcome) -> Outcome:
    dispatches = outcome.tables["dispatches"].filter(pl.col("iteration") != 3)
    return replace(outcome, tables={**outcome.tables, "dispatches": dispatches})


def test_a_broken_promise_that_blocks_ends_the_run_and_is_recorded(
    unanalysed: TraceLake, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        changed(monkeypatch, "kernel_trace", slower),
        pytest.raises(CheckError, match="Check conservation of kernel_trace failed: ") as raised,
    ):
        run_session(unanalysed, session, CONFIGS)
    assert unmade(unanalysed, session) == ORDER[ORDER.index("kernel_trace") + 1 :]
    (failed,) = unanalysed.progress(session).failed
    assert (failed.stage, failed.failure) == ("kernel_trace", str(raised.value))


def test_a_broken_promise_that_does_not_block_ends_nothing(
    unanalysed: TraceLake, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed coverage check is a warning: the other figures hold for what was recorded."""
    with changed(monkeypatch, "kernel_trace", gappy):
        run_session(unanalysed, session, CONFIGS)
    assert unmade(unanalysed, session) == ()
    assert 3 not in tables_of(unanalysed, session, "kernel_trace")["dispatches"].get_column("iteration")


def test_an_interrupted_run_says_of_no_stage_that_it_failed(
    unanalysed: TraceLake, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with changed(monkeypatch, "telemetry", raising(KeyboardInterrupt())), pytest.raises(KeyboardInterrupt):
        run_session(unanalysed, session, CONFIGS)
    assert unanalysed.progress(session).failed == ()
    assert unmade(unanalysed, session) == ORDER[ORDER.index("telemetry") :]
    assert not unanalysed.is_running(session)


def evaluated(lake: TraceLake, session: str) -> dict[str, CheckResult]:
    """Return the results of all checks of one session."""
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
