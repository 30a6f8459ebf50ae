"""A round of retention over a lake: what goes, what stays, and that a kill anywhere leaves nothing half.

A campaign goes with all that is its own, or stays: not while it is measured; after a kill the rest goes, too.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest

from aaco_pipeline.errors import LakeError, UsageError
from aaco_pipeline.lake import storage
from aaco_pipeline.lake.files import lake_errors
from aaco_pipeline.lake.health import faults
from aaco_pipeline.lake.journal import Journal, JournalEntry
from aaco_pipeline.lake.layout import MANIFESTS, MARKED
from aaco_pipeline.lake.manifest import Manifest
from aaco_pipeline.lake.retention import Account, Limits
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.comparing.judging import half_campaigns
from aaco_pipeline.pipeline.comparing.plan import Plan, write_plan
from aaco_pipeline.pipeline.doctor import examine
from aaco_pipeline.pipeline.retention import (
    Round,
    clean_up,
    find_campaign,
    remove_campaigns,
    require_whole,
    sessions_of,
)
from tests.lake.conftest import _filled
from tests.pipeline.comparing.made_up import measured, planned, publish_latency
from tests.pipeline.conftest import Killed
from tests.report.made_up import rows_of

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


#: Functions by which a round changes the disk, and by which a campaign is removed.
STEPS: Final = ((Path, "unlink"), (Path, "rename"), (shutil, "rmtree"), (Account, "begin"), (Account, "end"))
REMOVALS: Final = ((shutil, "rmtree"), (storage, "sync_folder"), (storage.LocalStorage, "clear"))


@contextmanager
def killed_at(step: int, patch: pytest.MonkeyPatch, steps: Sequence[tuple[Any, str]] = STEPS) -> Iterator[list[str]]:
    """Kill the block at its step number `step`; yield the steps it came to."""
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
        for owner, name in steps:
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


ALONE = "20260101T000000Z-0000000a-alone"


def all_manifests(lake: TraceLake) -> list[Manifest]:
    return [*lake.manifests("session"), *lake.manifests("campaign")]


@pytest.fixture
def plan(empty_lake: TraceLake) -> Plan:
    """A campaign that was measured and never judged, beside a session that is nobody's."""
    publish_latency(empty_lake, ALONE, 1e6, 1)
    made = planned(empty_lake, blocks=3)
    write_plan(empty_lake, made)
    measured(empty_lake, made)
    return made


def own(lake: TraceLake, plan: Plan) -> dict[str, list[str]]:
    return {plan.campaign: sessions_of(lake, plan.campaign)}


def test_it_goes_with_its_sessions_and_nothing_else_does(empty_lake: TraceLake, plan: Plan) -> None:
    assert len(sessions_of(empty_lake, plan.campaign)) == 6
    done = remove_campaigns(empty_lake, own(empty_lake, plan))
    assert (done.failed, len(done.removed)) == ([], 7)
    assert empty_lake.sessions() == [ALONE]
    assert [one.id for one in all_manifests(empty_lake)] == [ALONE]
    assert list(empty_lake.path.glob("*/campaign_id=*")) == []
    assert half_campaigns(empty_lake) == []
    assert Account(empty_lake).pending() == []


def test_not_while_somebody_measures_it_nor_while_a_session_is_in_work(empty_lake: TraceLake, plan: Plan) -> None:
    before, campaigns = all_manifests(empty_lake), own(empty_lake, plan)
    with empty_lake.measuring(plan.campaign), pytest.raises(LakeError, match=f"{plan.campaign} is being measured"):
        remove_campaigns(empty_lake, campaigns)
    session = campaigns[plan.campaign][0]
    with empty_lake.running(session), pytest.raises(LakeError, match=f"session {session} of campaign .* is in work"):
        remove_campaigns(empty_lake, campaigns)
    assert all_manifests(empty_lake) == before
    assert Account(empty_lake).pending() == []


def wrong_with(lake: TraceLake) -> set[str]:
    """Return what doctor finds, except that the made-up sessions lack stages."""
    return {one.kind for one in examine(lake, lambda session: None)} - {"half session", "earlier version"}


def test_killed_at_any_step_it_is_no_campaign_any_more_and_the_next_round_removes_the_rest(
    tmp_path: Path, empty_lake: TraceLake, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, ended = 0, False
    while not ended:
        copy = TraceLake(shutil.copytree(empty_lake.path, tmp_path / f"lake{step}"))
        with killed_at(step, monkeypatch, REMOVALS):
            try:
                remove_campaigns(copy, own(copy, plan))
                ended = True
            except Killed:
                pass
        assert half_campaigns(copy) == []
        kinds = wrong_with(copy)
        assert kinds <= {"half removed", "orphan file", "stale lock", "unfinished write"}
        assert ("half removed" in kinds) is not ended
        clean_up(copy, Limits(), datetime.now(UTC))  # whatever the limits: it was asked for by name
        assert copy.sessions() == [ALONE]
        assert Account(copy).pending() == []
        assert wrong_with(copy) == set()
        step += 7
    assert step > 21


def test_a_session_of_a_campaign_does_not_go_without_it(empty_lake: TraceLake, plan: Plan) -> None:
    session = sessions_of(empty_lake, plan.campaign)[0]
    with pytest.raises(UsageError, match=f"`aaco rm {plan.campaign}` removes both"):
        require_whole(empty_lake, [ALONE, session], [])
    require_whole(empty_lake, [ALONE, session], [plan.campaign])
    require_whole(empty_lake, [ALONE], [])


def test_a_campaign_is_found_by_the_beginning_of_its_id(empty_lake: TraceLake, plan: Plan) -> None:
    assert find_campaign(empty_lake, plan.campaign) == plan.campaign
    assert find_campaign(empty_lake, "compare-") == plan.campaign
    assert find_campaign(empty_lake, "nightly-") is None
    planned(empty_lake)
    with pytest.raises(UsageError, match="'compare-' is ambiguous"):
        find_campaign(empty_lake, "compare-")


def one_row(table: str, **row: object) -> pl.DataFrame:
    return rows_of(table, [row]).drop("campaign_id", strict=False)


def test_a_sweep_goes_with_its_sessions_and_a_baseline_is_retired_instead(empty_lake: TraceLake) -> None:
    publish_latency(empty_lake, ALONE, 1e6, 1)
    empty_lake.publish("a-sweep", "sweep", {"scaling": one_row("scaling", session_id=ALONE)}, scope="campaign")
    assert sessions_of(empty_lake, "a-sweep") == [ALONE]
    empty_lake.publish(
        "baseline-1", "baseline", {"baselines": one_row("baselines", since=datetime.now(UTC))}, scope="campaign"
    )
    with pytest.raises(UsageError, match="`aaco baseline retire baseline-1`"):
        sessions_of(empty_lake, "baseline-1")
