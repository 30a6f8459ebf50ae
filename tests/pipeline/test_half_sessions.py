"""Which sessions are half, which somebody is at work on, and which can be run at all: as the lake alone shows it."""

import shutil

from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.lake.identity import new_session_id
from aaco_pipeline.lake.removals import ASKED, Account, Removal
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.half_sessions import begun, can_be_run, half_removed, running_sessions
from aaco_pipeline.pipeline.sessions import register

REQUEST = MeasurementRequest(model="control_flow")


def test_a_session_is_begun_until_it_is_whole_and_listed_oldest_first(analysed: TraceLake, session: str) -> None:
    assert begun(analysed) == []
    asked_for = register(analysed, REQUEST)
    analysed.record_failure(session, "timeline", "code", "a full disk")
    captured = new_session_id()
    shutil.copytree(analysed.raw(session), analysed.raw(captured))
    assert begun(analysed) == sorted([session, asked_for, captured])


def test_what_is_being_removed_is_not_begun(analysed: TraceLake, session: str) -> None:
    removal = Removal("session", session, 1, "age", "too old")
    Account(analysed).begin([removal])
    assert half_removed(analysed) == set()  # it is still whole, and the rule may have changed
    analysed.record_failure(session, "timeline", "code", "a full disk")
    assert begun(analysed) == [session]
    analysed.marker_path(session, "session").unlink()
    analysed.manifest_path(session, "session").unlink()
    assert (half_removed(analysed), begun(analysed)) == ({session}, [])
    Account(analysed).end([removal])
    assert half_removed(analysed) == set()


def test_what_a_person_named_is_removed_although_it_is_whole(analysed: TraceLake, session: str) -> None:
    Account(analysed).begin([Removal("session", session, 1, ASKED, "removed by hand")])
    assert half_removed(analysed) == {session}


def test_a_session_is_running_while_a_process_holds_either_of_its_locks(analysed: TraceLake, session: str) -> None:
    others = analysed.sessions()
    assert running_sessions(analysed, others) == set()
    for lock in (analysed.attended, analysed.running):
        with lock(session):
            assert running_sessions(analysed, others) == {session}
            assert running_sessions(analysed, set(others) - {session}) == set()
    assert running_sessions(analysed, others) == set()


def test_a_session_can_be_run_on_its_capture_or_its_request(analysed: TraceLake, session: str) -> None:
    asked_for = register(analysed, REQUEST)
    assert can_be_run(analysed, asked_for)
    analysed.withdraw(asked_for)
    assert not can_be_run(analysed, asked_for)
    analysed.withdraw(session)
    assert can_be_run(analysed, session)
    shutil.rmtree(analysed.raw(session))
    assert not can_be_run(analysed, session)
