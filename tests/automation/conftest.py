"""Captured sessions whose raw files alone lie in a lake, and Dagster's in-process run of the job `observe`."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from aaco_pipeline.automation.resources import LakeResource, add_partition
from aaco_pipeline.automation.stage_events import EXIT_CODE_KEY
from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.definitions import build_definitions
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.sessions import register
from aaco_pipeline.resources.measure.runner import InferenceRunner
from tests.conftest import CapturedLake
from tests.pipeline.optimizing.conftest import offering, source  # noqa: F401  (fixtures)
from tests.places import CONFIGS

QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


class Forbidden(InferenceRunner):
    """Whoever measures again breaks the promise."""

    def measure(self, launch: MeasurementRequest, folder: Path, log: Callable[[str], None]) -> None:
        raise AssertionError("it measured again")


def observe(
    lake: TraceLake,
    instance: dg.DagsterInstance,
    session: str,
    stages: Sequence[str] | None = None,
    runner: InferenceRunner | None = None,
) -> dg.ExecuteInProcessResult:
    """Run the job `observe`, or some of its stages, for one session, as Dagster's executor does."""
    resources = {
        "lake": LakeResource(path=str(lake.path)),
        "runner": runner or Forbidden(configs=str(CONFIGS)),
    }
    job = build_definitions(resource_overrides=resources).resolve_job_def("observe")
    return job.execute_in_process(
        instance=instance,
        partition_key=session,
        asset_selection=None if stages is None else [dg.AssetKey(stage) for stage in stages],
        run_config=QUIET,
        raise_on_error=False,
    )


def metadata_of(result: dg.ExecuteInProcessResult) -> dict[str, Mapping[str, dg.MetadataValue[Any]]]:
    """The metadata of each stage that was materialized."""
    events = result.get_asset_materialization_events()
    return {e.materialization.asset_key.to_user_string(): e.materialization.metadata for e in events}


def failures(result: dg.ExecuteInProcessResult) -> dict[str, tuple[str | None, Any]]:
    """Failed steps, each with its description and exit code."""
    found: dict[str, tuple[str | None, Any]] = {}
    for event in result.all_events:
        if event.is_step_failure and event.step_key is not None:
            failure = event.step_failure_data.user_failure_data
            assert failure is not None, event.step_failure_data.error
            found[event.step_key] = (failure.description, failure.metadata[EXIT_CODE_KEY].value)
    return found


def registered(lake: TraceLake, instance: dg.DagsterInstance, request: MeasurementRequest) -> str:
    """A new session for `request` that Dagster knows."""
    session = register(lake, request)
    add_partition(instance, session)
    return session


def slot_holders(instance: dg.DagsterInstance, pool: str) -> set[str]:
    """Ids of the runs that hold a slot of `pool`."""
    return {slot.run_id for slot in instance.event_log_storage.get_concurrency_info(pool).claimed_slots}


def job_of(name: str) -> dg.JobDefinition:
    """A job as the code location resolves it."""
    return build_definitions().resolve_job_def(name)


def raw_only(captured: CapturedLake, folder: Path, instance: dg.DagsterInstance) -> TraceLake:
    """A lake that holds the captured sessions' raw files, known to Dagster, and nothing made of them."""
    lake = TraceLake(folder)
    for session in captured.sessions.values():
        shutil.copytree(captured.lake.raw(session), lake.raw(session))
        add_partition(instance, session)
    return lake


@pytest.fixture
def unanalysed(captured: CapturedLake, lake_path: Path, instance: dg.DagsterInstance) -> TraceLake:
    """The captured sessions' raw files alone, for a test to do anything with."""
    return raw_only(captured, lake_path, instance)


@pytest.fixture
def analysed(captured: CapturedLake, lake_path: Path, instance: dg.DagsterInstance) -> TraceLake:
    """A copy of the captured sessions with all their tables, known to Dagster, which has run nothing yet."""
    add_partition(instance, *captured.sessions.values())
    return captured.copy(lake_path)


@pytest.fixture
def session(captured: CapturedLake) -> str:
    """The smaller of the captured sessions."""
    return captured.sessions["control_flow"]
