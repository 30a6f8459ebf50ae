"""A publication that ends at any instant, by a kill or an error, leaves the old state or the new.

The kills come from `benchmarks/reliability/kill_publishing.py`, which does the same at many more instants.
"""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest

import aaco_pipeline
from aaco_pipeline.lake import storage
from aaco_pipeline.lake.health import faults
from aaco_pipeline.lake.store import TraceLake

SCRIPT: Final = Path(aaco_pipeline.__file__).parents[1] / "benchmarks/reliability/kill_publishing.py"


@pytest.fixture(scope="module")
def killing() -> ModuleType:
    spec = importlib.util.spec_from_file_location("kill_publishing", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_a_killed_writer_leaves_the_old_state_or_the_new(lake: TraceLake, killing: ModuleType) -> None:
    outcome = killing.run(lake, instants=10, seed=1)
    assert outcome.violations == []
    assert outcome.instants == 10
    assert outcome.states["old state"] + outcome.states["new state"] == 10
    assert "broken promises" in killing.summary(outcome)


def test_the_harness_sees_a_lake_that_breaks_its_promises(lake: TraceLake, killing: ModuleType) -> None:
    killing.prepare(lake)
    entries = {entry.table: lake.path / entry.file for entry in lake.manifest(killing.SESSION).of_stage(killing.STAGE)}
    entries["iterations"].unlink()
    entries["session_metrics"].write_bytes(b"torn")
    lake.publish(killing.SESSION, killing.OTHER_STAGE, {})
    complaints: list[str] = []
    killing._check_state(lake, 1, complaints, exactly=True)
    text = "\n".join(complaints)
    for part in ("published but missing: iterations", "published but torn: session_metrics", "evidence is lost"):
        assert part in text
    assert "the tables show generation 0, and 1 was done" in text


class Killed(BaseException):
    """What a kill is to the code it meets: nothing catches it."""


STEPS: Final[dict[str, tuple[object, str, bool, bool]]] = {
    "before the first table is written": (TraceLake, "_write", False, False),
    "before a table is synced": (storage, "sync_file", False, False),
    "before a table's folder is synced": (storage, "sync_folder", False, False),
    "before the manifest is replaced": (storage, "write_atomically", False, False),
    "after the manifest is replaced": (storage, "write_atomically", True, True),
    "before superseded files are deleted": (TraceLake, "_delete_unpublished", False, True),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_writer_that_ends_at_a_step_leaves_the_old_state_or_the_new(
    step: str, lake: TraceLake, killing: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, name, after, is_new = STEPS[step]
    killing.prepare(lake)
    real: Callable[..., Any] = getattr(owner, name)

    def end(*arguments: Any, **named: Any) -> None:
        if after:
            real(*arguments, **named)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, end)
        with pytest.raises(Killed):
            lake.publish(killing.SESSION, killing.STAGE, killing.generation_frames(1))
    complaints: list[str] = []
    assert killing._check_state(lake, int(is_new), complaints, exactly=True) == int(is_new)
    lake.publish(killing.SESSION, killing.STAGE, killing.generation_frames(2))
    assert killing._check_state(lake, 2, complaints, exactly=True) == 2
    assert complaints == []
    assert faults(lake) == []
