"""Nights in a lake: their tables close with the last campaign, findings are confirmed, people acknowledge them."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from itertools import accumulate
from typing import Any, Final

import polars as pl
import pytest

from aaco_pipeline.errors import UsageError
from aaco_pipeline.lake.contracts import polars_types
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.comparing.judging import judge_campaign
from aaco_pipeline.pipeline.comparing.measuring import publish_members
from aaco_pipeline.pipeline.comparing.plan import Plan, Subject, new_plan, write_plan
from aaco_pipeline.pipeline.nightly.alerts import (
    STAGE,
    acknowledge,
    due_confirmations,
    judge_night,
    missing_nights,
    waits_for,
)
from aaco_pipeline.statistics.alerts.events import alerts
from tests.pipeline.comparing.made_up import BASELINE, OTHER
from tests.report.made_up import rows_of

NIGHT: Final = date(2026, 11, 2)
TWO: Final = datetime(2026, 11, 2, 2, tzinfo=UTC)
FACTS: Final = (("boot", "id", "boot1"), ("identity", "gpu0.unique_id", "0x1"), ("gpu", "unique_id", "0x1"))


def planned(
    lake: TraceLake,
    night: date | None = NIGHT,
    *,
    confirms: str | None = None,
    model: str = "old",
    candidate: Subject = OTHER,
) -> Plan:
    """A campaign of a night with a placebo, of another workload for every model."""
    base = BASELINE if model == "old" else _of_model(model)
    plan = new_plan(
        "nightly", {"baseline": base, "candidate": candidate, "placebo": base}, blocks=5, traced_blocks=0, seed=1
    )
    write_plan(lake, plan)
    row = lake.read("campaigns", plan.campaign).with_columns(
        night=pl.lit(night, pl.Date), confirms=pl.lit(confirms, pl.String)
    )
    arms = lake.read("campaign_arms", plan.campaign)
    lake.publish(plan.campaign, "plan", {"campaigns": row, "campaign_arms": arms}, scope="campaign")
    return plan


def _of_model(model: str) -> Subject:
    return replace(BASELINE, request=BASELINE.request.model_copy(update={"model": model}))


def measured(
    lake: TraceLake, plan: Plan, ratio: float, began: datetime, facts: tuple[tuple[str, str, str], ...] = FACTS
) -> None:
    """All of its blocks: the candidate takes `ratio` times as long; judged, and the night asked."""
    rows: list[Mapping[str, Any]] = []
    for block in range(plan.blocks):
        for position, arm in enumerate(plan.order(block)):
            session = lake.new_session(arm)
            own = 1e6 * (1 + 0.01 * block) * (1 + 0.002 * ((7 * block + 3 * position) % 5))
            moment = began + timedelta(seconds=len(rows))
            lake.publish(session, "capture", _tables(own * (ratio if arm == "candidate" else 1.0), moment, facts))
            rows.append({"block": block, "position": position, "arm": arm, "session_id": session})
    frame = pl.DataFrame(
        [{**row, "purpose": "latency", "state": "finished"} for row in rows], schema=polars_types("campaign_sessions")
    )
    publish_members(lake, plan.campaign, frame)
    judge_campaign(lake, plan.campaign)


def _tables(median_ns: float, began: datetime, facts: tuple[tuple[str, str, str], ...]) -> dict[str, pl.DataFrame]:
    took = [round(median_ns * (1 + 0.001 * (i % 3))) for i in range(40)]
    ends = list(accumulate(took))
    told = {
        "sessions": [{"source_kind": "live", "host": "node1", "started_at": began}],
        "environment": [
            {"category": category, "key": key, "value": value, "in_fingerprint": False}
            for category, key, value in facts
        ],
        "iterations": [
            {"pass": "latency", "iteration": i, "phase": "measure", "start_ns": end - one, "end_ns": end}
            | {"latency_ns": one}
            for i, (one, end) in enumerate(zip(took, ends, strict=True))
        ],
    }
    return {name: rows_of(name, rows) for name, rows in told.items()}


def judged(lake: TraceLake, plan: Plan, ratio: float, began: datetime, **facts: Any) -> list[str]:
    measured(lake, plan, ratio, began, **facts)
    return judge_night(lake, plan.campaign)["alerts"].get_column("event").to_list()


def test_a_finding_is_confirmed_half_an_hour_later_and_once(empty_lake: TraceLake) -> None:
    first = planned(empty_lake)
    assert judged(empty_lake, first, 1.1, TWO) == ["suspected"]
    (waiting,) = due_confirmations(empty_lake)
    assert (waiting.campaign, waiting.blocks) == (first.campaign, 20)
    assert waiting.not_before == TWO + timedelta(minutes=30, seconds=14)
    second = planned(empty_lake, confirms=first.campaign)
    assert due_confirmations(empty_lake) == []
    assert judged(empty_lake, second, 1.1, TWO + timedelta(minutes=31)) == ["confirmed"]
    standing = alerts(empty_lake.read("alerts")).row(0, named=True)
    assert (standing["state"], standing["alert_grade"]) == ("confirmed", "one boot")
    assert standing["ci_low"] < 1.1 < standing["ci_high"]
    before = empty_lake.read("alerts")
    judge_night(empty_lake, first.campaign)
    judge_night(empty_lake, second.campaign)
    assert empty_lake.read("alerts").equals(before)


def test_arms_of_one_file_are_suspected_of_noise_and_never_confirmed(empty_lake: TraceLake) -> None:
    first = planned(empty_lake, candidate=BASELINE)
    assert judged(empty_lake, first, 1.1, TWO) == ["suspected"]
    assert empty_lake.read("alerts").item(0, "sorted_as") == "noise"
    second = planned(empty_lake, confirms=first.campaign, candidate=BASELINE)
    assert judged(empty_lake, second, 1.1, TWO + timedelta(hours=1)) == ["unconfirmed"]


def test_where_no_device_was_recorded_nothing_is_confirmed(empty_lake: TraceLake) -> None:
    first = planned(empty_lake)
    judged(empty_lake, first, 1.1, TWO, facts=FACTS[:1])
    second = planned(empty_lake, confirms=first.campaign)
    assert judged(empty_lake, second, 1.1, TWO + timedelta(hours=1), facts=FACTS[:1]) == ["unconfirmed"]
    row = empty_lake.read("alerts", second.campaign).row(0, named=True)
    assert "device" in row["reasons"][0]
    assert due_confirmations(empty_lake) == []
    assert judged(empty_lake, planned(empty_lake, NIGHT + timedelta(days=1)), 1.0, TWO + timedelta(days=1)) == [
        "cleared"
    ]


def test_a_table_waits_for_all_of_its_night(empty_lake: TraceLake) -> None:
    one, other = planned(empty_lake), planned(empty_lake, model="another")
    assert waits_for(empty_lake, one.campaign) == sorted([one.campaign, other.campaign])
    assert judged(empty_lake, one, 1.1, TWO) == []
    assert waits_for(empty_lake, one.campaign) == [other.campaign]
    assert empty_lake.manifest(one.campaign, "campaign").of_stage(STAGE) == ()
    assert judged(empty_lake, other, 1.0, TWO + timedelta(minutes=5)) == []
    assert empty_lake.read("alerts", one.campaign).get_column("event").to_list() == ["suspected"]
    assert empty_lake.manifest(other.campaign, "campaign").of_stage(STAGE) != ()
    q_value = empty_lake.read("alerts", one.campaign).item(0, "q_value")
    p_value = empty_lake.read("verdicts", one.campaign).filter(
        (pl.col("role") == "primary") & (pl.col("candidate") == "candidate")
    )
    assert q_value == pytest.approx(2 * p_value.item(0, "p_value"))


def test_a_campaign_of_no_night_alerts_nobody(empty_lake: TraceLake) -> None:
    plan = planned(empty_lake, None)
    assert judged(empty_lake, plan, 1.1, TWO) == []
    assert waits_for(empty_lake, plan.campaign) == []


def test_the_user_acknowledges_an_open_alert(empty_lake: TraceLake) -> None:
    judged(empty_lake, planned(empty_lake), 1.1, TWO)
    name = empty_lake.read("alerts").item(0, "alert")
    assert acknowledge(empty_lake, name.removeprefix("alert-"), "ada", " a known cost of the new mask ") == name
    row = alerts(empty_lake.read("alerts")).row(0, named=True)
    assert (row["state"], row["who"], row["reasons"]) == ("acknowledged", "ada", ["a known cost of the new mask"])
    assert due_confirmations(empty_lake) == []
    for alert, who, why, refused in (
        ("nothing-like-it", "ada", "why", "no such alert"),
        (name, "ada", "  ", "why it may stay"),
        (name, "", "why", "who acknowledges it"),
    ):
        with pytest.raises(UsageError, match=refused):
            acknowledge(empty_lake, alert, who, why)


def test_a_night_without_data_alerts_for_every_benchmark(empty_lake: TraceLake) -> None:
    judged(empty_lake, planned(empty_lake), 1.0, TWO)
    benchmarks = [("control_flow", BASELINE.request.backend), ("another", "cpu")]
    at_noon = datetime(2026, 11, 3, 12, tzinfo=UTC)
    found = missing_nights(empty_lake, benchmarks, at_noon)["alerts"]
    assert found.select("workload", "night").rows() == [("another", NIGHT)]
    assert missing_nights(empty_lake, benchmarks, at_noon)["alerts"].is_empty()
    killed = planned(empty_lake, NIGHT + timedelta(days=1))
    later = missing_nights(empty_lake, benchmarks[:1], at_noon + timedelta(days=1))["alerts"]
    assert later.get_column("reasons").to_list() == [["its campaign came to no verdict"]]
    assert empty_lake.manifest(killed.campaign, "campaign").of_stage(STAGE) == ()
    assert missing_nights(empty_lake, benchmarks[:1], at_noon, weekdays=[5, 6])["alerts"].is_empty()
    again = planned(empty_lake, NIGHT + timedelta(days=2))
    assert judged(empty_lake, again, 1.0, TWO + timedelta(days=2)) == ["resolved"]


def test_a_night_that_is_over_is_closed_without_those_that_never_came(empty_lake: TraceLake) -> None:
    one, killed = planned(empty_lake), planned(empty_lake, model="another")
    assert judged(empty_lake, one, 1.1, TWO) == []
    missing_nights(empty_lake, [], datetime(2026, 11, 3, tzinfo=UTC))
    assert empty_lake.read("alerts").select("campaign", "event").rows() == [(one.campaign, "suspected")]
    assert empty_lake.manifest(killed.campaign, "campaign").of_stage(STAGE) == ()
