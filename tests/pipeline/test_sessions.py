"""A session begins with its request and the stages that it is to have, and nothing is left of one that is removed.

Which sessions are half, which somebody is at work on, and which can be run at all: as the lake alone shows it.
"""

import shutil

import pytest

from aaco_pipeline.assets.stage import kind_of, stages_of, standing
from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.layout import SESSION_ID, new_session_id
from aaco_pipeline.lake.retention import ASKED, Account, Removal
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.sessions import begun, can_be_run, half_removed, kind_asked, register, running_sessions

REQUEST = MeasurementRequest(model="control_flow", iterations=7, input_shapes={"x": [2, 64]})


def test_a_session_is_registered_with_its_request(empty_lake: TraceLake) -> None:
    session = register(empty_lake, REQUEST)
    assert SESSION_ID.fullmatch(session)
    assert session.endswith("-control-flow")
    assert empty_lake.requests() == empty_lake.sessions() == [session]
    requested = empty_lake.requested(session)
    assert requested is not None
    assert MeasurementRequest.from_json(requested, "test") == REQUEST


@pytest.mark.parametrize(
    ("how", "kind"), [({}, "measured"), ({"profile": True}, "profiled"), ({"untraced": True}, "timed")]
)
def test_it_states_its_stages_from_the_moment_it_is_asked_for(
    how: dict[str, bool], kind: str, empty_lake: TraceLake
) -> None:
    request = MeasurementRequest.model_validate({"model": "control_flow", **how})
    session = register(empty_lake, request)
    found = kind_of(empty_lake, session)
    assert found == kind_asked(request) == kind
    assert standing(empty_lake, session).missing == stages_of(found)


def test_every_session_is_a_new_one(empty_lake: TraceLake) -> None:
    assert len({register(empty_lake, REQUEST) for _ in range(5)}) == 5


def test_where_the_lake_cannot_be_written_there_is_no_session(empty_lake: TraceLake) -> None:
    empty_lake.path.write_text("a file where the lake should be")
    with pytest.raises(LakeError):
        register(empty_lake, REQUEST)


def test_a_removed_session_leaves_nothing(empty_lake: TraceLake) -> None:
    kept, removed = register(empty_lake, REQUEST), register(empty_lake, REQUEST)
    for _ in range(2):
        empty_lake.remove(removed)
        assert empty_lake.requests() == empty_lake.sessions() == [kept]


SMALL = MeasurementRequest(model="control_flow")


def test_a_session_is_begun_until_it_is_whole_and_listed_oldest_first(analysed: TraceLake, session: str) -> None:
    assert begun(analysed) == []
    asked_for = register(analysed, SMALL)
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


def test_what_the_user_named_is_removed_although_it_is_whole(analysed: TraceLake, session: str) -> None:
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
    asked_for = register(analysed, SMALL)
    assert can_be_run(analysed, asked_for)
    analysed.withdraw(asked_for)
    assert not can_be_run(analysed, asked_for)
    analysed.withdraw(session)
    assert can_be_run(analysed, session)
    shutil.rmtree(analysed.raw(session))
    assert not can_be_run(analysed, session)
