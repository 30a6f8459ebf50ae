"""Runs whose process is gone are recognized beyond doubt, marked failed, and give back what they hold; no others."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import dagster as dg
import pytest

from aaco_pipeline.assets.capture import MEASUREMENT_POOL
from aaco_pipeline.automation.jobs import start_session
from aaco_pipeline.automation.runs import find_dead_runs, living_runs, reap
from aaco_pipeline.resources.host.kernel_files import HOST_TAG, PID_TAG, process_tags
from aaco_pipeline.resources.measure.measurement_slot import measurement_slot, slot_path
from tests.automation.conftest import slot_holders
from tests.places import CONFIGS

TELL_TAGS: Final = """
import json
from aaco_pipeline.resources.host.kernel_files import process_tags
print(json.dumps(process_tags()), flush=True)
input()
"""


@pytest.fixture(scope="module")
def dead() -> dict[str, str]:
    """The tags of a process that has ended."""
    done = subprocess.run([sys.executable, "-c", TELL_TAGS], input="\n", capture_output=True, text=True, check=True)
    tags: dict[str, str] = json.loads(done.stdout)
    return tags


@pytest.fixture
def zombie() -> Iterator[dict[str, str]]:
    """The tags of a process that has ended and that nobody has waited for."""
    with subprocess.Popen([sys.executable, "-c", TELL_TAGS], stdin=-1, stdout=-1, text=True) as process:
        assert process.stdout is not None
        tags = json.loads(process.stdout.readline())
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        yield tags


def run_of(
    instance: dg.DagsterInstance,
    tags: Mapping[str, str],
    status: dg.DagsterRunStatus = dg.DagsterRunStatus.STARTED,
    parent: str | None = None,
) -> str:
    """A run in the instance, as whatever process left it."""
    run = instance.create_run_for_job(
        start_session, tags=dict(tags), status=status, parent_run_id=parent, root_run_id=parent
    )
    return run.run_id


def claim(instance: dg.DagsterInstance, run_id: str) -> bool:
    storage = instance.event_log_storage
    storage.initialize_concurrency_limit_to_default(MEASUREMENT_POOL)
    return bool(storage.claim_concurrency_slot(MEASUREMENT_POOL, run_id, "capture").is_claimed)


def status_of(instance: dg.DagsterInstance, run_id: str) -> dg.DagsterRunStatus:
    run = instance.get_run_by_id(run_id)
    assert run is not None
    return run.status


def test_a_dead_run_is_marked_failed_and_its_slot_is_free_for_the_next(
    instance: dg.DagsterInstance, dead: dict[str, str]
) -> None:
    run_id = run_of(instance, dead)
    assert claim(instance, run_id)
    assert slot_holders(instance, MEASUREMENT_POOL) == {run_id}
    assert not claim(instance, "the next run")

    (reaped,) = reap(instance)

    assert reaped.run_id == run_id
    assert reaped.reason == f"its process {dead[PID_TAG]} on {dead[HOST_TAG]} is gone"
    assert status_of(instance, run_id) == dg.DagsterRunStatus.FAILURE
    assert slot_holders(instance, MEASUREMENT_POOL) <= {"the next run"}
    assert claim(instance, "the next run")


def test_why_a_run_was_reaped_is_in_its_own_log(instance: dg.DagsterInstance, dead: dict[str, str]) -> None:
    run_id = run_of(instance, dead)
    reap(instance)
    messages = [record.dagster_event.message or "" for record in instance.all_logs(run_id) if record.dagster_event]
    assert any(f"its process {dead[PID_TAG]} on {dead[HOST_TAG]} is gone" in message for message in messages)


def test_reaping_twice_finds_nothing_the_second_time(instance: dg.DagsterInstance, dead: dict[str, str]) -> None:
    run_of(instance, dead)
    assert len(reap(instance)) == 1
    assert reap(instance) == []


@pytest.mark.parametrize(
    "status", [dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]
)
def test_a_run_is_dead_in_every_unfinished_state(
    status: dg.DagsterRunStatus, instance: dg.DagsterInstance, dead: dict[str, str]
) -> None:
    run_id = run_of(instance, dead, status)
    assert [one.run_id for one in find_dead_runs(instance)] == [run_id]


@pytest.mark.parametrize(
    "status",
    [
        dg.DagsterRunStatus.SUCCESS,
        dg.DagsterRunStatus.FAILURE,
        dg.DagsterRunStatus.CANCELED,
    ],
)
def test_a_run_that_has_ended_is_left_alone(
    status: dg.DagsterRunStatus, instance: dg.DagsterInstance, dead: dict[str, str]
) -> None:
    run_id = run_of(instance, dead, status)
    assert reap(instance) == []
    assert status_of(instance, run_id) == status


def test_a_run_of_a_living_process_keeps_its_slot(instance: dg.DagsterInstance) -> None:
    run_id = run_of(instance, process_tags())
    claim(instance, run_id)
    assert reap(instance) == []
    assert status_of(instance, run_id) == dg.DagsterRunStatus.STARTED
    assert slot_holders(instance, MEASUREMENT_POOL) == {run_id}


def test_a_run_of_another_host_is_never_judged_from_here(instance: dg.DagsterInstance, dead: dict[str, str]) -> None:
    run_id = run_of(instance, {**dead, HOST_TAG: "another host"})
    claim(instance, run_id)
    assert reap(instance) == []
    assert status_of(instance, run_id) == dg.DagsterRunStatus.STARTED


def test_a_process_number_used_again_does_not_keep_the_run_alive(instance: dg.DagsterInstance) -> None:
    run_id = run_of(instance, {**process_tags(), ".dagster/aaco/process/started": "1"})
    assert [one.run_id for one in reap(instance)] == [run_id]


def test_a_zombie_is_dead(instance: dg.DagsterInstance, zombie: dict[str, str]) -> None:
    run_id = run_of(instance, zombie)
    assert [one.run_id for one in reap(instance)] == [run_id]


def test_only_the_dead_run_loses_its_slot(instance: dg.DagsterInstance, dead: dict[str, str]) -> None:
    storage = instance.event_log_storage
    storage.set_concurrency_slots("two at once", 2)
    living, gone = run_of(instance, process_tags()), run_of(instance, dead)
    for run_id in (living, gone):
        assert storage.claim_concurrency_slot("two at once", run_id, "step").is_claimed
    reap(instance)
    assert slot_holders(instance, "two at once") == {living}


def test_a_run_that_was_re_executed_is_not_judged_by_its_parents_process(
    instance: dg.DagsterInstance, dead: dict[str, str]
) -> None:
    """Dagster's interface copies all tags of a run to its re-execution, whose own process may be alive and well."""
    parent = run_of(instance, dead, dg.DagsterRunStatus.FAILURE)
    child = run_of(instance, {**dead, "dagster/parent_run_id": parent, "dagster/root_run_id": parent}, parent=parent)
    assert reap(instance) == []
    assert status_of(instance, child) == dg.DagsterRunStatus.STARTED


