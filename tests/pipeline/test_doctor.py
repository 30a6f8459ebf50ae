"""Every ailment between lake, Dagster and host: made on purpose, found by name, and mended where it can be."""

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin
from dagster._daemon.types import DaemonHeartbeat

from aaco_pipeline.assets.stage import stages, stages_of
from aaco_pipeline.automation import dead_runs
from aaco_pipeline.automation.attempts import PARTITION_TAG
from aaco_pipeline.automation.jobs import start_session
from aaco_pipeline.automation.known_sessions import make_known
from aaco_pipeline.automation.partitions import PARTITIONS_NAME
from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.lake.identity import new_session_id
from aaco_pipeline.lake.removals import Account, Removal
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.validation import empty_table
from aaco_pipeline.pipeline.doctor import Problem, examine
from aaco_pipeline.pipeline.sessions import register
from aaco_pipeline.resources.host.process_identity import process_tags
from tests.conftest import CapturedLake
from tests.sessions import replayed

LAUNCH = MeasurementRequest(model="control_flow")


@pytest.fixture
def lake(captured: CapturedLake, lake_path: Path) -> TraceLake:
    """A healthy lake of the test's own, with real sessions."""
    return captured.copy(lake_path)


@pytest.fixture
def session(captured: CapturedLake) -> str:
    return captured.sessions["control_flow"]


@pytest.fixture(scope="module")
def knowing_home(captured: CapturedLake, new_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home for Dagster in which every session of the lake is known. Look, do not touch."""
    home = tmp_path_factory.mktemp("knowing") / "home"
    shutil.copytree(new_home, home, symlinks=True)
    with dg.DagsterInstance.from_config(str(home)) as instance:
        for session in captured.lake.sessions():
            make_known(captured.lake, instance, session, ())
    return home


@pytest.fixture
def healthy(knowing_home: Path, tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """An instance of the test's own that knows every session of the lake."""
    home = tmp_path / "healthy"
    shutil.copytree(knowing_home, home, symlinks=True)
    with dg.DagsterInstance.from_config(str(home)) as opened:
        yield opened


def only(found: list[Problem]) -> Problem:
    assert len(found) == 1, found
    return found[0]


def void(_: object) -> None:
    """Whatever comes, nothing goes."""


def mend(ailment: Problem) -> None:
    assert ailment.mend is not None
    assert ailment.mend()


def published_file(lake: TraceLake, session: str, table: str = "gaps") -> Path:
    (entry,) = lake.manifest(session).of_table(table)
    return lake.path / entry.file


def test_a_healthy_lake_has_no_ailments(lake: TraceLake, healthy: dg.DagsterInstance) -> None:
    assert examine(lake, healthy) == []


def test_nothing_at_all_is_healthy(lake_path: Path, instance: dg.DagsterInstance) -> None:
    assert examine(TraceLake(lake_path), instance) == []
    assert examine(TraceLake(lake_path), None) == []
    assert not lake_path.exists()


def test_without_an_instance_only_the_lake_is_looked_at(lake: TraceLake) -> None:
    assert examine(lake, None) == []


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
    leave: Callable[[TraceLake, str], Path], kind: str, lake: TraceLake, healthy: dg.DagsterInstance, session: str
) -> None:
    path = leave(lake, session)
    ailment = only(examine(lake, healthy))
    assert (ailment.kind, ailment.subject) == (kind, str(path))
    mend(ailment)
    assert not path.exists()
    assert examine(lake, healthy) == []


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
    tear: Callable[[TraceLake, str], None],
    kind: str,
    lake: TraceLake,
    healthy: dg.DagsterInstance,
    session: str,
) -> None:
    whole = lake.manifest(session).entries
    tear(lake, session)
    ailment = only(examine(lake, healthy))
    assert (ailment.kind, ailment.mend) == (kind, None)
    mend(only(examine(lake, healthy, lambda name: void(replayed(lake, name)))))
    assert examine(lake, healthy) == []
    assert lake.manifest(session).entries == whole


# What is wrong between the lake and Dagster.


def test_a_dead_run_is_found_and_reaped(lake: TraceLake, healthy: dg.DagsterInstance) -> None:
    gone = {**process_tags(), ".dagster/aaco/process/started": "1"}
    run = healthy.create_run_for_job(start_session, tags=gone, status=dg.DagsterRunStatus.STARTED)
    ailment = only(examine(lake, healthy))
    assert (ailment.kind, ailment.subject) == ("dead run", f"run {run.run_id}")
    assert "may hold the measurement slot" in ailment.explanation
    mend(ailment)
    assert examine(lake, healthy) == []
    after = healthy.get_run_by_id(run.run_id)
    assert after is not None
    assert after.status == dg.DagsterRunStatus.FAILURE


