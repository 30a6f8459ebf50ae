"""Run stages of many sessions again after a change of their code: what is due, left alone and reported.

A session of an earlier version: it is shown as it is, found by `doctor`, and brought up to date by mending it.

The proof that a session's tables are what its raw capture gives: when it holds, and what it names when not.
"""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from aaco_pipeline.assets.stage import Outcome, Session, Stage, outdated, stages, stages_of, standing, to_finish
from aaco_pipeline.errors import CaptureError, LakeError, UsageError
from aaco_pipeline.lake.files import write_atomically
from aaco_pipeline.lake.layout import new_session_id
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.doctor import examine
from aaco_pipeline.pipeline.reanalysis import Plan, chosen_stages, plan, prove, readers_of, reanalyse, stale_sessions
from aaco_pipeline.pipeline.session_stages import finish_session
from aaco_pipeline.report.html.page import render_html
from aaco_pipeline.report.markdown import render_view
from aaco_pipeline.report.session.document import session_document
from aaco_pipeline.report.session.sentences import OUTDATED, answer
from aaco_pipeline.report.session.view import evidence_view, report_view, session_view
from tests.conftest import CapturedLake
from tests.pipeline.conftest import Before
from tests.places import CONFIGS, SHARED
from tests.report.made_up import printed
from tests.sessions import replayed, republished, tables_of, taken_in, unlisted

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