def test_tags_written_by_hand_do_not_hide_the_dead(instance: dg.DagsterInstance, dead: dict[str, str]) -> None:
    run_of(instance, {**process_tags(), PID_TAG: "mine"})
    run_id = run_of(instance, dead)
    assert run_id in [one.run_id for one in reap(instance)]


def test_living_runs_are_those_that_nothing_shows_to_be_dead(
    instance: dg.DagsterInstance, dead: dict[str, str]
) -> None:
    run_of(instance, dead)
    alive = {run_of(instance, process_tags()), run_of(instance, {**dead, HOST_TAG: "another host"})}
    assert {run.run_id for run in living_runs(instance)} == alive


def test_a_pool_that_was_never_used_has_no_holders(instance: dg.DagsterInstance) -> None:
    assert slot_holders(instance, MEASUREMENT_POOL) == set()


# The whole story: a run that is really killed while it measures.

OBSERVE: Final = """
import sys
from pathlib import Path
import dagster as dg
from aaco_pipeline.pipeline.sessions import register
from aaco_pipeline.automation.resources import add_partition
from aaco_pipeline.definitions import build_definitions
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.automation.resources import LakeResource
from aaco_pipeline.resources.measure.runner import InferenceRunner
from aaco_pipeline.resources.measure import measurement_slot
from aaco_pipeline.capture.request import MeasurementRequest
home, lake, configs, slot = sys.argv[1:]
measurement_slot.PLACES = [Path(slot)]
definitions = build_definitions(
    resource_overrides={"lake": LakeResource(path=lake), "runner": InferenceRunner(configs=configs)}
)
with dg.DagsterInstance.from_config(home) as instance:
    request = MeasurementRequest(model="control_flow", iterations=5_000_000)
    session = register(TraceLake(lake), request)
    add_partition(instance, session)
    definitions.resolve_job_def("observe").execute_in_process(instance=instance, partition_key=session)
"""


def test_a_run_killed_while_it_measures_is_recognized_and_the_next_may_measure(
    instance: dg.DagsterInstance, dagster_home: Path, lake_path: Path
) -> None:

    configs = CONFIGS
    arguments = [str(dagster_home), str(lake_path), str(configs), str(slot_path().parent)]
    with subprocess.Popen([sys.executable, "-c", OBSERVE, *arguments], stderr=subprocess.DEVNULL) as process:
        try:
            deadline = time.monotonic() + 120
            while not list(lake_path.glob("raw/.tmp-*/.latency/job.json")):
                assert time.monotonic() < deadline
                assert process.poll() is None
                time.sleep(0.05)
            (run_id,) = slot_holders(instance, MEASUREMENT_POOL)
            assert reap(instance) == []
        finally:
            process.kill()
    assert status_of(instance, run_id) == dg.DagsterRunStatus.STARTED
    assert [one.run_id for one in reap(instance)] == [run_id]
    assert slot_holders(instance, MEASUREMENT_POOL) == set()
    with measurement_slot(on_wait=lambda line: None):
        pass
