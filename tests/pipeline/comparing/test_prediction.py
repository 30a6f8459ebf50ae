"""Predictions rest on campaigns of the same workload, settings and host; without any there is none."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.lake.contracts import polars_types
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.comparing.measuring import members, publish_members
from aaco_pipeline.pipeline.comparing.plan import (
    History,
    Plan,
    Prediction,
    history_of,
    new_plan,
    predict,
    read_plan,
    write_plan,
)
from aaco_pipeline.statistics.verdicts.effects import minimum_detectable_ratio
from tests.pipeline.comparing.made_up import BASELINE, OTHER, REQUEST, judged, planned, verdict_row
from tests.report.made_up import rows_of

SECOND = 1_000_000_000


def past(lake: TraceLake, *, deviation: float = 0.02, took: int | None = SECOND, blocks: int = 10) -> Plan:
    """A campaign on node1 whose blocks were spread like that, and whose sessions took so long; traced ones thrice."""
    from aaco_pipeline.statistics.verdicts.effects import t_interval

    plan = planned(lake, blocks=blocks, traced_blocks=1)
    rows: list[dict[str, Any]] = []
    for block in range(blocks + 1):
        for position, arm in enumerate(plan.order(block)):
            session = lake.new_session(arm)
            lake.publish(session, "capture", {"sessions": rows_of("sessions", [{"host": "node1"}])})
            traced = block == blocks
            time = None if took is None else took * (3 if traced else 1)
            rows.append(
                {"block": block, "position": position, "arm": arm, "session_id": session, "state": "finished"}
                | {"purpose": "trace" if traced else "latency", "spent_ns": time, "stages_ns": time}
            )
    publish_members(lake, plan.campaign, pl.DataFrame(rows, schema=polars_types("campaign_sessions")))
    error, freedom, level = np.array([deviation / blocks**0.5]), np.array([blocks - 1.0]), np.array([0.05])
    low, high = (float(np.exp(each[0])) for each in t_interval(np.array([0.1]), error, freedom, level))
    judged(lake, plan, verdict_row("regressed", ci_low=low, ci_high=high, blocks=blocks, level=0.05))
    return plan


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.node", lambda: "node1")


def history(lake: TraceLake, **asked: Any) -> History:
    request = MeasurementRequest(**{**dict(REQUEST), **asked})
    return history_of(lake, Path(request.model).stem, request, "latency_p50")


def test_without_a_campaign_nothing_is_predicted(empty_lake: TraceLake, here: None) -> None:
    assert history(empty_lake) == History(0, None, None, None)
    plan = new_plan("compare", {"baseline": BASELINE, "candidate": OTHER})
    assert predict(history(empty_lake), plan) == Prediction(None, None)


@pytest.mark.usefixtures("here")
def test_spread_and_times_are_those_of_earlier_campaigns(empty_lake: TraceLake) -> None:
    past(empty_lake, deviation=0.03)
    known = history(empty_lake)
    assert (known.campaigns, known.session_ns, known.traced_ns) == (1, 2 * SECOND, 6 * SECOND)
    assert known.deviation == pytest.approx(0.03)
    plan = new_plan("compare", {"baseline": BASELINE, "candidate": OTHER}, blocks=10, traced_blocks=5)
    expected = float(minimum_detectable_ratio(np.array([0.03 / 10**0.5]), np.array([9.0]), np.array([0.05]))[0])
    told = predict(known, plan)
    assert told.time_ns == 20 * 2 * SECOND + 10 * 6 * SECOND
    assert told.detectable_ratio == pytest.approx(expected)
    written = replace(plan, prediction=told)
    write_plan(empty_lake, written)
    assert read_plan(empty_lake, plan.campaign) == written


@pytest.mark.usefixtures("here")
def test_spreads_are_pooled_by_their_freedom(empty_lake: TraceLake) -> None:
    past(empty_lake, deviation=0.01, blocks=5)
    past(empty_lake, deviation=0.03, blocks=13)
    assert history(empty_lake).deviation == pytest.approx(((4 * 0.01**2 + 12 * 0.03**2) / 16) ** 0.5)


@pytest.mark.usefixtures("here")
def test_other_settings_and_workloads_tell_nothing_and_another_interpreter_does(empty_lake: TraceLake) -> None:
    past(empty_lake)
    assert history(empty_lake, threads=2).campaigns == 0
    assert history(empty_lake, model="squeezenet").campaigns == 0
    assert history(empty_lake, interpreter="/opt/python").campaigns == 1
    assert history(empty_lake, model="/elsewhere/control_flow.onnx").campaigns == 1


def test_another_host_tells_nothing(empty_lake: TraceLake) -> None:
    past(empty_lake)
    assert history(empty_lake).campaigns == 0


@pytest.mark.usefixtures("here")
def test_times_that_nobody_took_are_not_known(empty_lake: TraceLake) -> None:
    plan = past(empty_lake, took=None)
    assert members(empty_lake, plan.campaign).get_column("spent_ns").null_count() == 22
    known = history(empty_lake)
    assert known.deviation == pytest.approx(0.02)
    assert known.session_ns is None
    assert predict(known, plan).time_ns is None
    assert known.time_ns(0, 0) == 0
