"""A plan is whole before anything is measured, is read back as it was written, and orders arms by its seed alone.

Predictions rest on campaigns of the same workload, settings and host; without any there is none.
"""

from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.errors import LakeError, ModelError, UsageError
from aaco_pipeline.lake.contracts import polars_types
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.comparing.measuring import members, publish_members
from aaco_pipeline.pipeline.comparing.plan import (
    LEAST_BLOCKS,
    MOST_BLOCKS,
    History,
    Plan,
    Prediction,
    Subject,
    history_of,
    new_plan,
    predict,
    read_plan,
    require_same_shapes,
    require_unchanged,
    subject,
    write_plan,
)
from aaco_pipeline.statistics.verdicts.effects import minimum_detectable_ratio
from aaco_pipeline.statistics.verdicts.service_level import Limit
from tests.pipeline.comparing.made_up import BASELINE, OTHER, REQUEST, judged, planned, verdict_row
from tests.pipeline.nightly.test_baselines import weighty
from tests.places import CONFIGS
from tests.report.made_up import rows_of

ASKED = MeasurementRequest(model="squeezenet", threads=2)
ONE = Subject(ASKED, Path("/models/m.onnx"), "ab" * 32)


def plan_of(seed: int = 7) -> Plan:
    return new_plan("compare", {"candidate": ONE, "baseline": ONE}, seed=seed)


def test_a_plan_is_read_back_as_it_was_written(empty_lake: TraceLake) -> None:
    plan = new_plan(
        "nightly",
        {"candidate": ONE, "baseline": Subject(ASKED, Path("/b.onnx"), "cd" * 32, "pinned-1")},
        seed=3,
        limits=[Limit("latency_p99", 20_000_000, 0.01), Limit("latency_p50", 9_000_000, 0.5)],
        night=date(2026, 3, 12),
        confirms="nightly-1",
    )
    assert [one.metric for one in plan.limits] == ["latency_p50", "latency_p99"]
    write_plan(empty_lake, plan)
    assert read_plan(empty_lake, plan.campaign) == plan


def test_a_campaign_without_a_plan_is_refused_by_name(empty_lake: TraceLake) -> None:
    with pytest.raises(UsageError, match="campaign nothing has no plan"):
        read_plan(empty_lake, "nothing")


@given(seed=st.integers(0, 2**31 - 1), block=st.integers(0, 50))
def test_a_block_has_every_arm_once_in_an_order_that_the_seed_decides(seed: int, block: int) -> None:
    assert sorted(plan_of(seed).order(block)) == ["baseline", "candidate"]
    assert plan_of(seed).order(block) == plan_of(seed).order(block)


def test_both_orders_occur_about_equally_often() -> None:
    first = [plan_of(seed=1).order(block)[0] for block in range(1000)]
    assert 400 < first.count("baseline") < 600


def test_a_session_of_an_arm_is_what_the_arm_asks_for_in_its_place() -> None:
    plan = plan_of()
    request = plan.request("candidate", 4, traced=False)
    assert (request.campaign_id, request.arm, request.block, request.untraced) == (plan.campaign, "candidate", 4, True)
    assert request.threads == ASKED.threads
    assert plan.request("candidate", 4, traced=True).untraced is False


@pytest.mark.parametrize(
    ("arms", "design", "words"),
    [
        ({"candidate": ONE}, {}, "needs a baseline"),
        ({"baseline": ONE}, {}, "at least one arm"),
        ({"candidate": ONE, "baseline": ONE}, {"blocks": LEAST_BLOCKS - 1}, "expected 3 to 200"),
        ({"candidate": ONE, "baseline": ONE}, {"blocks": MOST_BLOCKS + 1}, "expected 3 to 200"),
        ({"candidate": ONE, "baseline": ONE}, {"traced_blocks": -1}, "expected 0 to"),
        ({"candidate": ONE, "baseline": ONE}, {"threshold_ratio": 0.0}, "a threshold of 0"),
        (
            {"candidate": ONE, "baseline": ONE},
            {"limits": [Limit("latency_p99", 1, 0.01), Limit("latency_p99", 2, 0.01)]},
            "one metric has two limits",
        ),
    ],
)
def test_what_can_come_to_no_verdict_is_refused(arms: dict[str, Subject], design: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        new_plan("compare", arms, **design)  # type: ignore[arg-type]


def test_arms_that_do_different_work_are_refused() -> None:
    tokens = MeasurementRequest(model="gpt_tiny", prompt_tokens=4, output_tokens=2)
    generates = Subject(tokens, ONE.artefact, ONE.artefact_sha256)
    with pytest.raises(UsageError, match=r"baseline 2 tokens after 4, batch 1, candidate generates none"):
        new_plan("compare", {"candidate": ONE, "baseline": generates})
    longer = replace(generates, request=tokens.model_copy(update={"prompt_tokens": 5}))
    with pytest.raises(UsageError, match="give them the same prompt, tokens and batch"):
        new_plan("compare", {"candidate": longer, "baseline": generates})


def test_arms_whose_inputs_differ_in_shape_are_refused_and_other_inputs_are_no_matter() -> None:
    require_same_shapes({"baseline": {"x": [4, 64], "mask": [4]}, "candidate": {"x": [4, 64], "y": [9]}})
    require_same_shapes({"baseline": {}, "candidate": {"x": [4, 64]}})
    with pytest.raises(UsageError, match="input 'x' is 4x64 in the baseline and 4x32 in the candidate"):
        require_same_shapes({"baseline": {"x": [4, 64]}, "candidate": {"x": [4, 32]}})


def test_a_file_that_changed_or_went_since_the_plan_is_named(tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(b"one")
    measured = subject(MeasurementRequest(model=str(model)), CONFIGS)
    plan = new_plan("compare", {"candidate": measured, "baseline": measured})
    require_unchanged(plan)
    model.write_bytes(b"two")
    with pytest.raises(
        UsageError, match=r"m\.onnx: changed, or its weights, since campaign compare-.* start a new campaign"
    ):
        require_unchanged(plan)
    model.unlink()
    with pytest.raises(LakeError, match=r"m\.onnx: No such file"):
        require_unchanged(plan)


def test_weights_beside_a_model_are_part_of_what_it_is(tmp_path: Path) -> None:
    first, second = weighty(tmp_path / "a" / "m.onnx"), weighty(tmp_path / "b" / "m.onnx")
    other = weighty(tmp_path / "c" / "m.onnx", 2.0)
    assert first.read_bytes() == other.read_bytes()
    one, same, differing = (subject(MeasurementRequest(model=str(path)), CONFIGS) for path in (first, second, other))
    assert one.artefact_sha256 == same.artefact_sha256 != differing.artefact_sha256
    plan = new_plan("compare", {"candidate": one, "baseline": one})
    require_unchanged(plan)
    (first.parent / "m.bin").write_bytes((other.parent / "m.bin").read_bytes())
    with pytest.raises(UsageError, match="changed, or its weights, since campaign"):
        require_unchanged(plan)
    (first.parent / "m.bin").unlink()
    with pytest.raises(ModelError, match=r"m\.bin: No such file or directory; .*m\.onnx keeps weights there"):
        subject(one.request, CONFIGS)


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
