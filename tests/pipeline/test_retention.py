"""A round of retention over lake and Dagster: what goes, what stays, and that a kill anywhere leaves nothing half."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import dagster as dg
import pytest

from aaco_pipeline.automation import retention
from aaco_pipeline.automation.attempts import PARTITION_TAG, SESSION_TAG
from aaco_pipeline.automation.event_storage import forget_run, stored_bytes
from aaco_pipeline.automation.partitions import PARTITIONS_NAME
from aaco_pipeline.lake.files import lake_errors
from aaco_pipeline.lake.health import faults
from aaco_pipeline.lake.journal import Journal, JournalEntry
from aaco_pipeline.lake.layout import MANIFESTS, MARKED
from aaco_pipeline.lake.removals import Account
from aaco_pipeline.lake.retention import Limits
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.retention import Round, clean_up
from aaco_pipeline.pipeline.sessions import add_partition
from tests.lake.conftest import _filled

#: Far ahead of the clock, so that what a test leaves behind is old.
NOW: Final = datetime(2126, 6, 1, tzinfo=UTC)
OLD: Final = "21260101T000000Z-0000000a-old"
OLDER: Final = "21250601T000000Z-0000000b"
NEW: Final = "21260530T000000Z-0000000c-new"
LIMITS: Final = Limits(keep=timedelta(days=30))
DIGESTS: Final = {OLDER: "aa" * 32, OLD: "bb" * 32, NEW: "cc" * 32}


def fill(lake: TraceLake, *sessions: str) -> TraceLake:
    for session in sessions:
        with lake.receive_raw(session) as folder:
            (folder / "capture.json").write_text("{}")
        with lake.new_artifact(session, "capture", lake.trace(session)) as path:
            path.write_bytes(b"trace")
        lake.publish(session, "capture", {"sessions": _filled("sessions", {"workload": ["w"]})})
        Journal(lake).keep(JournalEntry(DIGESTS[session], session, 1, is_captured=True, writer="test"))
    return lake


@pytest.fixture
def lake(empty_lake: TraceLake) -> TraceLake:
    """A lake of three captured sessions; the two older ones are beyond the limits."""
    return fill(empty_lake, OLDER, OLD, NEW)


def add_run(
    instance: dg.DagsterInstance, status: dg.DagsterRunStatus = dg.DagsterRunStatus.SUCCESS, **tags: str
) -> str:
    """A run with one event of a stage; tags are named by `session` and `partition`."""
    named = {"session": SESSION_TAG, "partition": PARTITION_TAG}
    run = dg.DagsterRun("observe", status=status, tags={named[name]: value for name, value in tags.items()})
    instance.add_run(run)
    materialization = dg.AssetMaterialization("timeline", partition=tags.get("partition"))
    instance.report_runless_asset_event(materialization)
    instance.report_engine_event("an event", run)
    return run.run_id


def names(done: Round, kind: str) -> list[str]:
    return [one.name for one in done.removed if one.kind == kind]


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_sessions_beyond_the_limits_go_with_captures_traces_and_journal(lake: TraceLake) -> None:
    done = clean_up(lake, None, LIMITS, NOW)
    assert names(done, "session") == [OLDER, OLD]
    assert [one.session_id for one in done.kept] == [NEW]
    assert lake.sessions() == lake.captured() == [NEW]
    assert [entry.session_id for entry in Journal(lake).entries()] == [NEW]
    assert not any(OLD in name or OLDER in name for name in files(lake.path))
    assert faults(lake) == []


def test_a_dry_round_touches_nothing_and_says_the_same(lake: TraceLake) -> None:
    before = files(lake.path)
    dry = clean_up(lake, None, LIMITS, NOW, dry_run=True)
    assert files(lake.path) == before
    assert clean_up(lake, None, LIMITS, NOW) == dry


def test_without_limits_only_leftovers_go(lake: TraceLake) -> None:
    left = lake.path / "raw" / ".tmp-999999999-ab"
    left.mkdir()
    (left / "part").write_bytes(b"123")
    fresh = lake.path / "raw" / ".tmp-999999999-cd"
    fresh.mkdir()
    long_ago = NOW.timestamp() - 90000
    os.utime(left, (long_ago, long_ago))
    os.utime(fresh, (NOW.timestamp(), NOW.timestamp()))
    done = clean_up(lake, None, Limits(), NOW)
    assert [(one.name, one.bytes) for one in done.removed] == [("raw/.tmp-999999999-ab", 3)]
    assert fresh.is_dir(), "it may be another host's that is still writing"
    assert lake.sessions() == [OLDER, OLD, NEW]


def test_the_account_says_what_went(lake: TraceLake) -> None:
    bytes_ = {session: lake.disk_bytes(session) for session in (OLDER, OLD)}
    clean_up(lake, None, LIMITS, NOW)
    lines = [json.loads(line) for line in Account(lake).path.read_text().splitlines()]
    assert [(one["event"], one["name"], one["bytes"], one["rule"]) for one in lines] == [
        (event, session, bytes_[session], "beyond_limits") for session in (OLDER, OLD) for event in ("begun", "removed")
    ]


def test_runs_and_partitions_of_what_goes_are_forgotten(lake: TraceLake, instance: dg.DagsterInstance) -> None:
    add_partition(instance, OLDER, OLD, NEW)
    gone = [add_run(instance, partition=OLDER, session=OLDER), add_run(instance, partition=OLDER)]
    stays = add_run(instance, partition=NEW, session=NEW)
    shared = add_run(instance, session=f"{OLD},{NEW}")
    assert all(stored_bytes(instance, run_id) for run_id in gone)
    done = clean_up(lake, instance, LIMITS, NOW)
    assert sorted(names(done, "run")) == sorted(gone)
    assert {run.run_id for run in instance.get_runs()} == {stays, shared}
    assert instance.get_dynamic_partitions(PARTITIONS_NAME) == [NEW]
    assert [stored_bytes(instance, run_id) for run_id in gone] == [0, 0]
    assert instance.all_logs(stays)


def test_runs_that_ended_long_ago_go_once_their_sessions_have(lake: TraceLake, instance: dg.DagsterInstance) -> None:
    other = [add_run(instance), add_run(instance, session=f"{OLD},{OLDER}")]
    add_run(instance, dg.DagsterRunStatus.STARTED)
    add_run(instance, session=f"{OLD},{NEW}")
    assert names(clean_up(lake, instance, LIMITS, datetime.now(UTC)), "run") == []
    assert sorted(names(clean_up(lake, instance, LIMITS, NOW), "run")) == sorted(other)
    assert len(instance.get_runs()) == 2


def test_what_a_living_run_is_at_work_on_stays(lake: TraceLake, instance: dg.DagsterInstance) -> None:
    add_run(instance, dg.DagsterRunStatus.STARTED, partition=OLD)
    done = clean_up(lake, instance, LIMITS, NOW)
    assert {one.session_id: one.rule for one in done.kept} == {OLD: "in_work", NEW: "age"}


def test_a_run_is_forgotten_with_the_results_of_its_checks(instance: dg.DagsterInstance) -> None:
    """What `DagsterInstance.delete_run` leaves."""
    run_id = add_run(instance, partition=OLD)
    storage: Any = instance.event_log_storage
    evaluation = dg.AssetCheckEvaluation(dg.AssetKey("timeline"), "contract", passed=True, metadata={}, partition=OLD)
    event = dg.DagsterEvent("ASSET_CHECK_EVALUATION", "observe", event_specific_data=evaluation)
    instance.report_dagster_event(event, run_id)
    key = dg.AssetCheckKey(dg.AssetKey("timeline"), "contract")
    assert len(storage.get_asset_check_execution_history(key, limit=9)) == 1
    forget_run(instance, run_id)
    forget_run(instance, run_id)
    assert storage.get_asset_check_execution_history(key, limit=9) == []
    assert instance.get_run_by_id(run_id) is None


# Killed anywhere.


class Killed(BaseException):
    """What stands for a kill: nothing catches it."""


#: What a round does to the disk, one after the other.
STEPS: Final = ((Path, "unlink"), (Path, "rename"), (shutil, "rmtree"), (Account, "begin"), (Account, "end"))


@contextmanager
def killed_at(step: int, patch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A block that is killed at its step number `step`; the steps it came to."""
    came: list[str] = []

    def watched(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if len(came) == step:
                raise Killed(name)
            came.append(name)
            return real(*arguments, **options)

        return call

    with patch.context() as inner:
        inner.setattr(os, "getpid", lambda: 999999999)  # what it leaves is a dead writer's
        for owner, name in STEPS:
            inner.setattr(owner, name, watched(name, getattr(owner, name)))
        yield came


def assert_nothing_half(lake: TraceLake) -> None:
    for session in (OLDER, OLD, NEW):
        if lake.manifest_path(session, "session").exists():
            assert lake.read("sessions", session).height == 1
            assert (lake.raw(session) / "capture.json").is_file()
            assert lake.trace(session).is_file()
        elif lake.raw(session).exists():
            assert (lake.raw(session) / "capture.json").is_file(), "half a capture would be analysed"
    assert all(fault.mendable for fault in faults(lake))


def told(lake: TraceLake, event: str) -> list[str]:
    """The sessions of which the account says `event`."""
    lines = [json.loads(line) for line in Account(lake).path.read_text().splitlines()]
    return [one["name"] for one in lines if one["event"] == event and one["kind"] == "session"]


def test_killed_at_any_step_nothing_is_half_and_the_next_round_goes_on(
    tmp_path: Path, lake: TraceLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, ended = 0, False
    while not ended:
        copy = TraceLake(shutil.copytree(lake.path, tmp_path / f"lake{step}"))
        with killed_at(step, monkeypatch):
            try:
                clean_up(copy, None, LIMITS, NOW)
                ended = True
            except Killed:
                pass
        assert_nothing_half(copy)
        clean_up(copy, None, LIMITS, NOW)
        assert copy.sessions() == copy.captured() == [NEW]
        stayed = {name for name in files(lake.path) if NEW in name or DIGESTS[NEW] in name}
        assert files(copy.path) - {"removals.jsonl", f"{MANIFESTS}/{MARKED}"} == stayed
        assert Account(copy).pending() == []
        assert told(copy, "removed") == [OLDER, OLD]
        step += 1
    assert step > 15


def test_killed_between_lake_and_dagster_the_next_round_goes_on(
    lake: TraceLake, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_partition(instance, OLD, NEW)
    run_id = add_run(instance, partition=OLD)
    with monkeypatch.context() as patch:

        def killed(*_: object) -> None:
            raise Killed

        patch.setattr(retention, "forget_run", killed)
        with pytest.raises(Killed):
            clean_up(lake, instance, LIMITS, NOW)
    assert instance.get_run_by_id(run_id) is not None
    assert [one.name for one in Account(lake).pending()] == [OLD, run_id]
    clean_up(lake, instance, LIMITS, NOW)
    assert instance.get_runs() == []
    assert instance.get_dynamic_partitions(PARTITIONS_NAME) == [NEW]
    assert Account(lake).pending() == []


def test_a_session_that_a_killed_round_had_not_touched_is_decided_anew(lake: TraceLake) -> None:
    dry = clean_up(lake, None, LIMITS, NOW, dry_run=True)
    Account(lake).begin(dry.removed)
    assert clean_up(lake, None, Limits(), NOW).removed == []
    assert lake.sessions() == [OLDER, OLD, NEW]


def test_what_cannot_be_removed_stops_nothing_else(lake: TraceLake, monkeypatch: pytest.MonkeyPatch) -> None:
    real = lake.remove

    def remove(session: str) -> int:
        if session == OLDER:
            with lake_errors(lake.path):
                raise PermissionError(13, "Permission denied", str(lake.raw(OLDER)))
        return real(session)

    monkeypatch.setattr(lake, "remove", remove)
    done = clean_up(lake, None, LIMITS, NOW)
    assert names(done, "session") == [OLD]
    assert len(done.failed) == 1
    assert OLDER in done.failed[0]
    monkeypatch.undo()
    assert names(clean_up(lake, None, LIMITS, NOW), "session") == [OLDER]


def test_the_same_capture_becomes_a_new_session_once_the_old_one_is_gone(lake: TraceLake) -> None:
    clean_up(lake, None, LIMITS, NOW)
    journal = Journal(lake)
    assert journal.entry(DIGESTS[OLD]) is None
    assert journal.entry(DIGESTS[NEW]) is not None