def test_a_failing_session_is_reported_and_the_others_are_done(
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


#: What the stages published before there were answers, beside what they did not have.
LACKING: Final[Mapping[str, tuple[str, ...]]] = {
    "timeline": ("session_parts", "first_calls", "outlier_dispatches"),
    "classification": ("answers", "time_shares", "kinds_of_work"),
}


@pytest.fixture
def earlier(captured: Any, lake_path: Path, session: str) -> TraceLake:
    """A lake with a real session whose stages published no table of the answer."""
    lake = captured.copy(lake_path)
    assert isinstance(lake, TraceLake)
    for stage, names in LACKING.items():
        held = {name: frame for name, frame in tables_of(lake, session, stage).items() if name not in names}
        lake.publish(session, stage, held, code_version="0.1")
    return lake


def test_every_form_shows_a_session_of_before_and_says_what_brings_it_up_to_date(
    earlier: TraceLake, session: str
) -> None:
    document = session_document(earlier, session)
    assert document["answer"] is None
    assert answer(document).startswith(f"{OUTDATED} The median inference takes ")
    for view in (session_view, evidence_view):
        assert OUTDATED in " ".join(printed(view(document)).split())
    assert OUTDATED in render_view(report_view(document)).replace("\\", "")
    assert "The median inference takes " in render_html(document, None)


def test_it_is_whole_and_lacks_the_tables_that_came_since(earlier: TraceLake, session: str) -> None:
    assert standing(earlier, session).is_whole
    assert set(outdated(earlier, session)) == set(LACKING)
    due = to_finish(earlier, session)
    assert set(LACKING) < set(due)
    assert "capture" not in due


def test_doctor_finds_it_and_mending_brings_it_up_to_date(earlier: TraceLake, session: str) -> None:
    found = examine(earlier, lambda one: finish_session(earlier, one, CONFIGS))
    (problem,) = [one for one in found if one.subject == session]
    assert problem.kind == "earlier version"
    for names in LACKING.values():
        assert all(name in problem.explanation for name in names)
    assert problem.mend is not None
    assert problem.mend()
    assert outdated(earlier, session) == ()
    assert session_document(earlier, session)["answer"] is not None
    assert [one for one in examine(earlier, lambda session: None) if one.subject == session] == []


def without_stage(lake: TraceLake, session: str, name: str) -> None:
    """Make a session one of a version that had no such stage: it neither states nor has it."""
    held = lake.manifest(session)
    earlier = replace(
        held,
        expected=tuple(one for one in held.expected if one != name),
        stages=tuple(one for one in held.stages if one.stage != name),
        entries=tuple(one for one in held.entries if one.stage != name),
    )
    (path,) = lake.path.glob(f"manifests/{session}.json")
    write_atomically(path, earlier.to_bytes())


@pytest.mark.parametrize("name", ["completeness", stages_of("measured")[-1]])
def test_a_stage_that_came_since_is_lacking_until_it_is_mended(
    captured: Any, lake_path: Path, session: str, name: str
) -> None:
    """The session states the stages of its version, and has them all: it is not up to date for that."""
    lake = captured.copy(lake_path)
    before = standing(lake, session).expected
    without_stage(lake, session, name)
    assert standing(lake, session).is_whole
    assert outdated(lake, session) == (name,)
    assert to_finish(lake, session)[0] == name
    found = examine(lake, lambda one: finish_session(lake, one, CONFIGS))
    (problem,) = [one for one in found if one.subject == session]
    assert (problem.kind, name in problem.explanation) == ("earlier version", True)
    assert problem.mend is not None
    assert problem.mend()
    assert name in {one.stage for one in lake.manifest(session).entries}
    assert standing(lake, session).expected == before
    assert [one for one in examine(lake, lambda session: None) if one.subject == session] == []


def test_without_its_capture_it_stays_as_it_is(earlier: TraceLake, session: str) -> None:
    for path in sorted(earlier.raw(session).rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    earlier.raw(session).rmdir()
    earlier.request_path(session).unlink(missing_ok=True)
    found = [one for one in examine(earlier, lambda session: None) if one.kind == "earlier version"]
    assert [(one.subject, one.mend) for one in found] == [(session, None)]
    assert "its capture is gone" in found[0].explanation


def silent(doing: str, done: int, total: int) -> None:
    """Shows nothing."""


@pytest.fixture
def lake(captured: CapturedLake, lake_path: Path) -> TraceLake:
    return captured.copy(lake_path)


@pytest.fixture
def session(captured: CapturedLake) -> str:
    return captured.sessions["control_flow"]


def test_a_measured_session_is_reproduced_bit_for_bit_and_the_lake_stays_as_it_is(
    lake: TraceLake, session: str
) -> None:
    before = {path: path.stat().st_mtime_ns for path in lake.path.rglob("*")}
    shown: list[tuple[str, int, int]] = []
    proof = prove(lake, session, CONFIGS, lambda *told: shown.append(told))
    assert proof.holds
    assert proof.differences == ()
    expected = standing(lake, session).expected
    assert proof.stages == len(expected)
    assert proof.tables == len(lake.manifest(session).entries)
    assert str(proof) == f"{session}: {proof.stages} stages, {proof.tables} tables, reproduced bit for bit"
    assert shown == [(f"computing {name} of {session}", at, len(expected)) for at, name in enumerate(expected)]
    assert {path: path.stat().st_mtime_ns for path in lake.path.rglob("*")} == before


def test_an_ingested_session_is_reproduced_bit_for_bit(empty_lake: TraceLake) -> None:
    session = taken_in(empty_lake, SHARED / "gpu_sessions/traces/two_streams_overlap.json.gz")
    replayed(empty_lake, session, *stages_of("ingested"))
    assert prove(empty_lake, session, CONFIGS, silent).differences == ()


def test_a_table_that_was_published_otherwise_is_named_with_its_stage_and_what_was_computed_from_it_is_not(
    lake: TraceLake, session: str
) -> None:
    gaps = tables_of(lake, session, "timeline")["gaps"]
    republished(lake, session, "timeline", gaps=gaps.slice(1))
    proof = prove(lake, session, CONFIGS, silent)
    assert not proof.holds
    (told,) = proof.differences
    assert told.startswith(f"gaps of timeline: {gaps.height - 1} rows published, {gaps.height} computed")
    assert str(proof).endswith(f"1 differ: {told}")


def test_a_table_with_as_many_rows_of_other_content_differs(lake: TraceLake, session: str) -> None:
    stats = tables_of(lake, session, "timeline")["kernel_stats"]
    republished(lake, session, "timeline", kernel_stats=stats.with_columns(stats["total_ns"] + 1))
    (told,) = prove(lake, session, CONFIGS, silent).differences
    assert told.startswith(f"kernel_stats of timeline: {stats.height} rows published, {stats.height} computed")


def test_a_stage_that_published_nothing_is_named(lake: TraceLake, captured: CapturedLake) -> None:
    session = captured.sessions["squeezenet"]
    bare = TraceLake(lake.path.parent / "bare")
    shutil.copytree(lake.raw(session), bare.raw(session))
    replayed(bare, session, "session_environment")
    differences = prove(bare, session, CONFIGS, silent).differences
    assert "gaps of timeline is not published" in differences
    assert not [told for told in differences if "session_environment" in told or "of capture" in told]


def test_a_session_without_a_capture_cannot_be_proved(lake: TraceLake) -> None:
    session = new_session_id()
    with pytest.raises(LakeError, match=f"session {session} has no raw capture"):
        prove(lake, session, CONFIGS, silent)


def test_a_damaged_capture_is_its_own_error(lake: TraceLake, session: str) -> None:
    (unlisted(lake.raw(session)) / "onnxruntime_profile.json.gz").write_bytes(b"damaged")
    with pytest.raises(CaptureError, match="onnxruntime_profile"):
        prove(lake, session, CONFIGS, silent)
