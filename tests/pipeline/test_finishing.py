"""A session says which stages it is to have and which failed; finishing it runs exactly what is not published."""

from collections.abc import Callable
from contextlib import ExitStack

import pytest

from aaco_pipeline.assets.stage import Outcome, Session, Stage, materialize, stages, stages_of
from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.errors import CaptureError
from aaco_pipeline.lake.files import write_atomically
from aaco_pipeline.lake.manifest import StageState
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.validation import empty_table
from aaco_pipeline.pipeline import session_stages
from aaco_pipeline.pipeline.reanalysis import readers_of
from aaco_pipeline.pipeline.session_stages import finish_session, run_session
from aaco_pipeline.pipeline.sessions import register
from tests.places import CONFIGS
from tests.sessions import without_stage

REQUEST = MeasurementRequest(model="control_flow")


class Stages:
    """Stages that publish empty tables at once: what ran, in order, and what is to go wrong."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.errors: dict[str, BaseException] = {}

    def run(self, one: Stage, session: Session) -> Outcome:
        if one.name in self.errors:
            raise self.errors[one.name]
        self.ran.append(one.name)
        return Outcome({name: empty_table(name) for name in one.publishes})


@pytest.fixture
def hollow(monkeypatch: pytest.MonkeyPatch) -> Stages:
    made = Stages()

    def call(one: Stage, session: Session) -> Outcome:
        return made.run(one, session)

    monkeypatch.setattr(Stage, "__call__", call)
    monkeypatch.setattr(session_stages, "checked", lambda *_, **how: iter(()))
    return made


@pytest.fixture
def begun(empty_lake: TraceLake) -> str:
    """A session that was asked for."""
    return register(empty_lake, REQUEST)


Break = Callable[[str, BaseException], None]


def with_its_readers(name: str) -> list[str]:
    return [name, *(one for one in readers_of([name]) if one in stages_of("measured"))]


@pytest.fixture
def broken_off(empty_lake: TraceLake, begun: str, hollow: Stages) -> Break:
    """Run the session up to a stage in which something happens, and forget what ran."""

    def run(at: str, error: BaseException) -> None:
        hollow.errors[at] = error
        with pytest.raises(type(error)):
            run_session(empty_lake, begun, CONFIGS)
        hollow.errors.clear()
        hollow.ran.clear()

    return run


@pytest.mark.parametrize("killed_in", ["capture", "telemetry", stages_of("measured")[-1]])
def test_what_a_run_left_half_is_finished_by_running_the_rest_once(
    killed_in: str, empty_lake: TraceLake, hollow: Stages, broken_off: Break
) -> None:
    (begun,) = empty_lake.requests()
    broken_off(killed_in, KeyboardInterrupt())
    order = stages_of("measured")
    assert empty_lake.progress(begun).missing == order[order.index(killed_in) :]
    assert finish_session(empty_lake, begun, CONFIGS)
    assert tuple(hollow.ran) == order[order.index(killed_in) :]
    assert empty_lake.progress(begun).is_whole


def test_a_whole_session_is_left_alone(empty_lake: TraceLake, begun: str, hollow: Stages) -> None:
    run_session(empty_lake, begun, CONFIGS)
    before = empty_lake.manifest_path(begun, "session").read_bytes()
    hollow.ran.clear()
    assert not finish_session(empty_lake, begun, CONFIGS)
    assert hollow.ran == []
    assert empty_lake.manifest_path(begun, "session").read_bytes() == before


def test_a_stage_that_failed_is_recorded_with_its_reason_and_run_again_with_what_follows(
    empty_lake: TraceLake, begun: str, hollow: Stages, broken_off: Break
) -> None:
    broken_off("roofline", CaptureError("what,\nwhere and what to do"))
    failed = StageState("roofline", stages()["roofline"].code_version, "what, where and what to do")
    assert empty_lake.progress(begun).failed == (failed,)
    finish_session(empty_lake, begun, CONFIGS)
    assert hollow.ran == with_its_readers("roofline")
    progress = empty_lake.progress(begun)
    assert progress.is_whole
    assert {state.stage: state.code_version for state in progress.published} == {
        name: stages()[name].code_version for name in stages_of("measured")
    }


def test_a_stage_whose_tables_were_withdrawn_is_run_again_with_what_depends_on_it(
    empty_lake: TraceLake, begun: str, hollow: Stages
) -> None:
    run_session(empty_lake, begun, CONFIGS)
    hollow.ran.clear()
    torn = without_stage(empty_lake.manifest(begun), "telemetry")
    write_atomically(empty_lake.manifest_path(begun, "session"), torn.to_bytes())
    finish_session(empty_lake, begun, CONFIGS)
    assert hollow.ran == with_its_readers("telemetry")


@pytest.mark.parametrize("lock", ["attended", "running"])
def test_who_comes_while_another_is_at_work_waits_and_finds_it_done(
    *, lock: str, empty_lake: TraceLake, begun: str, hollow: Stages, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = ExitStack()
    other.enter_context({"attended": empty_lake.attended, "running": empty_lake.running}[lock](begun))
    assert empty_lake.is_running(begun)

    def meanwhile(seconds: float) -> None:
        materialize(Session(empty_lake, begun, CONFIGS))
        hollow.ran.clear()
        other.close()

    monkeypatch.setattr("aaco_pipeline.lake.files.time.sleep", meanwhile)
    assert not finish_session(empty_lake, begun, CONFIGS)
    assert hollow.ran == []
    assert not empty_lake.is_running(begun)


def test_a_session_of_before_manifests_stated_stages_is_judged_by_those_of_its_kind(
    empty_lake: TraceLake, begun: str, hollow: Stages
) -> None:
    last = stages_of("measured")[-1]
    materialize(Session(empty_lake, begun, CONFIGS))
    old = without_stage(empty_lake.manifest(begun), last).expecting(())
    write_atomically(empty_lake.manifest_path(begun, "session"), old.to_bytes())
    hollow.ran.clear()
    finish_session(empty_lake, begun, CONFIGS)
    assert hollow.ran == [last]
    assert empty_lake.progress(begun).is_whole
