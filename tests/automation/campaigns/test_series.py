"""The nights of a benchmark become one series, each night read once, published with the campaign that saw it."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pytest

from aaco_pipeline.automation.campaigns.plan import Plan, new_plan, write_plan
from aaco_pipeline.automation.campaigns.series import STAGE, publish_history
from aaco_pipeline.errors import UsageError
from aaco_pipeline.lake.contracts import polars_types
from aaco_pipeline.lake.store import TraceLake
from tests.automation.campaigns.made_up import BASELINE, OTHER, judged, measured, verdict_row

TABLES = ("nights", "change_points", "forecasts")
FIRST = datetime(2026, 3, 1, 22, tzinfo=UTC)


def a_night(lake: TraceLake, number: int, ratio: float = 1.0, kind: Any = "nightly") -> Plan:
    """A judged campaign of that night, whose candidate takes `ratio` times as long."""
    plan = new_plan(kind, {"baseline": BASELINE, "candidate": OTHER}, blocks=3, traced_blocks=0, seed=number)
    plan = Plan(**{**vars(plan), "campaign": f"{kind}-{number:03}", "planned_at": FIRST + timedelta(days=number)})
    write_plan(lake, plan)
    measured(lake, plan, ratio)
    judged(lake, plan, verdict_row("equivalent"))
    return plan


@pytest.fixture
def twelve(empty_lake: TraceLake) -> Iterator[TraceLake]:
    """Twelve nights, of which the last four are 10 % slower, and a campaign that a person asked for between them."""
    for number in range(12):
        a_night(empty_lake, number, 1.1 if number >= 8 else 1.0)
    a_night(empty_lake, 5, 3.0, kind="compare")
    yield empty_lake


def test_the_nights_up_to_a_campaign_are_its_history(twelve: TraceLake) -> None:
    tables = publish_history(twelve, "nightly-011")
    ours = tables["nights"].filter(pl.col("arm") == "candidate", pl.col("metric") == "latency_p50")
    assert ours.get_column("campaign").to_list() == [f"nightly-{number:03}" for number in range(12)]
    assert ours.get_column("paired_ratio").to_list() == pytest.approx([1.0] * 8 + [1.1] * 4, rel=5e-3)
    assert ours.get_column("started_at").to_list()[3] == FIRST + timedelta(days=3)
    assert ours.select("workload", "backend", "host").row(0) == ("control_flow", "cpu", "node1")
    found = tables["change_points"].filter(pl.col("arm") == "candidate", pl.col("metric") == "latency_p50")
    assert found.filter(pl.col("of") == "paired").get_column("campaign").to_list() == ["nightly-008"]
    assert set(found.get_column("owed_to")) == {"code"}
    assert tables["change_points"].filter(pl.col("arm") == "baseline").is_empty()
    entries = twelve.manifest("nightly-011", "campaign").of_stage(STAGE)
    assert sorted(entry.table for entry in entries) == sorted(TABLES)
    for name in TABLES:
        assert twelve.read(name, "nightly-011").drop("campaign_id").equals(tables[name])
    publish_history(twelve, "nightly-011")
    assert twelve.manifest("nightly-011", "campaign").of_stage(STAGE) == entries


def test_a_night_is_read_once_and_stays_when_its_sessions_are_gone(
    twelve: TraceLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_history(twelve, "nightly-010")
    read: list[str] = []
    original = TraceLake.read

    def noted(self: TraceLake, table: str, *args: Any, **kwargs: Any) -> pl.DataFrame:
        if table == "campaign_sessions":
            read.append(args[0])
        return original(self, table, *args, **kwargs)

    monkeypatch.setattr(TraceLake, "read", noted)
    tables = publish_history(twelve, "nightly-011")
    assert read == ["nightly-011"]
    monkeypatch.undo()
    assert tables["nights"].get_column("campaign").n_unique() == 12


def test_a_campaign_that_a_person_asked_for_sees_the_nights_before_it(twelve: TraceLake) -> None:
    nights = publish_history(twelve, "compare-005")["nights"]
    assert set(nights.get_column("campaign")) == {f"nightly-{number:03}" for number in range(6)}


def test_nights_of_another_benchmark_and_those_not_judged_are_left_out(twelve: TraceLake) -> None:
    twelve.publish("nightly-003", "judging", {}, scope="campaign")
    row = twelve.read("campaigns", "nightly-004").drop("campaign_id").with_columns(backend=pl.lit("rocm"))
    twelve.publish("nightly-004", "plan", {"campaigns": row}, scope="campaign")
    nights = publish_history(twelve, "nightly-005")["nights"]
    assert set(nights.get_column("campaign")) == {f"nightly-{number:03}" for number in (0, 1, 2, 5)}


def test_the_limits_of_the_plan_are_those_of_the_forecast(twelve: TraceLake) -> None:
    limits = pl.DataFrame(
        [{"metric": "latency_p50", "limit_ns": 9_000_000, "budget_ratio": 0.5}], schema=polars_types("campaign_limits")
    )
    twelve.publish("nightly-011", "limits", {"campaign_limits": limits}, scope="campaign")
    rows = publish_history(twelve, "nightly-011")["forecasts"]
    held = dict(rows.filter(pl.col("arm") == "candidate").select("metric", "limit_ns").rows())
    assert held["latency_p50"] == 9_000_000
    assert held["latency_trimmed_mean"] is None
    assert set(rows.get_column("state")) == {"too few nights"}


def test_the_first_night_has_no_changes(empty_lake: TraceLake) -> None:
    a_night(empty_lake, 0)
    tables = publish_history(empty_lake, "nightly-000")
    assert tables["nights"].get_column("night").unique().to_list() == [0]
    assert tables["change_points"].is_empty()


def test_without_a_plan_there_is_one_line(empty_lake: TraceLake) -> None:
    with pytest.raises(UsageError, match="campaign nightly-000 has no plan in .*; `aaco compare`") as raised:
        publish_history(empty_lake, "nightly-000")
    assert "\n" not in str(raised.value)
