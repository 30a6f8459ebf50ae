"""The schedule and the sensor of the nights, as Dagster evaluates them."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from aaco_pipeline.automation import nights as module
from aaco_pipeline.automation.nights import confirmations_due, nightly_baseline
from aaco_pipeline.automation.resources import CAMPAIGN_PARTITIONS_NAME, LakeResource
from aaco_pipeline.automation.runs import ATTEMPT_TAG
from aaco_pipeline.definitions import build_definitions
from aaco_pipeline.lake.health import faults
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.comparing.plan import read_plan
from tests.pipeline.nightly.nights import Nights, nights


@pytest.fixture
def lived(empty_lake: TraceLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Nights:
    made = nights(empty_lake, tmp_path / "configs", monkeypatch)
    made.model(1_000_000, "n")
    made.settings("model: m.onnx", "model: n.onnx")
    return made


@pytest.fixture
def tomorrow(lived: Nights) -> Nights:
    """As `lived`, before a night that is not over yet: of one that is, the schedule measures nothing."""
    lived.now = datetime.now(UTC).replace(hour=2) + timedelta(days=1)
    return lived


def resources(lived: Nights) -> dict[str, Any]:
    return {"lake": LakeResource(path=str(lived.lake.path)), "runner": lived.runner}


def tick(lived: Nights, instance: dg.DagsterInstance) -> Sequence[dg.RunRequest]:
    """What the schedule asks for at the time that it is."""
    definitions = build_definitions(resource_overrides=resources(lived))
    with dg.build_schedule_context(
        instance=instance,
        scheduled_execution_time=lived.now,
        resources=resources(lived),
        repository_def=definitions.get_repository_def(),
    ) as context:
        return definitions.resolve_schedule_def(nightly_baseline.name).evaluate_tick(context).run_requests or []


def test_a_tick_plans_the_whole_night_and_asks_for_each_benchmark_s_campaign(
    tomorrow: Nights, instance: dg.DagsterInstance
) -> None:
    requests = tick(tomorrow, instance)
    planned = tomorrow.lake.read("campaigns")
    assert [one.partition_key for one in requests] == planned.sort("planned_at").get_column("campaign_id").to_list()
    assert set(planned.get_column("night")) == {tomorrow.now.date()}
    known = instance.get_dynamic_partitions(CAMPAIGN_PARTITIONS_NAME)
    assert sorted(known) == sorted(planned.get_column("campaign_id"))
    assert [one.run_key for one in requests] == [
        f"{tomorrow.now:%Y-%m-%d} {name}:cpu first slot attempt 1" for name in ("m", "n")
    ]
    assert {one.tags[ATTEMPT_TAG] for one in requests} == {"1"}
    assert [one for one in faults(tomorrow.lake) if one.kind == "stale lock"] == []


def test_the_same_tick_again_asks_the_same_and_the_next_night_is_another(
    tomorrow: Nights, instance: dg.DagsterInstance
) -> None:
    first = [one.run_key for one in tick(tomorrow, instance)]
    assert [one.run_key for one in tick(tomorrow, instance)] == first
    tomorrow.now += timedelta(days=1)
    assert not {one.run_key for one in tick(tomorrow, instance)} & set(first)


def test_a_benchmark_that_cannot_be_measured_keeps_no_other_from_its_night(
    tomorrow: Nights, instance: dg.DagsterInstance
) -> None:
    (tomorrow.configs / "m.onnx").unlink()
    (request,) = tick(tomorrow, instance)
    assert read_plan(tomorrow.lake, str(request.partition_key)).workload == "n"
    (tomorrow.configs / "n.onnx").unlink()
    tomorrow.now += timedelta(days=1)
    assert tick(tomorrow, instance) == []


def test_a_tick_that_was_missed_and_comes_a_day_late_measures_nothing_of_that_night(
    lived: Nights, instance: dg.DagsterInstance
) -> None:
    lived.now = datetime.now(UTC) - timedelta(days=1)
    assert tick(lived, instance) == []
    assert lived.lake.read("campaigns").is_empty()


def test_a_night_without_a_verdict_alerts_at_the_next_tick(tomorrow: Nights, instance: dg.DagsterInstance) -> None:
    tick(tomorrow, instance)
    tomorrow.now += timedelta(days=1)
    assert tomorrow.events() == []
    tick(tomorrow, instance)
    assert [event for _, event in tomorrow.events()] == ["missing", "missing"]


def test_the_sensor_asks_for_the_second_slot_once_it_has_come_and_only_once(
    lived: Nights, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    lived.settings("model: m.onnx")
    lived.night()
    lived.now += timedelta(days=1)
    lived.model(2_000_000)
    (slower,) = lived.night()

    def due(minutes: int) -> list[str]:
        at = lived.now + timedelta(minutes=minutes)
        return [plan.campaign for plan in confirmations_due(lived.lake, instance, lived.runner, at)]

    assert due(29) == []
    (campaign,) = due(31)
    plan = read_plan(lived.lake, campaign)
    assert (plan.confirms, plan.blocks > 6) == (slower, True)
    assert due(32) == []
    # Nobody began it: what was to ask for it died.
    monkeypatch.setattr(module, "BEGINS_WITHIN", timedelta(days=-30))
    assert due(33) == [campaign]
    with lived.lake.measuring(campaign):
        assert due(34) == []


def test_the_sensor_is_silent_where_no_night_was_and_needs_no_settings(
    lived: Nights, instance: dg.DagsterInstance
) -> None:
    (lived.configs / "nightly.yaml").unlink()

    def said() -> str | None:
        sensor = build_definitions(resource_overrides=resources(lived)).resolve_sensor_def("due_confirmations")
        with dg.build_sensor_context(instance, resources=resources(lived)) as context:
            return sensor.evaluate_tick(context).skip_message

    assert said() == "no night was measured yet"
    assert not lived.lake.path.exists()
    lived.lake.path.mkdir()
    assert said() == "nothing waits for a second time slot"


def test_the_schedule_is_off_until_it_is_switched_on() -> None:
    assert nightly_baseline.default_status == dg.DefaultScheduleStatus.STOPPED
    assert (nightly_baseline.cron_schedule, nightly_baseline.job_name) == ("0 2 * * *", "run_campaign")
