"""A campaign goes with all that is its own, or stays: not while it is measured; after a kill the rest goes, too."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

from aaco_pipeline.errors import LakeError, UsageError
from aaco_pipeline.lake import storage
from aaco_pipeline.lake.manifest import Manifest
from aaco_pipeline.lake.removals import Account
from aaco_pipeline.lake.retention import Limits
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.comparing.plan import Plan
from aaco_pipeline.pipeline.comparing.removing import (
    find_campaign,
    remove_campaigns,
    require_whole,
    sessions_of,
)
from aaco_pipeline.pipeline.comparing.running import begin
from aaco_pipeline.pipeline.comparing.unfinished import half_campaigns
from aaco_pipeline.pipeline.doctor import examine
from aaco_pipeline.pipeline.retention import clean_up
from tests.pipeline.comparing.made_up import measured, planned, publish_latency
from tests.report.made_up import rows_of

ALONE = "20260101T000000Z-0000000a-alone"


def all_manifests(lake: TraceLake) -> list[Manifest]:
    return [*lake.manifests("session"), *lake.manifests("campaign")]


class Killed(BaseException):
    """Stands for a kill: nothing catches it."""


@pytest.fixture
def plan(empty_lake: TraceLake) -> Plan:
    """A campaign that was measured and never judged, beside a session that is nobody's."""
    publish_latency(empty_lake, ALONE, 1e6, 1)
    made = planned(empty_lake, blocks=3)
    begin(empty_lake, made)
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


@contextmanager
def killed_at(step: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A kill before the how-manieth folder is removed or synced."""
    left = step

    with monkeypatch.context() as patch:
        for module, name in ((shutil, "rmtree"), (storage, "sync_folder"), (storage.LocalStorage, "clear")):
            real = getattr(module, name)

            def step_taken(*arguments: object, real: object = real, **more: object) -> None:
                nonlocal left
                if left == 0:
                    raise Killed
                left -= 1
                real(*arguments, **more)  # type: ignore[operator]

            patch.setattr(module, name, step_taken)
        yield


def wrong_with(lake: TraceLake) -> set[str]:
    """What doctor finds, but that its made-up sessions lack stages."""
    return {one.kind for one in examine(lake, lambda session: None)} - {"half session", "earlier version"}


def test_killed_at_any_step_it_is_no_campaign_any_more_and_the_next_round_removes_the_rest(
    tmp_path: Path, empty_lake: TraceLake, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, ended = 0, False
    while not ended:
        copy = TraceLake(shutil.copytree(empty_lake.path, tmp_path / f"lake{step}"))
        with killed_at(step, monkeypatch):
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
