"""Nights before and after a stack changed: only from enough of them, graded, and of one host."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from aaco_pipeline.errors import UsageError
from aaco_pipeline.lake.contracts import polars_types
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.comparing.judging import half_campaigns, judge_campaign
from aaco_pipeline.pipeline.comparing.measuring import publish_members
from aaco_pipeline.pipeline.comparing.plan import Subject, new_plan, write_plan
from aaco_pipeline.pipeline.nightly.stack_change import judge_between_nights
from aaco_pipeline.report.comparing.campaign import verdict_document
from aaco_pipeline.report.comparing.verdict import reasons, sentence
from tests.pipeline.comparing.made_up import BASELINE, OTHER
from tests.report.made_up import rows_of

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
    with pytest.raises(UsageError, match="holds nights of other campaigns against each other"):
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
