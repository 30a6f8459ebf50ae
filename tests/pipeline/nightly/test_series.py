"""The nights of a benchmark become one series, each night read once, published with the campaign that saw it.

Nights before and after a stack changed: only from enough of them, graded, and of one host.
"""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from aaco_pipeline.errors import UsageError
from aaco_pipeline.lake.contracts import polars_types
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.comparing.judging import half_campaigns, judge_campaign
from aaco_pipeline.pipeline.comparing.measuring import publish_members
from aaco_pipeline.pipeline.comparing.plan import Plan, Subject, new_plan, write_plan
from aaco_pipeline.pipeline.nightly.series import STAGE, judge_between_nights, publish_history
from aaco_pipeline.report.comparing.campaign import verdict_document
from aaco_pipeline.report.comparing.verdict import reasons, sentence
from aaco_pipeline.statistics.history.changes import with_levels
from tests.pipeline.comparing.made_up import BASELINE, OTHER, judged, measured, verdict_row
from tests.report.made_up import rows_of
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

    Beside them a campaign of the eleventh day that the user asked for.
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


def test_a_campaign_that_the_user_asked_for_sees_the_nights_before_it(twelve: TraceLake) -> None:
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


FIRST = datetime(2026, 1, 1, 2, tzinfo=UTC)
SESSIONS, ITERATIONS = 3, 40


def night(
    lake: TraceLake, number: int, ratio: float, rocm: str, *, host: str = "node1", measured: Subject = BASELINE
) -> str:
    """A night of unchanged code: levels that wander by 0.2 % between nights and sessions."""
    planned = new_plan("stack", {"baseline": measured, "candidate": measured}, blocks=3, traced_blocks=0)
    at = FIRST + timedelta(days=number)
    plan = replace(planned, campaign=f"stack-{at:%Y%m%dT%H%M%SZ}-{number:08x}", planned_at=at)
    write_plan(lake, plan)
    noise = np.random.default_rng(number)
    level = 1e6 * ratio * (1 + 0.002 * noise.standard_normal())
    rows = []
    for place in range(SESSIONS):
        session = f"{at + timedelta(minutes=place):%Y%m%dT%H%M%SZ}-{number:04x}{place:04x}"
        took = np.rint(level * (1 + 0.002 * noise.standard_normal()) * (1 + 0.01 * noise.standard_normal(ITERATIONS)))
        iterations = [
            {"pass": "latency", "phase": "measure", "iteration": i, "latency_ns": int(one)}
            for i, one in enumerate(took)
        ]
        facts = [("rocm", "version", rocm, True), ("boot", "id", f"boot {rocm}", False)]
        tables = {
            "sessions": rows_of("sessions", [{"source_kind": "live", "host": host, "fingerprint": f"on {rocm}"}]),
            "environment": rows_of(
                "environment",
                [dict(zip(("category", "key", "value", "in_fingerprint"), fact, strict=True)) for fact in facts],
            ),
            "iterations": rows_of("iterations", iterations),
        }
        lake.publish(session, "capture", tables)
        where = {"block": place, "position": 0, "arm": "baseline", "session_id": session}
        rows.append({**where, "purpose": "latency", "state": "finished"})
    publish_members(lake, plan.campaign, pl.DataFrame(rows, schema=polars_types("campaign_sessions")))
    return plan.campaign


def nights(lake: TraceLake, before: int, after: Sequence[float]) -> list[str]:
    """So many nights on ROCm 7.1, then nights on 7.2 that take `after` times as long."""
    known = [night(lake, number, 1.0, "7.1") for number in range(before)]
    return known + [night(lake, before + place, ratio, "7.2") for place, ratio in enumerate(after)]


@pytest.fixture(scope="module")
def slower(tmp_path_factory: pytest.TempPathFactory) -> tuple[TraceLake, list[str]]:
    """Twenty nights, then two on a stack that is 5 % slower. Look, do not touch."""
    lake = TraceLake(tmp_path_factory.mktemp("nights") / "lake")
    known = nights(lake, 20, [1.05, 1.05])
    return lake, known


def test_a_stack_that_is_slower_is_a_graded_regression(slower: tuple[TraceLake, list[str]]) -> None:
    lake, known = slower
    assert judge_between_nights(lake, known[10]) is None  # the stack had not changed yet
    name = judge_between_nights(lake, known[-1])
    assert name is not None
    document = verdict_document(lake, name)
    row = document["verdicts"][0]
    assert (document["regression"], document["verdict"], document["design"], document["alert_grade"]) == (
        *(True, "regressed between nights", "between nights"),
        "two boots",
    )
    assert document["severity"] > 1
    assert row["ci_low"] < 1.05 < row["ci_high"]
    assert (row["blocks"], row["sessions_baseline"], row["sessions_candidate"]) == (22, 60, 6)
    assert [row["subject"] for row in document["environment"]] == ["rocm version: 7.1 → 7.2"]
    assert "22 nights)" in sentence(document)
    assert sentence(document).startswith("Regressed between nights: the median of candidate is 1.0")
    assert any("seen on two boots: what else changed with it counts" in one for one in reasons(document))


def test_every_night_of_the_new_stack_publishes_the_same_campaign_again(slower: tuple[TraceLake, list[str]]) -> None:
    lake, known = slower
    first, last = (judge_between_nights(lake, one) for one in known[-2:])
    assert first == last is not None
    assert lake.read("campaigns", last).item(0, "blocks") == 22
    manifest = lake.manifest(last, "campaign")
    assert judge_between_nights(lake, known[-1]) == last
    assert lake.manifest(last, "campaign") == manifest
    assert last not in half_campaigns(lake)


def test_it_measures_nothing_and_is_not_judged_as_if_it_had(slower: tuple[TraceLake, list[str]]) -> None:
    lake, known = slower
    name = judge_between_nights(lake, known[-1])
    assert name is not None
    with pytest.raises(UsageError, match="compares nights of other campaigns"):
        judge_campaign(lake, name)


def test_with_fewer_than_twenty_nights_it_is_withheld(empty_lake: TraceLake) -> None:
    known = nights(empty_lake, 4, [1.2])
    name = judge_between_nights(empty_lake, known[-1])
    assert name is not None
    document = verdict_document(empty_lake, name)
    assert (document["verdict"], document["regression"], document["severity"]) == ("withheld", False, None)
    assert reasons(document)[0] == "4 of 20 nights of unchanged code on this host are known."


@pytest.mark.parametrize("what", ["another host", "another file", "another kind"])
def test_only_the_same_code_on_the_same_host_counts(what: str, empty_lake: TraceLake, tmp_path: Path) -> None:
    night(empty_lake, 0, 1.0, "7.1", host="node2" if what == "another host" else "node1")
    if what == "another kind":
        plan = new_plan("compare", {"baseline": BASELINE, "candidate": BASELINE}, blocks=3)
        write_plan(empty_lake, plan)
        assert judge_between_nights(empty_lake, plan.campaign) is None
        return
    last = night(empty_lake, 1, 1.0, "7.2", measured=OTHER if what == "another file" else BASELINE)
    assert judge_between_nights(empty_lake, last) is None
