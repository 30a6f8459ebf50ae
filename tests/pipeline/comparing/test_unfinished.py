"""Campaigns that have a plan and no verdict, those whose night is over, and what doctor says of them."""

from datetime import UTC, date, datetime, timedelta

import pytest

from aaco_pipeline.lake.removals import ASKED, Account, Removal
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.lake.validation import empty_table
from aaco_pipeline.pipeline.comparing.plan import Kind, new_plan, write_plan
from aaco_pipeline.pipeline.comparing.unfinished import half_campaigns, over
from aaco_pipeline.pipeline.doctor import Problem, examine
from tests.pipeline.comparing.made_up import BASELINE

TODAY = datetime.now(UTC).date()


def begun(lake: TraceLake, kind: Kind = "compare", night: date | None = None, confirms: str | None = None) -> str:
    plan = new_plan(kind, {"baseline": BASELINE, "candidate": BASELINE}, night=night, confirms=confirms)
    write_plan(lake, plan)
    return plan.campaign


def judged(lake: TraceLake, campaign: str) -> None:
    lake.publish(campaign, "judging", {"verdicts": empty_table("verdicts")}, scope="campaign")


def found(lake: TraceLake) -> list[Problem]:
    return examine(lake, pytest.fail)


def test_a_campaign_is_half_from_its_plan_to_its_verdict_or_its_removal(empty_lake: TraceLake) -> None:
    empty_lake.publish("a-sweep", "sweep", {"scaling": empty_table("scaling")}, scope="campaign")
    first, second, third = (begun(empty_lake) for _ in range(3))
    assert set(half_campaigns(empty_lake)) == {first, second, third}
    judged(empty_lake, first)
    assert set(half_campaigns(empty_lake)) == {second, third}
    Account(empty_lake).begin([Removal("campaign", second, 0, ASKED, "removed by hand")])
    assert half_campaigns(empty_lake) == [third]


def test_a_night_is_over_the_day_after_unless_the_campaign_confirms_what_it_found(empty_lake: TraceLake) -> None:
    before = TODAY - timedelta(days=1)
    tonights, old = begun(empty_lake, "nightly", TODAY), begun(empty_lake, "nightly", before)
    confirming = begun(empty_lake, "nightly", before, confirms=old)
    half = half_campaigns(empty_lake)
    assert set(half) == {tonights, old, confirming}
    assert over(empty_lake, half, TODAY) == {old: before}
    told = {one.subject: one.explanation for one in found(empty_lake)}
    assert told[old] == f"its night, {before}, is over, so nobody goes on with it; `aaco rm {old}` removes it"
    assert "--resume" in told[tonights]


def test_doctor_names_a_half_campaign_unless_somebody_is_at_work_on_it(empty_lake: TraceLake) -> None:
    campaign = begun(empty_lake)
    why = f"it has a plan and no verdict; `aaco compare --resume {campaign}` goes on, `aaco rm` gives it up"
    assert found(empty_lake) == [Problem("half campaign", campaign, why)]
    with empty_lake.measuring(campaign):
        assert found(empty_lake) == []
    judged(empty_lake, campaign)
    assert found(empty_lake) == []


def test_campaigns_that_wait_for_another_of_their_night_are_no_problem(empty_lake: TraceLake) -> None:
    first, second = (begun(empty_lake, "nightly", TODAY) for _ in range(2))
    assert {one.subject for one in found(empty_lake)} == {first, second}
    with empty_lake.measuring(first):
        assert found(empty_lake) == []


def test_a_step_of_a_search_is_removed_and_not_resumed(empty_lake: TraceLake) -> None:
    campaign = begun(empty_lake, "configure")
    (problem,) = found(empty_lake)
    assert problem.explanation == f"the search that it is a step of ended without it; `aaco rm {campaign}` removes it"
