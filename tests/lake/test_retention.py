"""Sessions stay or go by the rules of retention, and the account of removals survives any kill."""

import json
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from aaco_pipeline.errors import LakeError, UsageError
from aaco_pipeline.lake import retention
from aaco_pipeline.lake.files import exclusive_lock
from aaco_pipeline.lake.journal import Journal, JournalEntry
from aaco_pipeline.lake.layout import LakeFolder
from aaco_pipeline.lake.retention import (
    Account,
    Decision,
    Limits,
    Removal,
    SessionFacts,
    age_words,
    decide,
    parse_age,
    session_facts,
)
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.verified import RAW_LIST
from tests.lake.published import LATER, SESSION, Filled, file_of

ONE = Removal("session", "20260101T000000Z-00000001", 5, "beyond_limits", "older than 90 d")
OTHER = Removal("run", "1-2-3", 0, "age", "of session x")


@pytest.fixture
def account(lake_path: Path) -> Account:
    return Account(LakeFolder(lake_path))


def test_looking_at_an_account_makes_nothing(account: Account, lake_path: Path) -> None:
    assert account.pending() == []
    assert not lake_path.exists()


def test_what_was_begun_is_pending_until_it_is_ended(account: Account) -> None:
    account.begin([ONE, OTHER])
    assert account.pending() == [ONE, OTHER]
    account.end([ONE])
    assert account.pending() == [OTHER]
    account.end([OTHER])
    assert account.pending() == []


def test_every_line_says_when_what_how_large_and_by_which_rule(account: Account) -> None:
    account.begin([ONE])
    account.end([ONE])
    begun, removed = map(json.loads, account.path.read_text().splitlines())
    assert [begun["event"], removed["event"]] == ["begun", "removed"]
    for line in (begun, removed):
        assert line["at"].endswith("+00:00")
        assert {name: line[name] for name in ("kind", "name", "bytes", "rule", "reason")} == vars(ONE)


def test_a_line_cut_anywhere_by_a_kill_damages_none_after_it(account: Account) -> None:
    account.begin([ONE])
    whole = account.path.read_bytes()
    for length in range(len(whole)):
        account.path.write_bytes(whole[:length])
        account.begin([OTHER])
        assert account.pending()[-1] == OTHER
        assert len(account.pending()) == (2 if length >= len(whole) - 1 else 1)


def test_one_round_at_a_time(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "WAIT_SECONDS", 0)
    with account.held(), pytest.raises(LakeError, match="the lake's retention is locked by process"), account.held():
        pass
    with account.held():
        pass


NOW: Final = datetime(2026, 6, 1, tzinfo=UTC)
DAY: Final = timedelta(days=1)
KEEP_TEN_DAYS: Final = Limits(keep=10 * DAY)
DIGEST: Final = "ab" * 32


def session_of(age_days: float, number: int = 0) -> str:
    return f"{NOW - age_days * DAY:%Y%m%dT%H%M%SZ}-{number:08x}"


def facts(age_days: float, number: int = 0, **more: Any) -> SessionFacts:
    made = NOW - age_days * DAY
    return SessionFacts(**{"id": session_of(age_days, number), "bytes": 1, "changed_at": made, **more})


def decided(one: SessionFacts, limits: Limits = KEEP_TEN_DAYS, busy: Sequence[str] = ()) -> Decision:
    (decision,) = decide([one], limits, NOW, busy)
    return decision


def gone(sessions: Sequence[SessionFacts], limits: Limits) -> list[str]:
    return [one.session_id for one in decide(sessions, limits, NOW) if one.goes]


def test_a_session_goes_when_it_is_older_than_what_is_kept() -> None:
    assert decided(facts(9.9)).rule == "age"
    beyond = decided(facts(10))
    assert (beyond.goes, beyond.rule, beyond.reason) == (True, "beyond_limits", "older than 10 d")


def test_without_limits_nothing_goes() -> None:
    for limits in (Limits(), Limits(keep_baselines=True)):
        assert not limits.are_set
        assert decided(facts(9000), limits).rule == "no_limits"


