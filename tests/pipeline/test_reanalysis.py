"""Stages of many sessions run again after a change of their code: what is due, what is left alone, what is told."""

import shutil
from dataclasses import replace
from typing import Final

import pytest

from aaco_pipeline.assets.stage import Outcome, Session, Stage, stages, stages_of
from aaco_pipeline.errors import CaptureError, UsageError
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.reanalysis import Plan, chosen_stages, plan, readers_of, reanalyse, stale_sessions
from tests.conftest import CapturedLake
from tests.pipeline.conftest import Before
from tests.places import CONFIGS

EARLIER: Final = "0-earlier"
LAST: Final = stages_of("measured")[-1]


def grown_old(lake: TraceLake, *names: str, sessions: list[str] | None = None) -> None:
    """Let the lake say that an earlier version of their code published these stages."""
    for session in sessions or lake.sessions():
        before = lake.manifest(session)
        older = tuple(one._replace(code_version=EARLIER) if one.stage in names else one for one in before.stages)
        lake.manifest_path(session, "session").write_bytes(replace(before, stages=older).to_bytes())


@pytest.fixture
def sessions(captured: CapturedLake) -> list[str]:
    return sorted(captured.sessions.values())


@pytest.fixture
def old(analysed: TraceLake) -> TraceLake:
    """A lake whose timelines are of an earlier version."""
    grown_old(analysed, "timeline")
    return analysed


def published(lake: TraceLake, session: str, stage: str) -> str:
    return next(state.code_version for state in lake.manifest(session).stages if state.stage == stage)


def test_what_another_version_published_is_due_and_nothing_else(old: TraceLake, sessions: list[str]) -> None:
    grown_old(old, LAST, sessions=sessions[:1])
    assert plan(old, ["timeline"]) == Plan(
        ("timeline",), dict.fromkeys(sessions, ("timeline",)), (), (), readers_of(["timeline"])
    )
    found = plan(old, [LAST])
    assert (found.due, found.current) == ({sessions[0]: (LAST,)}, (sessions[1],))
    assert {name: set(found) for name, found in stale_sessions(old).items() if found} == {
        "timeline": set(sessions),
        LAST: {sessions[0]},
    }


def test_what_failed_is_due_too(analysed: TraceLake, sessions: list[str]) -> None:
    analysed.record_failure(sessions[0], "timeline", stages()["timeline"].code_version, "a full disk")
    assert plan(analysed, ["timeline"]).due == {sessions[0]: ("timeline",)}


def test_with_what_reads_from_it_all_of_that_is_due(old: TraceLake, sessions: list[str]) -> None:
    chosen = chosen_stages(["timeline"], downstream=True)
    assert chosen == ("timeline", *readers_of(["timeline"]))
    assert {"critical_path", "classification", LAST} <= set(chosen)
    assert plan(old, chosen).due == dict.fromkeys(sessions, chosen)


def test_only_sessions_for_which_the_condition_holds(old: TraceLake, captured: CapturedLake) -> None:
    wanted = captured.sessions["squeezenet"]
    assert list(plan(old, ["timeline"], "model_name = 'squeezenet' -- the small one").due) == [wanted]
    with pytest.raises(UsageError, match="SQL"):
        plan(old, ["timeline"], "no_such_column = 1")
    with pytest.raises(UsageError, match="SQL refused"):
        plan(old, ["timeline"], "true); DROP TABLE sessions; SELECT (1")


@pytest.mark.parametrize(("name", "why"), [("time_line", "no stage 'time_line'; there are "), ("capture", "measures")])
def test_a_stage_that_is_none_or_measures_is_refused(name: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        chosen_stages([name], downstream=False)


def test_without_its_capture_a_session_keeps_what_only_the_capture_gives(old: TraceLake, sessions: list[str]) -> None:
    grown_old(old, "kernel_trace")
    shutil.rmtree(old.raw(sessions[0]))
    assert list(plan(old, ["timeline"]).due) == sessions
    found = plan(old, ["kernel_trace"])
    assert (list(found.due), found.without_capture) == ([sessions[1]], (sessions[0],))


def test_what_is_due_is_published_by_the_present_code_and_is_due_no_more(old: TraceLake, sessions: list[str]) -> None:
    tables = {session: old.manifest(session).entries for session in sessions}
    done = reanalyse(old, plan(old, ["timeline"]), CONFIGS)
    assert (done.sessions, done.failed, done.skipped) == (sessions, [], {})
    for session in sessions:
        assert published(old, session, "timeline") == stages()["timeline"].code_version
        assert old.manifest(session).entries == tables[session]
    again = plan(old, ["timeline"])
    assert (again.due, list(again.current)) == ({}, sessions)


def test_a_session_that_fails_is_told_of_and_the_others_are_done(
    old: TraceLake, sessions: list[str], before_stage: Before
) -> None:
    def broken(session: str) -> None:
        if session == sessions[0]:
            raise CaptureError("its file is torn")

    before_stage("timeline", broken)
    done = reanalyse(old, plan(old, ["timeline"]), CONFIGS)
    assert done.sessions == sessions[1:]
    assert [(one.session, one.stage, one.exit_code) for one in done.failed] == [(sessions[0], "timeline", 6)]
    assert [state.failure for state in old.progress(sessions[0]).failed] == ["its file is torn"]
    assert published(old, sessions[1], "timeline") == stages()["timeline"].code_version
    assert list(plan(old, ["timeline"]).due) == sessions[:1]


def test_a_session_that_somebody_is_at_work_on_is_skipped_and_named(old: TraceLake, sessions: list[str]) -> None:
    with old.running(sessions[0]):
        done = reanalyse(old, plan(old, ["timeline"]), CONFIGS)
    assert done.sessions == sessions[1:]
    assert list(done.skipped) == sessions[:1]
    assert published(old, sessions[0], "timeline") == EARLIER


@pytest.mark.parametrize("after", [0, 1, 2])
def test_broken_off_anywhere_the_same_call_goes_on_and_leaves_nothing_of_older_tables(
    after: int, old: TraceLake, sessions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = ["timeline", "critical_path"]
    ran: list[tuple[str, str]] = []

    def called(one: Stage, session: Session) -> Outcome:
        if len(ran) == after:
            raise KeyboardInterrupt
        ran.append((session.id, one.name))
        return one.function(session)

    with monkeypatch.context() as patch:
        patch.setattr(Stage, "__call__", called)
        with pytest.raises(KeyboardInterrupt):
            reanalyse(old, plan(old, chosen), CONFIGS)
    left = [(session, name) for session in sessions for name in chosen][after:]
    due = plan(old, chosen).due
    assert [(session, name) for session, names in due.items() for name in names] == left
    done = reanalyse(old, plan(old, chosen), CONFIGS)
    assert done.sessions == list(due)
    assert all(old.progress(session).failed == () for session in sessions)
