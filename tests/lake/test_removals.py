"""The account of what went: what was begun and not ended is known after any kill, and nothing else is."""

import json
from pathlib import Path

import pytest

from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake import retention
from aaco_pipeline.lake.layout import LakeFolder
from aaco_pipeline.lake.retention import Account, Removal

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