def test_the_newest_stay_and_either_limit_keeps() -> None:
    sessions = [facts(age) for age in (50, 40, 30, 20, 5, 1)]
    assert gone(sessions, Limits(keep_last=2)) == [session_of(age) for age in (50, 40, 30, 20)]
    assert gone(sessions, Limits(keep=10 * DAY, keep_last=4)) == [session_of(age) for age in (50, 40)]
    assert gone(sessions, Limits(keep=45 * DAY, keep_last=1)) == [session_of(50)]
    assert gone(sessions, Limits(keep_last=6)) == gone(sessions, Limits(keep_last=100)) == []


def test_unfinished_sessions_do_not_drive_out_whole_ones() -> None:
    failures = [facts(age, is_whole=False) for age in (4, 3, 2)]
    assert gone([facts(60), facts(50), *failures], Limits(keep_last=1)) == [session_of(60)]


@pytest.mark.parametrize(
    ("more", "rule"),
    [
        ({"is_requested": True}, "requested"),
        ({"is_locked": True}, "in_work"),
        ({"is_whole": False, "changed_at": NOW - 0.9 * DAY}, "unfinished"),
        ({"is_readable": False}, "unreadable"),
        ({"needed_by": "nightly"}, "campaign"),
    ],
)
def test_what_is_needed_or_in_work_stays_whatever_its_age(more: Mapping[str, Any], rule: str) -> None:
    assert decided(facts(9000, **more), Limits(keep=DAY, keep_last=1)).rule == rule


def test_what_a_run_is_at_work_on_stays() -> None:
    assert decided(facts(9000), busy=[session_of(9000)]).rule == "in_work"


def test_an_unfinished_session_that_nobody_works_on_any_more_goes_like_others() -> None:
    assert decided(facts(50, is_whole=False)).goes


def test_a_baseline_stays_when_asked_for() -> None:
    assert decided(facts(50, is_baseline=True)).goes
    assert decided(facts(50, is_baseline=True), Limits(keep=DAY, keep_baselines=True)).rule == "baseline"


def test_all_of_an_open_campaign_stays_and_a_campaign_given_up_does_not() -> None:
    old, new = facts(50, campaign="sweep"), facts(2, 1, campaign="sweep")
    assert [one.rule for one in decide([old, new], Limits(keep=DAY), NOW)] == ["open_campaign"] * 2
    assert gone([old, facts(8, 1, campaign="sweep")], Limits(keep=DAY)) == [session_of(50), session_of(8, 1)]


def test_ages_are_read_and_said() -> None:
    assert (parse_age("90d"), parse_age("36h"), parse_age("2w")) == (90 * DAY, 1.5 * DAY, 14 * DAY)
    assert [age_words(age) for age in (90 * DAY, 1.5 * DAY, 14 * DAY)] == ["90 d", "36 h", "14 d"]
    for wrong in ("0d", "90", "d", "-1d", "1m", "9d9h", "١d", "123456d", ""):
        with pytest.raises(UsageError, match="is not an age"):
            parse_age(wrong)


def test_a_session_was_made_when_its_id_says() -> None:
    one = facts(3, id="20261122T044130Z-2e851ad6-squeezenet")
    assert one.made_at == datetime(2026, 11, 22, 4, 41, 30, tzinfo=UTC)
    assert facts(3, id="20269999T044130Z-2e851ad6").made_at == NOW - 3 * DAY


# The facts of a lake.


def publish(lake: TraceLake, session: str, filled: Filled, **columns: Any) -> None:
    lake.publish(session, "capture", {"sessions": filled("sessions", {name: [v] for name, v in columns.items()})})


def fact_of(lake: TraceLake, session: str) -> SessionFacts:
    return {one.id: one for one in session_facts(lake)}[session]


