"""A session states which stages it is to have, which published, which failed and why; nothing is guessed."""

import json

import pytest

from aaco_pipeline.errors import LakeError, UsageError
from aaco_pipeline.lake.manifest import Progress, StageState
from aaco_pipeline.lake.store import TraceLake
from tests.lake.published import LATER, SESSION, Metrics, Snapshot


def test_a_session_says_what_it_is_to_have_and_what_it_has(lake: TraceLake, metrics: Metrics) -> None:
    assert lake.progress(SESSION) == Progress((), (), (), ())
    lake.expect(SESSION, ["c", "b", "a"])
    assert lake.progress(SESSION).missing == ("c", "b", "a")
    lake.publish(SESSION, "c", {"session_metrics": metrics(1.0)}, code_version="1-x")
    lake.record_failure(SESSION, "b", "1-y", "the file is torn")
    progress = lake.progress(SESSION)
    assert progress.published == (StageState("c", "1-x", None),)
    assert progress.failed == (StageState("b", "1-y", "the file is torn"),)
    assert (progress.missing, progress.unpublished) == (("a",), ("b", "a"))


def test_a_session_is_whole_when_all_it_is_to_have_is_published(lake: TraceLake, metrics: Metrics) -> None:
    lake.expect(SESSION, ["a", "b"])
    lake.publish(SESSION, "a", {"session_metrics": metrics(1.0)})
    assert lake.progress(SESSION).is_whole is False
    lake.publish(SESSION, "b", {})
    assert lake.progress(SESSION).is_whole is True
    lake.record_failure(SESSION, "a", "2", "no memory")
    assert lake.progress(SESSION).is_whole is False
    assert lake.read("session_metrics", SESSION).height == 1
    lake.publish(SESSION, "a", {"session_metrics": metrics(1.0)})
    assert lake.progress(SESSION).is_whole is True


def test_where_nothing_states_what_is_expected_nobody_says_that_it_is_whole(lake: TraceLake, metrics: Metrics) -> None:
    lake.publish(SESSION, "a", {"session_metrics": metrics(1.0)})
    assert lake.progress(SESSION).is_whole is None
    lake.record_failure(SESSION, "b", "", "no memory")
    assert lake.progress(SESSION).is_whole is False


def test_unfinished_are_the_captured_the_begun_and_the_failed_and_no_whole_ones(
    lake: TraceLake, metrics: Metrics
) -> None:
    captured, whole, begun = LATER, SESSION, "20250103T000000Z-0000000c"
    with lake.receive_raw(captured):
        pass
    lake.publish(whole, "a", {"session_metrics": metrics(1.0)})
    assert lake.unfinished() == [whole, captured]  # nothing says that it is whole
    lake.expect(whole, ["a"])
    lake.expect(begun, ["a"])
    assert lake.unfinished() == [captured, begun]
    assert lake.sessions() == [whole, begun]
    assert lake.find_session(begun) == begun == lake.find_session("latest")


def test_stating_the_same_again_writes_nothing(lake: TraceLake, snapshot: Snapshot) -> None:
    lake.expect(SESSION, ["a"])
    lake.record_failure(SESSION, "a", "1", "no memory")
    path = lake.manifest_path(SESSION, "session")
    before, written = snapshot(lake.path), path.stat().st_mtime_ns
    lake.expect(SESSION, ["a"])
    lake.record_failure(SESSION, "a", "1", "no\n memory")
    assert (snapshot(lake.path), path.stat().st_mtime_ns) == (before, written)


def test_only_stages_of_sessions_are_stated(lake: TraceLake) -> None:
    with pytest.raises(UsageError):
        lake.expect("nightly", ["a"])
    with pytest.raises(LakeError, match="not a stage's name"):
        lake.expect(SESSION, ["../a"])
    with pytest.raises(LakeError, match="not a stage's name"):
        lake.record_failure(SESSION, "A b", "", "x")
    assert not lake.path.exists()


def test_publishing_onto_an_earlier_manifest_states_its_stages_too(lake: TraceLake, metrics: Metrics) -> None:
    lake.publish(SESSION, "a", {"session_metrics": metrics(1.0)})
    path = lake.manifest_path(SESSION, "session")
    written = json.loads(path.read_bytes())
    path.write_text(json.dumps({"manifest_version": 2, **{key: written[key] for key in ("scope", "id", "entries")}}))
    lake.publish(SESSION, "b", {}, code_version="3")
    assert lake.progress(SESSION).published == (StageState("a", "", None), StageState("b", "3", None))
    assert json.loads(path.read_bytes())["manifest_version"] == 3
