"""The nights of a benchmark become one series, each night read once, published with the campaign that saw it."""

import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from aaco_pipeline.errors import UsageError
from aaco_pipeline.lake.contracts import polars_types
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.comparing.plan import Plan, new_plan, write_plan
from aaco_pipeline.pipeline.nightly.series import STAGE, publish_history
from aaco_pipeline.statistics.history.changes import with_levels
from tests.pipeline.comparing.made_up import BASELINE, OTHER, judged, measured, verdict_row
from tests.statistics.history.made_up import FIRST_NIGHT, night_rows, noise, step

TABLES = ("nights", "change_points", "forecasts")


def a_night(lake: TraceLake, number: int, ratio: float | None = None, kind: Any = "nightly") -> Plan:
    """A judged campaign of that night, whose candidate takes `ratio` times as long; None leaves no sessions."""
    plan = new_plan(kind, {"baseline": BASELINE, "candidate": OTHER}, blocks=3, traced_blocks=0, seed=number)
    plan = Plan(**{**vars(plan), "campaign": f"{kind}-{number:03}", "planned_at": FIRST_NIGHT + timedelta(days=number)})
    write_plan(lake, plan)
    if ratio is not None:
        measured(lake, plan, ratio)
    judged(lake, plan, verdict_row("equivalent"))
    return plan


@pytest.fixture(scope="module")
def measured_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve nights, the last four of them 10 % slower: ten that the tenth's history holds, and two with sessions.

    Beside them a campaign of the eleventh day that a person asked for.
    """
    lake = TraceLake(tmp_path_factory.mktemp("nights") / "lake")
    for number in range(12):
        a_night(lake, number, 1.1 if number >= 10 else None)
    slower, quiet = noise(10, 0.001) + step(10, 8, np.log(1.1)), noise(10, 0.001, 1)
    known = [night_rows(slower, slower), night_rows(quiet, arm="baseline")]
    nights, _ = with_levels(pl.concat(known).with_columns(workload=pl.lit("control_flow")))
    lake.publish("nightly-009", STAGE, {"nights": nights}, scope="campaign")
    a_night(lake, 10, kind="compare")
    return lake.path


@pytest.fixture
def twelve(measured_once: Path, lake_path: Path) -> TraceLake:
    """A copy of them, to do anything with."""
    shutil.copytree(measured_once, lake_path)
    return TraceLake(lake_path)


def test_the_nights_up_to_a_campaign_are_its_history(twelve: TraceLake) -> None:
    tables = publish_history(twelve, "nightly-011")
    ours = tables["nights"].filter(pl.col("arm") == "candidate", pl.col("metric") == "latency_p50")
    assert ours.get_column("campaign").to_list() == [f"nightly-{number:03}" for number in range(12)]
    assert ours.get_column("paired_ratio").to_list() == pytest.approx([1.0] * 8 + [1.1] * 4, rel=5e-3)
    assert ours.get_column("started_at").to_list()[3] == FIRST_NIGHT + timedelta(days=3)
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
    nights = publish_history(twelve, "compare-010")["nights"]
    assert set(nights.get_column("campaign")) == {f"nightly-{number:03}" for number in range(11)}


@pytest.mark.parametrize("is_judged", [True, False])
def test_a_night_of_another_benchmark_and_one_not_judged_are_left_out(is_judged: bool, twelve: TraceLake) -> None:
    row = twelve.read("campaigns", "nightly-010").drop("campaign_id").with_columns(backend=pl.lit("rocm"))
    if is_judged:
        twelve.publish("nightly-010", "plan", {"campaigns": row}, scope="campaign")
    else:
        twelve.publish("nightly-010", "judging", {}, scope="campaign")
    nights = publish_history(twelve, "nightly-011")["nights"]
    assert set(nights.get_column("campaign")) == {f"nightly-{number:03}" for number in (*range(10), 11)}


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
    a_night(empty_lake, 0, 1.0)
    tables = publish_history(empty_lake, "nightly-000")
    assert tables["nights"].get_column("night").unique().to_list() == [0]
    assert tables["change_points"].is_empty()


def test_without_a_plan_there_is_one_line(empty_lake: TraceLake) -> None:
    with pytest.raises(UsageError, match=r"campaign nightly-000 has no plan in .*; `aaco compare`") as raised:
        publish_history(empty_lake, "nightly-000")
    assert "\n" not in str(raised.value)
