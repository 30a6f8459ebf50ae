"""Every problem of a lake: made on purpose, found by name, and mended where it can be."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from aaco_pipeline.assets.stage import stages, stages_of
from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.lake.layout import new_session_id
from aaco_pipeline.lake.retention import Account, Removal
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.validation import empty_table
from aaco_pipeline.pipeline.doctor import Problem, examine
from aaco_pipeline.pipeline.sessions import register
from tests.conftest import CapturedLake
from tests.sessions import replayed

LAUNCH = MeasurementRequest(model="control_flow")


@pytest.fixture
def lake(captured: CapturedLake, lake_path: Path) -> TraceLake:
    """A healthy lake of the test's own, with real sessions."""
    return captured.copy(lake_path)


def only(found: list[Problem]) -> Problem:
    assert len(found) == 1, found
    return found[0]


def void(_: object) -> None:
    """Whatever comes, nothing goes."""


def mend(problem: Problem) -> None:
    assert problem.mend is not None
    assert problem.mend()


def published_file(lake: TraceLake, session: str, table: str = "gaps") -> Path:
    (entry,) = lake.manifest(session).of_table(table)
    return lake.path / entry.file


def test_a_healthy_lake_has_no_problems(lake: TraceLake) -> None:
    assert examine(lake, void) == []


def test_nothing_at_all_is_healthy(lake_path: Path) -> None:
    assert examine(TraceLake(lake_path), void) == []
    assert not lake_path.exists()


# What is wrong within the lake.


def leave_unfinished_write(lake: TraceLake, session: str) -> Path:
    path = lake.path / "gaps" / f"session_id={session}" / ".tmp-999999999-abcdef00"
    path.write_bytes(b"half")
    return path


def leave_unfinished_capture(lake: TraceLake, session: str) -> Path:
    path = lake.path / "raw" / ".tmp-999999999-abcdef00"
    path.mkdir()
    (path / "latency.json").write_text("{}")
    return path


def leave_orphan(lake: TraceLake, session: str) -> Path:
    path = published_file(lake, session).with_name("timeline-000000000000.parquet")
    path.write_bytes(b"nobody's")
    return path


def leave_stale_lock(lake: TraceLake, session: str) -> Path:
    path = lake.path / ".locks" / f"{new_session_id()}.lock"
    path.touch()
    return path


@pytest.mark.parametrize(
    ("leave", "kind"),
    [
        (leave_unfinished_write, "unfinished write"),
        (leave_unfinished_capture, "unfinished write"),
        (leave_orphan, "orphan file"),
        (leave_stale_lock, "stale lock"),
    ],
)
def test_what_a_killed_writer_leaves_is_found_and_removed(
    leave: Callable[[TraceLake, str], Path], kind: str, lake: TraceLake, session: str
) -> None:
    path = leave(lake, session)
    problem = only(examine(lake, void))
    assert (problem.kind, problem.subject) == (kind, str(path))
    mend(problem)
    assert not path.exists()
    assert examine(lake, void) == []


def tear_a_table(lake: TraceLake, session: str) -> None:
    path = published_file(lake, session)
    path.write_bytes(path.read_bytes()[:-1] + b"?")


def tear_the_manifest(lake: TraceLake, session: str) -> None:
    leave_orphan(lake, session)  # and nobody can know that it is one
    lake.manifest_path(session, "session").write_text("{")


@pytest.mark.parametrize(
    ("tear", "kind"),
    [
        (tear_a_table, "torn file"),
        (lambda lake, session: published_file(lake, session).unlink(), "missing file"),
        (tear_the_manifest, "unreadable manifest"),
    ],
)
def test_what_is_torn_is_mended_by_running_the_stages_again(
    tear: Callable[[TraceLake, str], None], kind: str, lake: TraceLake, session: str
) -> None:
    whole = lake.manifest(session).entries
    tear(lake, session)
    problem = only(examine(lake, lambda name: void(replayed(lake, name))))
    assert problem.kind == kind
    mend(problem)
    assert examine(lake, void) == []
    assert lake.manifest(session).entries == whole