def queued(instance: dg.DagsterInstance, tags: dict[str, str]) -> dg.DagsterRun:
    repository = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("aaco"), "repository")
    origin = RemoteJobOrigin(repository, start_session.name)
    status = dg.DagsterRunStatus.QUEUED
    return instance.create_run_for_job(start_session, tags=tags, status=status, remote_job_origin=origin)


def daemons_word(instance: dg.DagsterInstance, at: float) -> None:
    instance.add_daemon_heartbeat(DaemonHeartbeat(at, "QUEUED_RUN_COORDINATOR", "a daemon"))


def test_a_run_in_a_queue_that_no_daemon_serves_is_taken_out_and_its_session_finished(
    lake: TraceLake, healthy: dg.DagsterInstance, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_runs, "LATE_WORD_SECONDS", 0.2)
    lake.record_failure(session, "report", "code", "killed")
    run = queued(healthy, {PARTITION_TAG: session})
    daemons_word(healthy, time.time())
    finished: list[str] = []
    ailment = only(examine(lake, healthy, finished.append))
    assert (ailment.kind, ailment.subject) == ("unserved run", f"run {run.run_id}")
    assert "no daemon of Dagster serves" in ailment.explanation
    mend(ailment)
    after = healthy.get_run_by_id(run.run_id)
    assert after is not None
    assert after.status == dg.DagsterRunStatus.CANCELED
    half = only(examine(lake, healthy, finished.append))  # no longer at work by Dagster's word
    assert (half.kind, half.subject) == ("half session", session)


def test_a_run_that_was_killed_before_it_was_launched_holds_up_no_mending(
    lake: TraceLake, healthy: dg.DagsterInstance, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_runs, "UNTAGGED_GRACE_SECONDS", 0.5)
    lake.record_failure(session, "report", "code", "killed")
    healthy.create_run_for_job(start_session, tags={PARTITION_TAG: session}, status=dg.DagsterRunStatus.NOT_STARTED)
    assert [one.kind for one in examine(lake, healthy, void)] == ["dead run", "half session"]


def test_a_queue_whose_daemon_says_a_word_is_left_to_it(
    lake: TraceLake, healthy: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_runs, "LATE_WORD_SECONDS", 60.0)
    queued(healthy, {})
    begun = time.time()
    daemons_word(healthy, begun - 1)
    monkeypatch.setattr(time, "sleep", lambda seconds: daemons_word(healthy, begun))
    assert examine(lake, healthy, void) == []
    assert examine(lake, healthy) == []  # without mending nothing is waited for


def test_a_session_that_dagster_does_not_know_gets_its_partition(
    lake: TraceLake, healthy: dg.DagsterInstance, session: str
) -> None:
    """A lake that was copied here, or made by another instance."""
    healthy.delete_dynamic_partition(PARTITIONS_NAME, session)
    ailment = only(examine(lake, healthy))
    assert (ailment.kind, ailment.subject) == ("session without partition", session)
    mend(ailment)
    assert healthy.has_dynamic_partition(PARTITIONS_NAME, session)
    assert examine(lake, healthy) == []


def test_a_partition_of_nothing_is_forgotten(lake: TraceLake, healthy: dg.DagsterInstance) -> None:
    lost = new_session_id()
    healthy.add_dynamic_partitions(PARTITIONS_NAME, [lost])
    assert examine(lake, healthy) == []  # it may be of another lake under the same home
    healthy.report_runless_asset_event(
        dg.AssetMaterialization("capture", partition=lost, metadata={"dagster/uri": str(lake.path)})
    )
    ailment = only(examine(lake, healthy))
    assert (ailment.kind, ailment.subject) == ("partition without session", lost)
    assert ailment.explanation == "the lake holds nothing of it"
    mend(ailment)
    assert not healthy.has_dynamic_partition(PARTITIONS_NAME, lost)
    assert examine(lake, healthy) == []


def test_a_session_that_was_begun_and_never_captured_is_finished(lake: TraceLake, healthy: dg.DagsterInstance) -> None:
    """What was asked for is measured: only an interrupt or `aaco rm` drops a request."""
    begun = register(lake, healthy, LAUNCH)
    every = len(stages_of("measured"))
    ailment = only(examine(lake, healthy, lambda name: materialized(lake, name)))
    assert (ailment.kind, ailment.subject, ailment.explanation) == ("half session", begun, f"0 of {every} stages")
    assert only(examine(lake, healthy)).mend is None
    assert only(examine(lake, None)).mend is None
    mend(ailment)
    assert lake.progress(begun).is_whole


