"""Blocks are measured whole and in the planned order; one that is killed is repeated under a new number.

A placebo is a copy of the baseline's file with its weights, made for the campaign and gone with it.

A campaign run from its plan to its alerts: what it publishes, and that what ended it comes through.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from aaco_pipeline.capture.request import Arm, MeasurementRequest
from aaco_pipeline.errors import LakeError, ModelError, UsageError
from aaco_pipeline.lake.files import file_digest
from aaco_pipeline.lake.health import leftovers
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.comparing import measuring, running
from aaco_pipeline.pipeline.comparing.judging import half_campaigns
from aaco_pipeline.pipeline.comparing.measuring import (
    finished_blocks,
    fresh_copy,
    measure_campaign,
    members,
    placebo_of,
)
from aaco_pipeline.pipeline.comparing.plan import (
    Plan,
    Subject,
    new_plan,
    read_plan,
    require_unchanged,
    subject,
    write_plan,
)
from aaco_pipeline.pipeline.doctor import examine
from aaco_pipeline.pipeline.nightly.baselines import arm_of, current, pin
from aaco_pipeline.pipeline.sessions import begun, running_sessions
from aaco_pipeline.resources.measure.inference import plan as resolved
from aaco_pipeline.resources.measure.measurement_slot import slot_is_free
from tests.lake.test_artefacts import aged, folders
from tests.pipeline.comparing.made_up import BASELINE, measured
from tests.pipeline.conftest import Killed
from tests.pipeline.nightly.test_baselines import weighty
from tests.places import CONFIGS


@dataclass(frozen=True)
class Place:
    """A planned campaign: what was measured of it in order (arm, block, untraced), and what is called before each."""

    lake: TraceLake
    plan: Plan
    measured: list[tuple[str, int, bool]]
    callbacks: list[Callable[[], None]]

    def measure(self) -> pl.DataFrame:
        campaign = self.plan.campaign
        return measure_campaign(self.lake, campaign, CONFIGS, lambda line: None)

    @contextmanager
    def before_each(self, callback: Callable[[], None]) -> Iterator[None]:
        self.callbacks.append(callback)
        yield
        self.callbacks.clear()

    def half_finished(self) -> list[str]:
        half = begun(self.lake)
        return [one for one in half if one not in running_sessions(self.lake, half)]


def _die_at(at: int, place: Place) -> None:
    if len(place.measured) == at:
        raise Killed


@pytest.fixture
def plan(empty_lake: TraceLake, tmp_path: Path) -> Plan:
    model = tmp_path / "m.onnx"
    model.write_bytes(b"a model")
    arm = subject(MeasurementRequest(model=str(model)), CONFIGS)
    made = new_plan("compare", {"candidate": arm, "baseline": arm}, blocks=3, traced_blocks=1, seed=5)
    write_plan(empty_lake, made)
    return made


@pytest.fixture
def place(empty_lake: TraceLake, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> "Place":
    """A planned campaign whose measurements leave a file, and whose sessions' stages are not run."""
    made = Place(empty_lake, plan, [], [])

    def capture(request: MeasurementRequest, folder: Path, *others: Any, **more: Any) -> None:
        assert more["held"] >= 0
        assert request.arm is not None
        assert request.block is not None
        for callback in made.callbacks:
            callback()
        (folder / "capture.json").write_text("{}")
        made.measured.append((request.arm, request.block, request.untraced))

    monkeypatch.setattr(measuring, "capture_inference", capture)
    monkeypatch.setattr(measuring, "finish_session", lambda *arguments: True)
    return made


def test_latency_blocks_come_first_and_every_block_has_its_order(place: Place) -> None:
    rows = place.measure()
    expected = [(arm, block, block < 3) for block in range(4) for arm in place.plan.order(block)]
    assert place.measured == expected
    assert rows.select("arm", "block").rows() == [(arm, block) for arm, block, _ in expected]
    assert rows.get_column("purpose").to_list() == ["latency"] * 6 + ["trace"] * 2
    assert set(rows.get_column("state")) == {"finished"}
    sessions = rows.get_column("session_id")
    assert place.lake.captured() == sorted(sessions)
    expected_stages = [len(place.lake.progress(session).expected) for session in sessions]
    assert expected_stages[0] < expected_stages[-1]  # without a trace a session is to have fewer


def test_a_campaign_that_is_done_measures_nothing_more(place: Place) -> None:
    first, count = place.measure(), len(place.measured)
    assert place.measure().equals(first)
    assert len(place.measured) == count


