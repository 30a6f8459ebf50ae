"""Runs that are killed, interrupted or started together: nothing published is lost, and measurements never overlap.

The kills come from `benchmarks/kill_runs.py`, which does the same many more times and prints seconds.
"""

import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest

import aaco_pipeline
from aaco_pipeline.automation.instance import open_instance
from aaco_pipeline.automation.partitions import PARTITIONS_NAME
from aaco_pipeline.lake.health import faults
from aaco_pipeline.resources.project import Project

SCRIPT: Final = Path(aaco_pipeline.__file__).parents[1] / "benchmarks" / "kill_runs.py"


@pytest.fixture(scope="module")
def killing() -> ModuleType:
    spec = importlib.util.spec_from_file_location("kill_runs", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def place(killing: ModuleType, copied: Project) -> Any:
    """The copied lake and instance, for the harness."""
    return killing.Workplace(copied.lake.parent)


def test_runs_killed_at_random_instants_leave_earlier_sessions_whole_and_the_next_run_succeeds(
    killing: ModuleType, place: Any
) -> None:
    outcome = killing.Outcome()
    rng = random.Random(3)
    for again in (False, False, True):
        killing.kill_once(place, outcome, rng.uniform(0.5, 5.0), again=again)
    assert outcome.violations == []
    assert outcome.kills + outcome.too_late == 3
    assert faults(place.lake) == []
    assert "every promise was kept" in killing.summary(outcome)


def test_the_harness_sees_a_lost_session_a_torn_table_and_what_no_doctor_mends(killing: ModuleType, place: Any) -> None:
    before = place.digests()
    older, newer = place.lake.sessions()
    (entry,) = place.lake.manifest(newer).of_table("iterations")
    (place.lake.path / entry.file).write_bytes(b"torn")
    place.lake.remove(older)
    text = "\n".join(killing.check(place, before))
    for part in (f"earlier session {older}", f"earlier session {newer}", "torn file", "doctor --mend ended with 8"):
        assert part in text


def test_runs_started_together_never_measure_at_the_same_time(killing: ModuleType, place: Any, tmp_path: Path) -> None:
    """Two on one lake, which Dagster's pool orders, and one on a lake of its own, which only the host's lock orders."""
    other = killing.Workplace(tmp_path / "other")
    known = set(place.lake.sessions())
    running: list[subprocess.Popen[str]] = []
    try:
        running += [at.start_run() for at in (place, other, place)]
        for process in running:
            done = killing.finished(process)
            assert (done.returncode, done.stderr) == (0, "")
    finally:
        for process in running:
            killing.kill_group(process)
    measured = [at.measured(session) for at in (place, other) for session in at.lake.sessions() if session not in known]
    assert len(measured) == 3
    for (_, ended), (began, _) in pairwise(sorted(measured)):
        assert ended < began
    assert place.call("doctor").returncode == 0


def test_a_run_that_waits_begins_when_the_one_that_measures_is_killed(killing: ModuleType, place: Any) -> None:
    outcome = killing.Outcome()
    killing.take_over(place, outcome, 1.0)
    assert outcome.violations == []
    assert len(outcome.takeover_seconds) == 1


def test_an_interrupt_while_measuring_exits_with_130_and_nothing_of_the_session_stays(
    killing: ModuleType, place: Any, copied: Project
) -> None:
    known = place.lake.sessions()
    process = place.start_run(killing.FOR_EVER)
    try:
        assert killing.wait_until(place.measuring, process)
        with open_instance(copied) as instance:
            assert len(instance.get_dynamic_partitions(PARTITIONS_NAME)) == len(known) + 1
        os.killpg(process.pid, signal.SIGINT)
        done = killing.finished(process)
    finally:
        killing.kill_group(process)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr.strip() == "aaco: interrupted; nothing is half-published"
    assert place.lake.sessions() == known
    assert place.lake.requests() == []
    assert sorted(path.name for path in (place.lake.path / "raw").iterdir()) == [f"session_id={s}" for s in known]
    with open_instance(copied) as instance:
        assert sorted(instance.get_dynamic_partitions(PARTITIONS_NAME)) == known
    doctor = place.call("doctor", "--json")
    assert (doctor.returncode, json.loads(doctor.stdout)) == (0, [])


def test_a_killed_run_takes_its_measured_process_with_it(killing: ModuleType, place: Any, endless_model: Path) -> None:
    """Also one that is deep in the model and neither writes nor reads, so that it never meets a closed pipe."""
    process = place.start("run", "--model", str(endless_model))
    try:
        assert killing.wait_until(lambda: any(_is_measuring(child) for child in _children(process.pid)), process)
        (child,) = _children(process.pid)
        process.kill()
        process.communicate()
        assert killing.wait_until(lambda: not _is_measuring(child))
    finally:
        killing.kill_group(process)
    assert [fault.kind for fault in faults(place.lake)] == ["unfinished write"]


def _children(pid: int) -> list[int]:
    """The processes that the threads of `pid` have started."""
    return [int(number) for task in Path(f"/proc/{pid}/task").glob("*/children") for number in task.read_text().split()]


def _is_measuring(pid: int) -> bool:
    """Whether the process is a measured one that has the runtime loaded, and lives."""
    try:
        return "onnxruntime" in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return False
