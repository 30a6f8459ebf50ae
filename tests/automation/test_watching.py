"""The sensors that watch, each evaluated as Dagster does: what they say and request, and when they do neither."""

import json
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import dagster as dg
import pytest

from aaco_pipeline.automation import watching
from aaco_pipeline.automation.campaigns import JOB
from aaco_pipeline.automation.resources import CAMPAIGN_PARTITIONS_NAME, LakeResource
from aaco_pipeline.automation.watching import STACK_TAG, run_failed
from aaco_pipeline.capture.request import MeasurementRequest
from aaco_pipeline.definitions import build_definitions
from aaco_pipeline.lake.store import TraceLake
from aaco_pipeline.pipeline.comparing.plan import read_plan
from aaco_pipeline.pipeline.nightly.baselines import Memory, fingerprint_of, pin
from aaco_pipeline.resources.measure.runner import InferenceRunner
from tests.pipeline.comparing.made_up import judged, planned, verdict_row
from tests.places import CONFIGS

OLD: Mapping[str, str | None] = {"rocm version": "7.1", "package onnxruntime": "1.24.1", "firmware gpu0.smc": None}
NEW: Mapping[str, str | None] = {**OLD, "rocm version": "7.2"}
Tick = Callable[..., tuple[list[dg.RunRequest], str | None, str | None]]


@pytest.fixture
def tick(empty_lake: TraceLake, instance: dg.DagsterInstance) -> Tick:
    """Evaluate a sensor of the definitions; its requests, why it made none, and its cursor."""

    def evaluated(
        name: str, cursor: str | None = None, configs: Path = CONFIGS
    ) -> tuple[list[dg.RunRequest], str | None, str | None]:
        resources = {"lake": LakeResource(path=str(empty_lake.path)), "runner": InferenceRunner(configs=str(configs))}
        with dg.build_sensor_context(instance, cursor=cursor, resources=resources) as context:
            answer = getattr(watching, name)(context)
            made = [*answer] if isinstance(answer, Iterator) else [answer]
            cursor = context.cursor
        requests = [one for one in made if isinstance(one, dg.RunRequest)]
        for request in requests:  # the daemon begins no run without its partition
            assert request.partition_key in instance.get_dynamic_partitions(CAMPAIGN_PARTITIONS_NAME)
        return requests, next((one.skip_message for one in made if isinstance(one, dg.SkipReason)), None), cursor

    return evaluated


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Callable[[Mapping[str, str | None]], None]:
    monkeypatch.setattr(platform, "node", lambda: "node1")
    return lambda facts: monkeypatch.setattr(watching, "stack_facts", lambda: dict(facts))


Seen = Callable[[Mapping[str, str | None]], None]


@pytest.fixture
def pinned(empty_lake: TraceLake, cache_folder: Path) -> str:
    return pin(empty_lake, MeasurementRequest(model="control_flow"), CONFIGS)


def test_at_first_sight_a_host_is_only_remembered(tick: Tick, seen: Seen, pinned: str) -> None:
    seen(OLD)
    requests, why, cursor = tick("rocm_stack_changed")
    assert requests == []
    assert why == "the stack of node1 is seen for the first time: rocm version 7.1, package onnxruntime 1.24.1"
    again, why, cursor = tick("rocm_stack_changed", cursor)
    assert again == []
    assert why is not None
    assert why.startswith("the stack of node1 is as it was")
    assert cursor is not None
    assert json.loads(cursor) == {"node1": dict(OLD)}


def test_a_new_stack_is_named_and_every_baseline_measured_on_it_once(
    tick: Tick, seen: Seen, pinned: str, empty_lake: TraceLake, instance: dg.DagsterInstance
) -> None:
    seen(OLD)
    _, _, cursor = tick("rocm_stack_changed")
    seen(NEW)
    (request,), _, cursor = tick("rocm_stack_changed", cursor)
    assert request.tags["aaco/stack_change"] == "the stack of node1 changed: rocm version: 7.1 → 7.2"
    assert instance.get_dynamic_partitions(CAMPAIGN_PARTITIONS_NAME) == [request.partition_key]
    plan = read_plan(empty_lake, str(request.partition_key))
    assert request.run_key == f"stack {fingerprint_of(NEW)} {plan.workload}:cpu attempt 1"
    assert (plan.kind, plan.arms["candidate"].baseline) == ("stack", pinned)
    assert plan.arms["candidate"] == plan.arms["baseline"]
    again, _, _ = tick("rocm_stack_changed", cursor)
    assert again == []


def test_a_stack_that_comes_back_gets_a_key_that_dagster_has_not_run(
    tick: Tick, seen: Seen, pinned: str, instance: dg.DagsterInstance
) -> None:
    cursor, keys = None, []
    for facts in (OLD, NEW, OLD, NEW):
        seen(facts)
        requests, _, cursor = tick("rocm_stack_changed", cursor)
        for request in requests:
            keys.append(str(request.run_key))
            job = build_definitions().resolve_job_def(JOB)
            instance.create_run_for_job(job, tags={**request.tags}, status=dg.DagsterRunStatus.FAILURE)
    assert len(keys) == len(set(keys)) == 3
    assert [key.rsplit(maxsplit=1)[1] for key in keys] == ["1", "1", "2"]


