"""A session's stages run one after another in this process: each published and checked before the next begins."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from aaco_pipeline.assets.stage import Outcome, Session, Stage, stages, stages_of, standing
from aaco_pipeline.errors import CaptureError
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline import session_stages
from aaco_pipeline.pipeline.checks import CheckError
from aaco_pipeline.pipeline.session_stages import run_session, run_stages
from aaco_pipeline.resources.progress import progress_listener
from tests.conftest import CapturedLake
from tests.pipeline.conftest import raw_only
from tests.places import CONFIGS
from tests.sessions import tables_of

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


def test_one_stage_alone_is_run_again_and_nothing_else_changes(
    analysed: TraceLake, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = analysed.manifest(session)
    with changed(monkeypatch, "none", lambda outcome: outcome) as order:
        run_session(analysed, session, CONFIGS, only=("telemetry",))
    assert order == ["telemetry"]
    assert analysed.manifest(session) == whole


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
