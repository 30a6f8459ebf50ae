"""A session begins with its request and the stages that it is to have, and nothing is left of one that is removed."""

import pytest

from aaco_pipeline.assets.stage import kind_of, stages_of, standing
from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.identity import SESSION_ID
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.sessions import kind_asked, register

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