def materialized(lake: TraceLake, session: str) -> None:
    """Every stage published without rows, as if it had run."""
    for name in lake.progress(session).expected:
        tables = {table: empty_table(table) for table in stages()[name].tables}
        lake.publish(session, name, tables)


def test_a_session_that_lacks_stages_or_whose_stage_failed_is_never_well(
    lake: TraceLake, healthy: dg.DagsterInstance, session: str
) -> None:
    lake.record_failure(session, "roofline", "code", "what and why")
    every = len(stages_of("measured"))
    for known in (healthy, None):
        ailment = only(examine(lake, known, lambda name: materialized(lake, name)))
        assert (ailment.kind, ailment.subject) == ("half session", session)
        assert ailment.explanation == f"{every - 1} of {every} stages; roofline failed: what and why"
    mend(ailment)
    assert examine(lake, healthy) == []


def test_a_half_session_whose_capture_is_gone_needs_a_person(
    lake: TraceLake, healthy: dg.DagsterInstance, session: str
) -> None:
    lake.record_failure(session, "roofline", "code", "what and why")
    shutil.rmtree(lake.raw(session))
    ailment = only(examine(lake, healthy, pytest.fail))
    assert (ailment.kind, ailment.subject, ailment.mend) == ("half session", session, None)
    assert "its capture is gone" in ailment.explanation


def test_a_removal_that_was_broken_off_is_ended_and_nothing_of_the_session_computed_again(
    lake: TraceLake, healthy: dg.DagsterInstance, session: str
) -> None:
    Account(lake).begin([Removal("session", session, 1, "age", "too old")])
    assert examine(lake, healthy) == []  # it is still whole: the next round of retention decides
    lake.marker_path(session, "session").unlink()
    lake.manifest_path(session, "session").unlink()
    ailment = next(one for one in examine(lake, healthy, pytest.fail) if one.kind != "orphan file")
    assert (ailment.kind, ailment.subject) == ("half removed", session)
    mend(ailment)
    assert not lake.raw(session).exists()
    assert session not in healthy.get_dynamic_partitions(PARTITIONS_NAME)
    assert examine(lake, healthy) == []


def test_a_session_of_nothing_is_forgotten(lake: TraceLake, healthy: dg.DagsterInstance) -> None:
    begun = register(lake, healthy, LAUNCH)
    lake.withdraw(begun)
    ailment = only(examine(lake, healthy, pytest.fail))
    assert (ailment.kind, ailment.subject) == ("session of nothing", begun)
    mend(ailment)
    assert examine(lake, healthy) == []


def test_a_session_that_another_process_is_at_work_on_is_left_to_it(
    lake: TraceLake, healthy: dg.DagsterInstance
) -> None:
    begun = register(lake, healthy, LAUNCH)
    with lake.running(begun):
        assert examine(lake, healthy) == []
        assert examine(lake, None) == []


@pytest.mark.parametrize("status", [dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.STARTED])
def test_a_session_that_a_run_is_about_to_capture_is_left_alone(
    status: dg.DagsterRunStatus, lake: TraceLake, healthy: dg.DagsterInstance
) -> None:
    begun = register(lake, healthy, LAUNCH)
    tags = {**process_tags(), "dagster/partition": begun}
    healthy.create_run_for_job(start_session, tags=tags, status=status)
    assert examine(lake, healthy) == []


@pytest.mark.parametrize("known", [True, False])
def test_a_capture_that_was_never_analysed_is_mended_by_analysing_it(
    known: bool, lake: TraceLake, healthy: dg.DagsterInstance, session: str
) -> None:
    """Its run was killed right after the capture was complete: a measurement is never thrown away."""
    kept = new_session_id()
    shutil.copytree(lake.raw(session), lake.raw(kept))
    if known:
        healthy.add_dynamic_partitions(PARTITIONS_NAME, [kept])
    analysed: list[str] = []
    ailment = only(examine(lake, healthy, analysed.append))
    assert (ailment.kind, ailment.subject) == ("half session", kept)
    assert ailment.mend is not None
    assert not ailment.mend()  # it has published nothing
    assert analysed == [kept]
    assert kept in healthy.get_dynamic_partitions(PARTITIONS_NAME)
    assert lake.raw(kept).is_dir()


def test_several_ailments_are_all_told(lake: TraceLake, healthy: dg.DagsterInstance, session: str) -> None:
    leave_orphan(lake, session)
    healthy.delete_dynamic_partition(PARTITIONS_NAME, session)
    register(lake, healthy, LAUNCH)
    found = examine(lake, healthy, lambda name: materialized(lake, name))
    assert {one.kind for one in found} == {"orphan file", "session without partition", "half session"}
    for ailment in found:
        mend(ailment)
    mend(only(examine(lake, healthy)))  # what was published beside Dagster just now
    assert examine(lake, healthy) == []
