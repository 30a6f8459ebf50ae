"""A round of retention over a lake: what goes, what stays, and that a kill anywhere leaves nothing half."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from aaco_pipeline.lake.files import lake_errors
from aaco_pipeline.lake.health import faults
from aaco_pipeline.lake.journal import Journal, JournalEntry
from aaco_pipeline.lake.layout import MANIFESTS, MARKED
from aaco_pipeline.lake.removals import Account
from aaco_pipeline.lake.retention import Limits
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.retention import Round, clean_up
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
        lake.publish(session, "capture", {"sessions": _filled("sessions", {"workload": ["w"]})})
        with lake.new_view(session, "perfetto_trace", lake.trace(session), "what it rests on") as path:
            path.write_bytes(b"trace")
        Journal(lake).keep(JournalEntry(DIGESTS[session], session, 1, is_captured=True, writer="test"))
    return lake


@pytest.fixture
def lake(empty_lake: TraceLake) -> TraceLake:
    """A lake of three captured sessions; the two older ones are beyond the limits."""
    return fill(empty_lake, OLDER, OLD, NEW)


def names(done: Round, kind: str) -> list[str]:
    return [one.name for one in done.removed if one.kind == kind]


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_sessions_beyond_the_limits_go_with_captures_traces_and_journal(lake: TraceLake) -> None:
    done = clean_up(lake, LIMITS, NOW)
    assert names(done, "session") == [OLDER, OLD]
    assert [one.session_id for one in done.kept] == [NEW]
    assert lake.sessions() == lake.captured() == [NEW]
    assert [entry.session_id for entry in Journal(lake).entries()] == [NEW]
    assert not any(OLD in name or OLDER in name for name in files(lake.path))
    assert faults(lake) == []


def test_a_dry_round_touches_nothing_and_says_the_same(lake: TraceLake) -> None:
    before = files(lake.path)
    dry = clean_up(lake, LIMITS, NOW, dry_run=True)
    assert files(lake.path) == before
    assert clean_up(lake, LIMITS, NOW) == dry


def test_without_limits_only_leftovers_go(lake: TraceLake) -> None:
    left = lake.path / "raw" / ".tmp-999999999-ab"
    left.mkdir()
    (left / "part").write_bytes(b"123")
    fresh = lake.path / "raw" / ".tmp-999999999-cd"
    fresh.mkdir()
    long_ago = NOW.timestamp() - 90000
    os.utime(left, (long_ago, long_ago))
    os.utime(fresh, (NOW.timestamp(), NOW.timestamp()))
    done = clean_up(lake, Limits(), NOW)
    assert [(one.name, one.bytes) for one in done.removed] == [("raw/.tmp-999999999-ab", 3)]
    assert fresh.is_dir(), "it may be another host's that is still writing"
    assert lake.sessions() == [OLDER, OLD, NEW]


def test_the_account_says_what_went(lake: TraceLake) -> None:
    bytes_ = {session: lake.disk_bytes(session) for session in (OLDER, OLD)}
    clean_up(lake, LIMITS, NOW)
    lines = [json.loads(line) for line in Account(lake).path.read_text().splitlines()]
    assert [(one["event"], one["name"], one["bytes"], one["rule"]) for one in lines] == [
        (event, session, bytes_[session], "beyond_limits") for session in (OLDER, OLD) for event in ("begun", "removed")
    ]


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
                clean_up(copy, LIMITS, NOW)
                ended = True
            except Killed:
                pass
        assert_nothing_half(copy)
        clean_up(copy, LIMITS, NOW)
        assert copy.sessions() == copy.captured() == [NEW]
        stayed = {name for name in files(lake.path) if NEW in name or DIGESTS[NEW] in name}
        assert files(copy.path) - {"removals.jsonl", f"{MANIFESTS}/{MARKED}"} == stayed
        assert Account(copy).pending() == []
        assert told(copy, "removed") == [OLDER, OLD]
        step += 1
    assert step > 15


def test_a_session_that_a_killed_round_had_not_touched_is_decided_anew(lake: TraceLake) -> None:
    dry = clean_up(lake, LIMITS, NOW, dry_run=True)
    Account(lake).begin(dry.removed)
    assert clean_up(lake, Limits(), NOW).removed == []
    assert lake.sessions() == [OLDER, OLD, NEW]


def test_what_cannot_be_removed_stops_nothing_else(lake: TraceLake, monkeypatch: pytest.MonkeyPatch) -> None:
    real = lake.remove

    def remove(session: str) -> int:
        if session == OLDER:
            with lake_errors(lake.path):
                raise PermissionError(13, "Permission denied", str(lake.raw(OLDER)))
        return real(session)

    monkeypatch.setattr(lake, "remove", remove)
    done = clean_up(lake, LIMITS, NOW)
    assert names(done, "session") == [OLD]
    assert len(done.failed) == 1
    assert OLDER in done.failed[0]
    monkeypatch.undo()
    assert names(clean_up(lake, LIMITS, NOW), "session") == [OLDER]


def test_the_same_capture_becomes_a_new_session_once_the_old_one_is_gone(lake: TraceLake) -> None:
    clean_up(lake, LIMITS, NOW)
    journal = Journal(lake)
    assert journal.entry(DIGESTS[OLD]) is None
    assert journal.entry(DIGESTS[NEW]) is not None