def test_without_a_baseline_there_is_nothing_to_measure_and_it_says_so(tick: Tick, seen: Seen) -> None:
    seen(OLD)
    _, _, cursor = tick("rocm_stack_changed")
    seen(NEW)
    requests, why, cursor = tick("rocm_stack_changed", cursor)
    assert requests == []
    assert why == (
        "the stack of node1 changed: rocm version: 7.1 → 7.2; there is no baseline to measure on it: "
        "`aaco baseline pin` keeps one"
    )
    assert "as it was" in str(tick("rocm_stack_changed", cursor)[1])


def test_a_baseline_whose_file_is_gone_stops_no_other(
    tick: Tick, seen: Seen, pinned: str, empty_lake: TraceLake, tmp_path: Path
) -> None:
    other = MeasurementRequest(model="squeezenet", threads=1)
    (empty_lake.path / empty_lake.read("baselines", pinned).item(0, "artefact")).unlink()
    pin(empty_lake, other, CONFIGS)
    seen(OLD)
    _, _, cursor = tick("rocm_stack_changed")
    seen(NEW)
    (request,), _, _ = tick("rocm_stack_changed", cursor)
    assert "squeezenet:cpu" in str(request.run_key)


def test_what_cannot_be_read_for_a_while_is_remembered_as_it_was() -> None:
    memory = Memory({}).seeing("node1", OLD).seeing("node1", {**OLD, "rocm version": None})
    assert memory.changes("node1", OLD) == []
    assert memory.changes("node1", NEW) == ["rocm version: 7.1 → 7.2"]
    assert memory.changes("node2", NEW) is None
    assert Memory.from_text(memory.to_text()) == memory


def test_a_regression_is_reported_once(tick: Tick, empty_lake: TraceLake) -> None:
    plan = planned(empty_lake)
    assert tick("regression_found")[1] == "no regression that was not told"
    judged(empty_lake, plan, verdict_row("regressed"))
    assert tick("regression_found")[1] == f"told {plan.campaign}.candidate"
    assert tick("regression_found")[1] == "no regression that was not told"
    document = json.loads((empty_lake.path / "findings" / f"{plan.campaign}.candidate.json").read_text())
    assert (document["kind"], document["regression"], document["campaign_id"]) == ("verdict", True, plan.campaign)


def test_its_command_gets_the_finding(tick: Tick, empty_lake: TraceLake, tmp_path: Path) -> None:
    judged(empty_lake, planned(empty_lake), verdict_row("regressed"))
    program = "import sys; open(sys.argv[1], 'a').write(sys.stdin.read())"
    command = [sys.executable, "-c", program, str(tmp_path / "told")]
    (tmp_path / "notifications.yaml").write_text(json.dumps({"regression_found": {"command": command}}))
    for _ in range(2):
        tick("regression_found", configs=tmp_path)
    assert json.loads((tmp_path / "told").read_text())["verdict"] == "regressed"


@dg.job
def failing() -> None:
    @dg.op
    def refuses() -> None:
        raise dg.Failure("what was wrong,\nand what to do")

    refuses()


@pytest.mark.parametrize("is_configured", [True, False])
def test_a_run_that_failed_is_one_line_with_its_reason(
    is_configured: bool, instance: dg.DagsterInstance, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    result = failing.execute_in_process(
        instance=instance,
        raise_on_error=False,
        tags={"dagster/partition": "compare-1"},
        run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
    )
    run = instance.get_run_by_id(result.run_id)
    assert run is not None
    if is_configured:
        program = "import sys; open(sys.argv[1], 'a').write(sys.stdin.read() + '\\n'); sys.exit(1)"
        command = [sys.executable, "-c", program, str(tmp_path / "told")]
        (tmp_path / "notifications.yaml").write_text(json.dumps({"run_failed": {"command": command}}))
    context = dg.build_run_status_sensor_context(
        sensor_name="run_failed",
        dagster_event=result.get_run_failure_event(),
        dagster_instance=instance,
        dagster_run=run,
        resources={"runner": InferenceRunner(configs=str(tmp_path))},
    ).for_run_failure()
    skip = run_failed(context)
    assert isinstance(skip, dg.SkipReason)
    assert skip.skip_message == f"run {run.run_id} (failing of compare-1) failed: what was wrong, and what to do"
    told = (tmp_path / "told").read_text().splitlines() if is_configured else []
    assert len(told) == (2 if is_configured else 0)  # a command that fails is tried once more
    assert all(json.loads(line)["reason"] == "what was wrong,\nand what to do" for line in told)


def test_what_is_watched_is_all_runs_of_this_code_location() -> None:
    assert run_failed.default_status == dg.DefaultSensorStatus.RUNNING
    assert STACK_TAG == "aaco/stack"