# Sessions that are not whole.


def test_a_session_that_was_begun_and_never_captured_is_finished(lake: TraceLake) -> None:
    """A request is measured: only an interrupt or `aaco rm` drops it."""
    begun = register(lake, LAUNCH)
    every = len(stages_of("measured"))
    problem = only(examine(lake, lambda name: materialized(lake, name)))
    assert (problem.kind, problem.subject, problem.explanation) == ("half session", begun, f"0 of {every} stages")
    mend(problem)
    assert lake.progress(begun).is_whole


def materialized(lake: TraceLake, session: str) -> None:
    """Every stage published without rows, as if it had run."""
    for name in lake.progress(session).expected:
        tables = {table: empty_table(table) for table in stages()[name].tables}
        lake.publish(session, name, tables)


def test_a_session_that_lacks_stages_or_whose_stage_failed_is_never_well(lake: TraceLake, session: str) -> None:
    lake.record_failure(session, "roofline", "code", "what and why")
    every = len(stages_of("measured"))
    problem = only(examine(lake, lambda name: materialized(lake, name)))
    assert (problem.kind, problem.subject) == ("half session", session)
    assert problem.explanation == f"{every - 1} of {every} stages; roofline failed: what and why"
    mend(problem)
    assert examine(lake, void) == []


def test_a_half_session_whose_capture_is_gone_needs_the_user(lake: TraceLake, session: str) -> None:
    lake.record_failure(session, "roofline", "code", "what and why")
    shutil.rmtree(lake.raw(session))
    problem = only(examine(lake, pytest.fail))
    assert (problem.kind, problem.subject, problem.mend) == ("half session", session, None)
    assert "its capture is gone" in problem.explanation


def test_a_removal_that_was_broken_off_is_ended_and_nothing_of_the_session_computed_again(
    lake: TraceLake, session: str
) -> None:
    Account(lake).begin([Removal("session", session, 1, "age", "too old")])
    assert examine(lake, void) == []  # it is still whole: the next round of retention decides
    lake.marker_path(session, "session").unlink()
    lake.manifest_path(session, "session").unlink()
    problem = next(one for one in examine(lake, pytest.fail) if one.kind != "orphan file")
    assert (problem.kind, problem.subject) == ("half removed", session)
    mend(problem)
    assert not lake.raw(session).exists()
    assert examine(lake, void) == []


def test_a_session_of_nothing_is_forgotten(lake: TraceLake) -> None:
    begun = register(lake, LAUNCH)
    lake.withdraw(begun)
    problem = only(examine(lake, pytest.fail))
    assert (problem.kind, problem.subject) == ("session of nothing", begun)
    mend(problem)
    assert examine(lake, void) == []


def test_a_session_that_another_process_is_at_work_on_is_left_to_it(lake: TraceLake) -> None:
    begun = register(lake, LAUNCH)
    with lake.running(begun):
        assert examine(lake, void) == []


def test_a_capture_that_was_never_analysed_is_mended_by_analysing_it(lake: TraceLake, session: str) -> None:
    """Its run was killed right after the capture was complete: a measurement is never thrown away."""
    kept = new_session_id()
    shutil.copytree(lake.raw(session), lake.raw(kept))
    analysed: list[str] = []
    problem = only(examine(lake, analysed.append))
    assert (problem.kind, problem.subject) == ("half session", kept)
    assert problem.mend is not None
    assert not problem.mend()  # it has published nothing
    assert analysed == [kept]
    assert lake.raw(kept).is_dir()


def test_several_problems_are_all_told(lake: TraceLake, session: str) -> None:
    leave_orphan(lake, session)
    register(lake, LAUNCH)
    found = examine(lake, lambda name: materialized(lake, name))
    assert {one.kind for one in found} == {"orphan file", "half session"}
    for problem in found:
        mend(problem)
    assert examine(lake, void) == []
