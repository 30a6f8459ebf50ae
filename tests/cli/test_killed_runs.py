"""Runs that are killed, interrupted or started together: nothing published is lost, and measurements never overlap.

The kills come from `benchmarks/kill_runs.py`, which does the same many more times and prints seconds.
"""

import importlib.util
import os
import signal
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest

import aaco_pipeline
from aaco_pipeline.automation.instance import open_instance
from aaco_pipeline.automation.partitions import PARTITIONS_NAME
from aaco_pipeline.lake.health import faults
from aaco_pipeline.pipeline.doctor import examine
from aaco_pipeline.resources.project import Project
from tests.cli.conftest import Aaco

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


def test_a_run_killed_in_mid_analysis_is_whole_after_the_next_command(
    killing: ModuleType, place: Any, copied: Project, aaco: Aaco
) -> None:
    before = place.whole()
    process = place.start_run()
    try:
        assert killing.wait_until(lambda: len(place.lake.captured()) > len(before), process)
    finally:
        killing.kill_group(process)
    (begun,) = place.begun() - set(before)
    assert place.lake.progress(begun).is_whole is False
    done = aaco("show", begun, "--json", project=copied)
    assert done.returncode == 0, done.stderr
    assert f"finishing {begun}: " in done.stderr
    assert killing.check(place, before, {begun}) == []


def test_the_harness_sees_what_is_lost_changed_torn_half_doubled_and_unended(killing: ModuleType, place: Any) -> None:
    before = place.whole()
    older, newer = sorted(before)
    assert killing.check(place, before, set()) == []
    (entry,) = place.lake.manifest(newer).of_table("iterations")
    (place.lake.path / entry.file).write_bytes(b"torn")
    place.lake.record_failure(newer, "roofline", "code", "why")
    place.lake.remove(older)
    text = "\n".join(killing.check(place, {**before, newer: "other"}, {"begun"}))
    for part in (f"session {older} is lost", "session begun is lost", "torn file", f"session {newer} has 17 of 18"):
        assert part in text


def test_a_run_waits_for_one_on_another_lake_and_begins_when_that_is_killed(
    killing: ModuleType, place: Any, tmp_path: Path
) -> None:
    """Only the host's lock orders the two; on one lake Dagster's pool does as well."""
    seconds, complaints = killing.take_over(place, killing.Workplace(tmp_path / "other"), 1.0)
    assert complaints == []
    assert seconds is not None


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
        assert examine(place.lake, void) == []


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
