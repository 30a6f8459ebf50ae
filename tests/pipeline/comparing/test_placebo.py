"""A placebo is a copy of the baseline's file with its weights, made for the campaign and gone with it."""

from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from aaco_pipeline.capture.request import Arm, MeasurementRequest
from aaco_pipeline.errors import LakeError
from aaco_pipeline.lake.health import leftovers
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.comparing.measuring import fresh_copy, placebo_of
from aaco_pipeline.pipeline.comparing.plan import Plan, Subject, new_plan, read_plan, require_unchanged, write_plan
from aaco_pipeline.pipeline.nightly.baselines import arm_of, current, pin
from aaco_pipeline.resources.measure.inference import plan as resolved
from tests.lake.test_artefacts import aged, folders
from tests.pipeline.nightly.test_baselines import weighty
from tests.places import CONFIGS


@pytest.fixture
def plan(empty_lake: TraceLake, tmp_path: Path) -> Plan:
    """A campaign of a night, of a baseline that the lake keeps."""
    request = MeasurementRequest(model=str(weighty(tmp_path / "models" / "adder.onnx")), threads=1)
    pin(empty_lake, request, CONFIGS)
    row = current(empty_lake, "adder", "cpu")
    assert row is not None
    baseline = arm_of(empty_lake, row)
    arms = {"baseline": baseline, "candidate": baseline, "placebo": placebo_of(empty_lake, baseline)}
    made = new_plan("nightly", arms, blocks=3, night=date(2026, 3, 12))  # type: ignore[arg-type]
    write_plan(empty_lake, made)
    return made


def test_it_is_there_for_as_long_as_the_campaign_is_measured(empty_lake: TraceLake, plan: Plan) -> None:
    placebo, baseline = plan.arms["placebo"], plan.arms["baseline"]
    require_unchanged(plan)  # nothing lies there yet, and nothing has to
    with fresh_copy(empty_lake, read_plan(empty_lake, plan.campaign)):
        names = {one.name for one in placebo.artefact.parent.iterdir()}
        assert names == {one.name for one in baseline.artefact.parent.iterdir()} == {"adder.onnx", "adder.bin"}
        assert not placebo.artefact.samefile(baseline.artefact)
        model, _ = resolved(placebo.request, CONFIGS)
        assert (model.name, model.path) == ("adder", placebo.artefact)
    assert not placebo.artefact.parent.exists()


def test_a_copy_that_a_kill_left_is_made_anew(empty_lake: TraceLake, plan: Plan) -> None:
    left = plan.arms["placebo"].artefact
    left.parent.mkdir()
    left.write_bytes(b"half a copy")
    with fresh_copy(empty_lake, plan):
        assert left.read_bytes() == plan.arms["baseline"].artefact.read_bytes()


def test_a_baseline_that_changed_is_no_placebo(empty_lake: TraceLake, plan: Plan) -> None:
    weighty(plan.arms["baseline"].artefact, 2.0)
    with (
        pytest.raises(LakeError, match=r"its copy is not the file that campaign nightly-.* measures"),
        fresh_copy(empty_lake, plan),
    ):
        raise AssertionError("it was measured")
    assert not plan.arms["placebo"].artefact.parent.exists()


def test_a_plan_without_one_copies_nothing(empty_lake: TraceLake, plan: Plan) -> None:
    before = folders(empty_lake)
    arms: dict[Arm, Subject] = {arm: one for arm, one in plan.arms.items() if arm != "placebo"}
    with fresh_copy(empty_lake, replace(plan, arms=arms)):
        assert folders(empty_lake) == before


def test_what_the_last_nights_measure_is_kept_without_a_baseline(empty_lake: TraceLake, plan: Plan) -> None:
    """A night may be confirmed, gone on with, or acknowledged days later."""
    (folder,) = folders(empty_lake)
    aged(folder)
    assert list(leftovers(empty_lake)) == []
    for one in empty_lake.path.glob("[cm]*s/baseline-*"):  # marker and manifest
        one.unlink()
    assert [fault.path for fault in leftovers(empty_lake) if fault.kind == "unnamed artefact"] == []
    for one in empty_lake.path.glob("[cm]*s/nightly-*"):
        one.unlink()
    assert [fault.path for fault in leftovers(empty_lake) if fault.kind == "unnamed artefact"] == [folder]
