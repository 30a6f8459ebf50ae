"""The measurement slot while a session's stages run in this process: held, given back, waited for, and its log."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import dagster as dg
import pytest

from aaco_pipeline.assets.capture import MEASUREMENT_POOL
from aaco_pipeline.automation.dead_runs import slot_holders
from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.errors import ModelError
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.session_stages import run_session
from aaco_pipeline.pipeline.sessions import register
from tests.conftest import CapturedLake
from tests.places import CONFIGS

MEASURING: Final = "aaco_pipeline.resources.measure.inference.capture_inference"
PARTITION_TAG: Final = "dagster/partition"

Ask = Callable[..., Any]


def the_run(instance: dg.DagsterInstance) -> dg.DagsterRun:
    """The newest run."""
    return instance.get_runs(limit=1)[0]


def steps(instance: dg.DagsterInstance, run_id: str, kind: dg.DagsterEventType) -> list[str]:
    """Names of the stages with such an event, in order."""
    events = (entry.dagster_event for entry in instance.all_logs(run_id, of_type=kind))
    return [str(event.step_key) for event in events if event is not None]


@pytest.fixture
def requested(empty_lake: TraceLake, instance: dg.DagsterInstance) -> str:
    """A session that has still to be measured."""
    return register(empty_lake, instance, MeasurementRequest(model="control_flow", iterations=2, warmup=0))


def test_the_slot_is_held_while_measuring_and_free_afterwards(
    empty_lake: TraceLake,
    requested: str,
    captured: CapturedLake,
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raw, held = captured.lake.raw(captured.sessions["control_flow"]), []

    def measure(launch: MeasurementRequest, folder: Path, *_: object) -> None:
        held.append((launch.model, slot_holders(instance, MEASUREMENT_POOL)))
        shutil.copytree(raw, folder, dirs_exist_ok=True)

    monkeypatch.setattr(MEASURING, measure)
    run_session(empty_lake, instance, requested, CONFIGS, only=("capture",))
    assert held == [("control_flow", {the_run(instance).run_id})]
    assert slot_holders(instance, MEASUREMENT_POOL) == set()
    # What is captured is never measured again, and waits for no slot.
    storage = instance.event_log_storage
    assert storage.claim_concurrency_slot(MEASUREMENT_POOL, "another run", "capture").is_claimed
    run_session(empty_lake, instance, requested, CONFIGS, only=("capture",))
    assert len(held) == 1


@pytest.mark.parametrize("error", [ModelError("broken"), KeyboardInterrupt()])
def test_the_slot_is_free_after_a_measurement_that_failed(
    error: BaseException,
    empty_lake: TraceLake,
    requested: str,
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def measure(*_: object) -> None:
        raise error

    monkeypatch.setattr(MEASURING, measure)
    with pytest.raises(type(error)):
        run_session(empty_lake, instance, requested, CONFIGS)
    assert slot_holders(instance, MEASUREMENT_POOL) == set()
    assert empty_lake.requests() == [requested]


def test_a_run_waits_until_the_slot_is_given_back(
    empty_lake: TraceLake,
    requested: str,
    captured: CapturedLake,
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raw, storage, order = captured.lake.raw(captured.sessions["control_flow"]), instance.event_log_storage, []
    storage.initialize_concurrency_limit_to_default(MEASUREMENT_POOL)
    assert storage.claim_concurrency_slot(MEASUREMENT_POOL, "another run", "capture").is_claimed

    def give_back(seconds: float) -> None:
        order.append("waited")
        storage.free_concurrency_slots_for_run("another run")

    def measure(launch: MeasurementRequest, folder: Path, *_: object) -> None:
        order.append("measured")
        shutil.copytree(raw, folder, dirs_exist_ok=True)

    monkeypatch.setattr(MEASURING, measure)
    monkeypatch.setattr("aaco_pipeline.automation.pool_slot.time.sleep", give_back)
    run_session(empty_lake, instance, requested, CONFIGS, only=("capture",))
    assert order == ["waited", "measured"]


def test_lines_of_the_measurement_are_in_the_runs_log(
    empty_lake: TraceLake,
    requested: str,
    captured: CapturedLake,
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raw = captured.lake.raw(captured.sessions["control_flow"])

    def measure(launch: MeasurementRequest, folder: Path, configs: Path, log: Callable[[str], None]) -> None:
        log("the latency pass begins")
        shutil.copytree(raw, folder, dirs_exist_ok=True)

    monkeypatch.setattr(MEASURING, measure)
    run_session(empty_lake, instance, requested, CONFIGS, only=("capture",))
    lines = [entry.message for entry in instance.all_logs(the_run(instance).run_id)]
    assert [line for line in lines if "the latency pass begins" in line]