@pytest.fixture
def two(lake: TraceLake, filled: Filled) -> TraceLake:
    publish(lake, SESSION, filled, workload="w")
    publish(lake, LATER, filled, workload="w", campaign_id="sweep", arm="baseline")
    return lake


def test_an_empty_lake_has_no_facts(lake: TraceLake) -> None:
    assert session_facts(lake) == []
    assert not lake.path.exists()


def test_the_facts_of_published_sessions(two: TraceLake) -> None:
    plain, baseline = session_facts(two)
    assert (plain.id, plain.bytes, plain.is_whole) == (SESSION, two.disk_bytes(SESSION), True)
    assert (plain.is_locked, plain.is_requested, plain.campaign, plain.needed_by) == (False, False, None, None)
    assert (baseline.campaign, baseline.is_baseline, baseline.needed_by) == ("sweep", True, None)


def test_a_session_is_needed_by_the_campaign_that_names_it_in_any_column(two: TraceLake, filled: Filled) -> None:
    verdict = filled("verdicts", {"metric": ["p50"], "baseline": [SESSION], "candidate": ["arm"]})
    two.publish("nightly", "comparison", {"verdicts": verdict}, scope="campaign")
    assert [one.needed_by for one in session_facts(two)] == ["nightly", None]


def test_every_session_of_a_campaign_that_published_is_needed(two: TraceLake, filled: Filled) -> None:
    verdict = filled("verdicts", {"metric": ["p50"], "baseline": ["baseline"], "candidate": ["candidate"]})
    two.publish("sweep", "comparison", {"verdicts": verdict}, scope="campaign")
    assert [one.needed_by for one in session_facts(two)] == [None, "sweep"]


def test_a_campaign_that_cannot_be_read_stops_everything(two: TraceLake, filled: Filled) -> None:
    two.publish("nightly", "comparison", {"verdicts": filled("verdicts", {"metric": ["p50"]})}, scope="campaign")
    (entry,) = two.manifest("nightly", "campaign").entries
    (two.path / entry.file).write_bytes(b"torn")
    with pytest.raises(LakeError, match="verdicts"):
        session_facts(two)


def test_a_session_whose_own_row_is_torn_is_not_judged(two: TraceLake) -> None:
    file_of(two, "sessions").write_bytes(b"torn")
    assert [one.is_readable for one in session_facts(two)] == [False, True]


def test_what_is_asked_for_belongs_to_its_campaign(lake: TraceLake) -> None:
    lake.request(SESSION, json.dumps({"campaign_id": "sweep"}))
    lake.request(LATER, "no JSON")
    first, second = session_facts(lake)
    assert (first.is_requested, first.is_whole, first.campaign) == (True, False, "sweep")
    assert (second.is_requested, second.campaign) == (True, None)


def test_a_capture_without_tables_is_an_unfinished_session(lake: TraceLake) -> None:
    with lake.receive_raw(SESSION) as folder:
        (folder / "latency.json").write_text("{}")
    os.utime(lake.raw(SESSION), (0, 1_000_000))
    fact = fact_of(lake, SESSION)
    size = 2 + (lake.raw(SESSION) / RAW_LIST).stat().st_size
    assert (fact.is_whole, fact.bytes, fact.changed_at.timestamp()) == (False, size, 1_000_000)


def test_a_session_with_stages_missing_is_unfinished(two: TraceLake) -> None:
    two.expect(SESSION, ["capture", "timeline"])
    assert [one.is_whole for one in session_facts(two)] == [False, True]


def test_a_held_lock_is_seen_of_the_session_and_of_its_capture(two: TraceLake) -> None:
    with exclusive_lock(two.lock_path(SESSION), timeout_seconds=1, purpose="test"):
        assert [one.is_locked for one in session_facts(two)] == [True, False]
    journal = Journal(two)
    journal.keep(JournalEntry(DIGEST, LATER, 1, is_captured=True, writer="test"))
    with journal.held(DIGEST):
        assert [one.is_locked for one in session_facts(two)] == [False, True]
    assert [one.is_locked for one in session_facts(two)] == [False, False]