@pytest.mark.parametrize("at", range(8))
def test_a_killed_block_is_repeated_whole_under_a_new_number(at: int, place: Place) -> None:
    with pytest.raises(Killed), place.before_each(lambda: _die_at(at, place)):
        place.measure()
    place.callbacks.clear()
    half = members(place.lake, place.plan.campaign).filter(pl.col("state") == "begun")
    assert half.get_column("block").unique().to_list() == [at // 2]
    rows = place.measure()
    killed = rows.filter(pl.col("state") == "killed")
    assert killed.get_column("block").unique().to_list() == [at // 2]
    finished = rows.filter(pl.col("state") == "finished")
    assert [finished_blocks(place.lake, place.plan.campaign, purpose) for purpose in ("latency", "trace")] == [3, 1]
    assert finished.group_by("block").len().get_column("len").to_list() == [2] * 4
    assert at // 2 not in finished.get_column("block")
    kept = sorted(finished.get_column("session_id"))
    assert place.lake.captured() == kept  # nothing of a killed block stays


def test_a_measurement_that_fails_ends_the_campaign_and_its_block(place: Place) -> None:
    def fails() -> None:
        raise ModelError("m.onnx: cannot be loaded")

    with pytest.raises(ModelError), place.before_each(fails):
        place.measure()
    place.callbacks.clear()
    assert place.lake.captured() == []
    assert set(place.measure().get_column("state")) == {"killed", "finished"}


def test_a_measurement_that_fails_says_of_which_arm_it_was(place: Place) -> None:
    def fails() -> None:
        raise ModelError("the model failed in iteration 0")

    first = place.plan.order(0)[0]
    model = place.plan.arms[first].request.model
    with pytest.raises(ModelError) as raised, place.before_each(fails):
        place.measure()
    assert str(raised.value) == f"{first} ({model}), block 0: the model failed in iteration 0"


def test_what_a_killed_process_was_writing_is_gone_before_anything_is_measured(place: Place) -> None:
    raw = place.lake.path / "raw"
    raw.mkdir(exist_ok=True)
    ours, theirs = (raw / f".tmp-{'0' * 8}-{'0' * 8}-1-{end}" for end in ("ab", "cd"))
    gone = raw / ".tmp-999999999-ab"  # no process has that number
    for folder in (ours, theirs, gone):
        folder.mkdir()
    seen: list[list[str]] = []
    with place.before_each(lambda: seen.append(sorted(one.name for one in raw.glob(".tmp-9*")))):
        place.measure()
    assert seen
    assert not any(seen)
    assert ours.is_dir()  # of another host, which may be writing
    assert theirs.is_dir()


def test_a_finished_block_that_lost_a_session_is_named_and_nothing_is_measured(place: Place) -> None:
    session = place.measure().get_column("session_id")[1]
    place.lake.remove(session)
    count = len(place.measured)
    (problem,) = [one for one in examine(place.lake, lambda session: None) if one.kind == "torn campaign"]
    assert problem.subject == place.plan.campaign
    assert session in problem.explanation
    with pytest.raises(
        LakeError, match=f"{place.plan.campaign} has lost session {session}.*`aaco rm {place.plan.campaign}`"
    ):
        place.measure()
    assert len(place.measured) == count


def test_nobody_runs_stages_of_its_sessions_between_its_blocks(place: Place) -> None:
    """They would disturb what is measured next; whoever finishes half sessions must leave them alone."""
    seen: list[str] = []
    with place.before_each(lambda: seen.extend(place.half_finished())):
        rows = place.measure()
    assert seen == []
    left = place.half_finished()  # once it is over, whoever comes first finishes them
    assert left
    assert set(left) <= set(rows.get_column("session_id"))


def test_nobody_else_runs_stages_of_its_sessions_nor_measures_while_it_runs_them(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def finish(lake: TraceLake, session: str, configs: Path) -> bool:
        for later in place.lake.captured():
            if later > session and not place.lake.is_running(later):
                seen.append(later)
        assert not slot_is_free()
        return True

    monkeypatch.setattr(measuring, "finish_session", finish)
    place.measure()
    assert seen == []
    assert slot_is_free()


@pytest.fixture
def nightly_plan(empty_lake: TraceLake, tmp_path: Path) -> Plan:
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


def test_it_is_there_for_as_long_as_the_campaign_is_measured(empty_lake: TraceLake, nightly_plan: Plan) -> None:
    placebo, baseline = nightly_plan.arms["placebo"], nightly_plan.arms["baseline"]
    require_unchanged(nightly_plan)  # nothing lies there yet, and nothing has to
    with fresh_copy(empty_lake, read_plan(empty_lake, nightly_plan.campaign)):
        names = {one.name for one in placebo.artefact.parent.iterdir()}
        assert names == {one.name for one in baseline.artefact.parent.iterdir()} == {"adder.onnx", "adder.bin"}
        assert not placebo.artefact.samefile(baseline.artefact)
        model, _ = resolved(placebo.request, CONFIGS)
        assert (model.name, model.path) == ("adder", placebo.artefact)
    assert not placebo.artefact.parent.exists()


def test_a_copy_that_a_kill_left_is_made_anew(empty_lake: TraceLake, nightly_plan: Plan) -> None:
    left = nightly_plan.arms["placebo"].artefact
    left.parent.mkdir()
    left.write_bytes(b"half a copy")
    with fresh_copy(empty_lake, nightly_plan):
        assert left.read_bytes() == nightly_plan.arms["baseline"].artefact.read_bytes()


def test_a_baseline_that_changed_is_no_placebo(empty_lake: TraceLake, nightly_plan: Plan) -> None:
    weighty(nightly_plan.arms["baseline"].artefact, 2.0)
    with (
        pytest.raises(LakeError, match=r"its copy is not the file that campaign nightly-.* measures"),
        fresh_copy(empty_lake, nightly_plan),
    ):
        raise AssertionError("it was measured")
    assert not nightly_plan.arms["placebo"].artefact.parent.exists()


def test_a_plan_without_one_copies_nothing(empty_lake: TraceLake, nightly_plan: Plan) -> None:
    before = folders(empty_lake)
    arms: dict[Arm, Subject] = {arm: one for arm, one in nightly_plan.arms.items() if arm != "placebo"}
    with fresh_copy(empty_lake, replace(nightly_plan, arms=arms)):
        assert folders(empty_lake) == before


def test_what_the_last_nights_measure_is_kept_without_a_baseline(empty_lake: TraceLake, nightly_plan: Plan) -> None:
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


@pytest.fixture
def begun_plan(empty_lake: TraceLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """A campaign that was begun, whose sessions are measured and whole."""
    monkeypatch.setattr(measuring, "finish_session", lambda *arguments: False)
    model = tmp_path / "m.onnx"
    model.write_bytes(b"a model")
    arm = replace(BASELINE, artefact=model, artefact_sha256=file_digest(model))
    made = new_plan("compare", {"baseline": arm, "candidate": arm}, blocks=5, traced_blocks=0, seed=1)
    write_plan(empty_lake, made)
    measured(empty_lake, made, 1.5)
    return made


def test_beginning_writes_the_plan_and_a_second_time_nothing(empty_lake: TraceLake, begun_plan: Plan) -> None:
    manifest = empty_lake.manifest(begun_plan.campaign, "campaign")
    write_plan(empty_lake, begun_plan)
    assert empty_lake.manifest(begun_plan.campaign, "campaign") == manifest
    assert read_plan(empty_lake, begun_plan.campaign) == begun_plan


def test_it_ends_with_its_verdict_and_its_alerts_and_running_it_again_changes_nothing(
    empty_lake: TraceLake, begun_plan: Plan
) -> None:
    running.run(CONFIGS, empty_lake, begun_plan.campaign)
    assert half_campaigns(empty_lake) == []
    verdicts = empty_lake.read("verdicts", begun_plan.campaign)
    assert verdicts.filter(role="primary").get_column("verdict").to_list() == ["regressed"]
    manifest = empty_lake.manifest(begun_plan.campaign, "campaign")
    assert {"plan", "measuring", "judging", "history"} <= {entry.stage for entry in manifest.entries}
    running.run(CONFIGS, empty_lake, begun_plan.campaign)
    assert empty_lake.manifest(begun_plan.campaign, "campaign") == manifest


def test_what_ends_the_measuring_comes_through_and_nothing_is_judged(empty_lake: TraceLake, begun_plan: Plan) -> None:
    begun_plan.arms["baseline"].artefact.write_bytes(b"another model")
    with pytest.raises(UsageError, match=r"m\.onnx"):
        running.run(CONFIGS, empty_lake, begun_plan.campaign)
    assert half_campaigns(empty_lake) == [begun_plan.campaign]
